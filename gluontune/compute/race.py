"""Ways to run one network, timed in turn: each is compiled once and keeps its graph while the others run."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Any, Callable

import psutil

from gluontune.compute._gradients import GradientCheck
from gluontune.compute._preserve import capture, restore
from gluontune.compute.mode import MODES, topmost_hybrid
from gluontune.compute.rewrites import apply_rewrites
from gluontune.errors import GluontuneError
from gluontune.stats import interval, ratio_interval

__all__ = ["SETTINGS", "Race", "Trial"]

# What is tried besides the three modes; oneDNN's subgraph backend is for inference and left out.
SETTINGS: dict[str, dict[str, Any]] = {
    **MODES,
    "static_alloc": {"active": True, "static_alloc": True},
    "static, bulks of 1": {**MODES["static"], "forward_bulk_size": 1, "backward_bulk_size": 1},
    "static, bulks of 100": {**MODES["static"], "forward_bulk_size": 100, "backward_bulk_size": 100},
}


@dataclass(eq=False)
class Trial:
    """One way to run the network, and how it measured.

    Args:
        settings: ``imperative``, ``hybridized``, ``static_alloc``, ``static`` or one with a bulk size.
        rewrites: those applied.
        step_ms: ``{"median", "ci95", "n"}`` of forward, loss and backward; None if it failed.
        compile_s: the first step less a later one.
        memory_mib: growth of resident memory at the first steps (0 if it reused memory that was there).
        break_even_steps: steps after which compiling has paid against imperative; None if it never does.
        speedup: against imperative without rewrites, from interleaved pairs: ``{"median", "ci95", "n"}``.
        error: first line of what went wrong.
    """

    settings: str
    rewrites: tuple[str, ...]
    step_ms: dict[str, Any] | None = None
    compile_s: float = 0.0
    memory_mib: float = 0.0
    break_even_steps: int | None = None
    speedup: dict[str, Any] | None = None
    error: str = ""
    _first_s: float = field(default=0.0, repr=False)
    _times: list[float] = field(default_factory=list, repr=False)
    _state: Any = field(default=None, repr=False)

    @property
    def name(self) -> str:
        """Settings and rewrites in a line."""
        return " + ".join((self.settings, *self.rewrites))


class Race:
    """The network, the step that is timed, and how the network is without any of it.

    Args:
        net: an initialized block, as it came. step: one training step with it. inputs: a sample batch.
    """

    def __init__(self, net: Any, step: Callable[[], None], inputs: tuple[Any, ...]):
        self.net, self.step, self.inputs = net, step, inputs
        self.plain, self._check = capture(net), GradientCheck(net)

    def run(self, trials: list[Trial], rounds: int, deadline: float, least: int = 3) -> None:
        """Prepare each trial once, then time them in turn; the first is what the others are compared with.

        Args:
            deadline: of ``time.monotonic``; after it no round is begun once ``least`` are done.
        """
        for trial in trials:
            trial._times.clear()
            if trial._state is None and not trial.error:
                restore(self.plain)
                self._prepare(trial)
        running = [t for t in trials if not t.error]
        if not running:
            return
        repeats = max(1, min(20, int(0.1 / max(1e-4, max(t._first_s for t in running)))))
        for round_index in range(rounds):
            if round_index >= least and time.monotonic() > deadline:
                break
            # Start each round at another trial, so that none always follows the same one.
            shift = round_index % len(running)
            for trial in running[shift:] + running[:shift]:
                restore(trial._state)
                self.step()  # caches are warm for this one, not for its predecessor
                start = time.perf_counter()
                for _ in range(repeats):
                    self.step()
                trial._times.append((time.perf_counter() - start) / repeats)
        for trial in running:
            trial.step_ms = interval([t * 1e3 for t in trial._times])
            if running[0] is trials[0]:
                trial.speedup = ratio_interval(trials[0]._times, trial._times)

    def _prepare(self, trial: Trial) -> None:
        """Three steps, which compile; a rewritten net whose gradients are grossly other ones has failed."""
        before = _rss_mib()
        try:
            apply_rewrites(self.net, trial.rewrites, *self.inputs, verify=False)  # checked below
            for block in topmost_hybrid(self.net):
                block.hybridize(**SETTINGS[trial.settings])
            seconds = []
            for _ in range(3):
                start = time.perf_counter()
                self.step()
                seconds.append(time.perf_counter() - start)
                if trial.name == "imperative":
                    self._check.note()
            other = self._check.differing() if trial.rewrites else ""
            if other:
                raise GluontuneError(f"the gradient of {other} is not that of the plain network")
        except Exception as error:
            told = str(error).strip()
            trial.error = told.splitlines()[0][:300] if told else type(error).__name__
            return
        trial._first_s = min(seconds[1:])
        trial.compile_s = max(0.0, seconds[0] - trial._first_s)
        trial.memory_mib = max(0.0, _rss_mib() - before)
        trial._state = capture(self.net)


def _rss_mib() -> float:
    return float(psutil.Process().memory_info().rss) / 2**20
