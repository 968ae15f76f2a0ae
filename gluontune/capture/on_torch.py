"""A script's arithmetic goes over to PyTorch, once a step of its own has been proven; and back, where a proof fails."""

from __future__ import annotations

import gc
import os
import tempfile
from collections.abc import Callable
from typing import Any

import numpy as np

from gluontune.capture.events import Op, Step, draws
from gluontune.capture.following import FollowingTorch
from gluontune.capture.helpers.base import Forked
from gluontune.capture.helpers.samples import Samples
from gluontune.capture.program import StepProgram, program_of
from gluontune.capture.proof import Gaps, MXNetReplay, compare, gaps_of_the_script, leaves_of, torch_results
from gluontune.capture.script import ALL_THREADS, put_on_cpu, wants_cpu
from gluontune.core.errors import GluontuneError, first_line
from gluontune.runtime.pytorch import device, torch

_PROOF_S = 120.0
_FIRST = 2  # the step that is proven: in the first, weights are initialized


class OnTorch:
    """Watches a script train, and moves its arithmetic to PyTorch; ``say`` gets what happened, a line each.

    ``place`` names the device that computes, as :func:`gluontune.runtime.pytorch.device` takes it. Where that is a
    GPU, MXNet stays on the CPU: its first one, to the script, is PyTorch's.
    """

    def __init__(self, mx: Any, folder: str, say: Callable[[str], None], place: str = "auto"):
        self.mx, self.say = mx, say
        self.place = device("cpu" if place == "auto" and wants_cpu() else place)
        if self.place.type != "cpu":
            put_on_cpu(mx, 1)
            torch().backends.cudnn.allow_tf32 = False  # float32 is computed as such
        torch().set_num_threads(int(os.environ.get(ALL_THREADS) or os.environ.get("OMP_NUM_THREADS") or 1))
        self.steps, self.moved = 0, 0  # in all, and those that PyTorch computed
        self.gaps: Gaps | None = None
        self.why_not = "no training step was seen"  # why MXNet computes, where it does
        self.draws = False  # whether the proven step drew random numbers, which PyTorch draws otherwise
        self.recorder = FollowingTorch(mx, folder, self._finished, self.place)
        self.recorder.copying, self.recorder.retreated = False, self._retreated
        self.hooks = self.recorder.hooks
        self.hooks.install()

    def read_from(self, samples: Samples) -> None:
        """Batches of kept samples are given without MXNet's arrays."""
        samples.giving = self.recorder.give

    def _finished(self, step: Step) -> None:
        self.steps += 1
        if self.recorder.lazy:
            self.moved += 1
            return
        if self.steps < _FIRST:
            self.recorder.copying = True
            return
        self.recorder.copying = self.recorder.lines = False
        names = [event.name for event in step.events if isinstance(event, Op)]
        self.draws = any(draws(name) or name == "Dropout" for name in names)
        why_not = self._prove(step)
        if why_not:
            self.why_not = why_not
            self.hooks.remove()
            self.say(f"MXNet computes: {why_not}")
            return
        gc.collect()
        gc.freeze()  # modules of two frameworks: going through them took a tenth of the time
        self.why_not, self.recorder.lazy = "", True

    def _retreated(self, why: str) -> None:
        self.why_not = why
        self.say(f"MXNet computes from step {self.steps + 1} on: {why}")

    def _prove(self, step: Step) -> str:
        """Compute a recorded step by PyTorch; returns why its program cannot be taken over, or nothing."""
        if step.unknown:
            return step.unknown[0]
        try:
            program = program_of(step)
            if not program.heads:
                return "a training step without a backward pass was seen"
            self.gaps = gaps_of_the_script(program, self.place)
            if not self.gaps.agree():  # a net that magnifies rounding: both in float64
                self.gaps = self._exact(program) or self.gaps
        except (GluontuneError, RuntimeError, ValueError, TypeError, IndexError) as error:
            return first_line(error)
        return "" if self.gaps.agree() else f"PyTorch's results differ: {self.gaps}"

    def _exact(self, program: StepProgram) -> Gaps | None:
        """The gaps in float64, MXNet's by a copy of the process: a crash in an odd precision would be the script's."""
        leaves = leaves_of(program)
        with tempfile.TemporaryDirectory(prefix="gluontune-proof-") as folder:
            path = os.path.join(folder, "results.npz")

            def work() -> bool:
                results = MXNetReplay(self.mx, program)(leaves)
                np.savez(path, **{str(number): array for number, array in results.items()})
                return True

            copy = Forked(work, _PROOF_S)
            copy.ended(_PROOF_S)
            if not copy.answer():
                return None
            with np.load(path) as found:
                theirs = {int(name): found[name] for name in found.files}
        return compare(program, torch_results(program, leaves, theirs, "float64", self.place), theirs)

    def document(self) -> dict[str, Any]:
        return {
            "steps": self.steps,
            "steps_on_torch": self.moved,
            "seconds_computing": round(self.recorder.interpreter.seconds, 3),
            **self.recorder.facts(),
            "gaps": self.gaps and self.gaps.to_dict(),
            "why_not": self.why_not,
            "device": str(self.place),
        }
