"""A script's arithmetic goes over to PyTorch, once a step of its own has been proven; and back, where a proof fails."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from gluontune.capture.events import Step, draws
from gluontune.capture.hooks import Hooks
from gluontune.capture.interpret import computes
from gluontune.capture.lazy import LazyTorch
from gluontune.capture.program import StepProgram, program_of
from gluontune.capture.proof import Gaps, chance, compare
from gluontune.capture.replay import MXNetReplay, TorchReplay, leaves_of
from gluontune.core.errors import GluontuneError

_FIRST = 2  # the step that is proven: in the first, weights are initialized


class OnTorch:
    """Watches a script train, and moves its arithmetic to PyTorch.

    Args:
        mx: the mxnet module, just imported. folder: of the script. say: called with what happened, a line each.

    Attributes:
        steps, moved: training steps in all, and those that PyTorch computed. gaps: of the proof.
        why_not: why MXNet computes, where it does.
    """

    def __init__(self, mx: Any, folder: str, say: Callable[[str], None]):
        self.mx, self.say = mx, say
        self.steps, self.moved = 0, 0
        self.gaps: Gaps | None = None
        self.why_not = "no training step was seen"
        self.proven: set[int] = set()
        self.recorder = LazyTorch(mx, folder, self._finished)
        self.recorder.computes, self.recorder.steady, self.recorder.copying = computes, False, False
        self.hooks = self.recorder.hooks = Hooks(mx, self.recorder)
        self.hooks.install()

    def _finished(self, step: Step) -> None:
        self.steps += 1
        if self.recorder.lazy:
            self.moved += 1
            return
        if self.steps < _FIRST:
            self.recorder.copying = True
            return
        self.recorder.copying = self.recorder.lines = False
        why_not = self._prove(step)
        if why_not:
            self.why_not = why_not
            self.hooks.remove()
            self.say(f"MXNet computes: {why_not}")
            return
        self.why_not, self.recorder.lazy = "", True

    def _prove(self, step: Step) -> str:
        """Compute a recorded step by PyTorch; returns why its program cannot be taken over, or nothing."""
        if step.unknown:
            return step.unknown[0]
        try:
            program = program_of(step)
            if not program.heads:
                return "a training step without a backward pass was seen"
            mine = TorchReplay(program)(leaves_of(program))
            self.gaps = compare(program, mine, self._theirs(program))
        except (GluontuneError, RuntimeError, ValueError, TypeError, IndexError) as error:
            return str(error).splitlines()[0]
        return "" if self.gaps.agree() else f"PyTorch's results differ: {self.gaps}"

    def _theirs(self, program: StepProgram) -> Any:
        """MXNet's results: the script's own, or where it draws random numbers a step without."""
        if chance(program, draws):
            return MXNetReplay(self.mx, program, "float32")(leaves_of(program))
        return {number: program.values[number].array for number in program.shown}
