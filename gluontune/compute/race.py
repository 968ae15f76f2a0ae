"""Ways to run one network, timed in turn; each is compiled once and keeps its graph."""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Callable

import psutil

from gluontune.compute._passes import GradientCheck, capture, restore
from gluontune.compute.mode import MODES, compile_roots, topmost_hybrid
from gluontune.compute.rewriting import apply_rewrites
from gluontune.core.errors import GluontuneError, first_line
from gluontune.core.stats import Interval, in_turn, interval, ratio_interval

# The three modes and more; oneDNN's subgraph backend is for inference and left out.
SETTINGS: dict[str, dict[str, Any]] = {
    **MODES,
    "static_alloc": {"active": True, "static_alloc": True},
    "static, bulks of 1": {**MODES["static"], "forward_bulk_size": 1, "backward_bulk_size": 1},
    "static, bulks of 100": {**MODES["static"], "forward_bulk_size": 100, "backward_bulk_size": 100},
}
REFERENCE_ROUNDS = 3  # runs of a reference that is far behind in a heat
SHORT_S = 0.05  # a step shorter than this runs once untimed first; a longer one fills the caches itself


@dataclass(eq=False)
class Trial:
    """One way to run the network, and its measurements.

    Args:
        settings: ``imperative``, ``hybridized``, ``static_alloc``, ``static`` or one with a bulk size.
        rewrites: the applied ones.
        step_ms: ``{"median", "ci95", "n"}`` of forward, loss and backward; None if it failed or was not run.
        compile_s: the first step less a later one.
        memory_mib: growth of resident memory at the first steps (0 if it reused memory).
        break_even_steps: steps after which compiling has paid against imperative; None if it never does.
        speedup: against imperative without rewrites, from interleaved pairs: ``{"median", "ci95", "n"}``.
        dropped: the end of its race and its distance to the best; "" for those in the last heat.
        error: first line of the failure.
    """

    settings: str
    rewrites: tuple[str, ...]
    step_ms: Interval | None = None
    compile_s: float = 0.0
    memory_mib: float = 0.0
    break_even_steps: int | None = None
    speedup: Interval | None = None
    dropped: str = ""
    error: str = ""
    _times: list[float] = field(default_factory=list, repr=False)
    _state: Any = field(default=None, repr=False)

    @property
    def name(self) -> str:
        """Settings and rewrites in a line."""
        return " + ".join((self.settings, *self.rewrites))

    @property
    def median_ms(self) -> float:
        """Median milliseconds of a step; infinite if none was measured."""
        return float(self.step_ms["median"]) if self.step_ms else math.inf

    def took(self, times: Sequence[float], reference: Sequence[float]) -> None:
        """Set the measured seconds of steps, with those of the reference."""
        self._times = list(times)
        self.step_ms = interval([t * 1e3 for t in times])
        self.speedup = ratio(reference, times) if reference else None


class Race:
    """The network, the timed step, and the network's original state.

    Args:
        net: an initialized block. step: one training step with it. inputs: a sample batch.
    """

    clock: Callable[[], float] = staticmethod(time.perf_counter)

    def __init__(self, net: Any, step: Callable[[], None], inputs: tuple[Any, ...]):
        self.net, self.step, self.inputs = net, step, inputs
        self.plain, self._check = capture(net), GradientCheck(net)

    def heat(self, trials: Sequence[Trial], rounds: int, deadline: float, reference: Trial) -> int:
        """Time the trials in turn. Returns the number of rounds.

        Args:
            rounds: the maximum. A reference that is no trial itself runs in the first few.
            deadline: of ``clock``; a round starts only if it would end before.
        """
        running = [t for t in trials if not t.error]
        times: dict[int, list[float]] = {id(t): [] for t in [reference, *running]}
        made = 0
        for number in range(rounds if running else 0):
            both = [reference, *running] if reference not in running and number < REFERENCE_ROUNDS else running
            price = sum(self._repeats(t) * min(t._times) for t in both)
            if self.clock() + price > deadline:
                break
            for trial in in_turn(both, number):
                times[id(trial)].append(self.time(trial))
            made += 1
        if made:
            for trial in [reference, *running]:
                trial.took(times[id(trial)], times[id(reference)])
        return made

    def time(self, trial: Trial) -> float:
        """Seconds of a step of a prepared trial."""
        restore(trial._state)
        repeats = self._repeats(trial)
        if min(trial._times) < SHORT_S:
            self.step()  # warms the caches for this trial
        start = self.clock()
        for _ in range(repeats):
            self.step()
        return (self.clock() - start) / repeats

    def prepare(self, trial: Trial) -> list[float]:
        """The seconds of two steps after one that compiles; [] for a trial with an ``error``.

        A rewritten net with clearly different gradients has failed.
        """
        restore(self.plain)
        before = _rss_mib()
        try:
            apply_rewrites(self.net, trial.rewrites, *self.inputs, verify=False)  # verified before the race
            compile_roots(self.net, SETTINGS[trial.settings])
            seconds = []
            for _ in range(3):
                start = self.clock()
                self.step()
                seconds.append(self.clock() - start)
                if trial.name == "imperative":
                    self._check.note()
            other = self._check.differing() if trial.rewrites else ""
            if other:
                raise GluontuneError(f"the gradient of {other} is not that of the plain network")
        except Exception as error:
            trial.error = first_line(error)
            return []
        trial.compile_s = max(0.0, seconds[0] - min(seconds[1:]))
        trial.memory_mib = max(0.0, _rss_mib() - before)
        trial._state = capture(self.net)
        return seconds[1:]

    def _repeats(self, trial: Trial) -> int:
        return max(1, min(20, int(0.1 / max(1e-4, min(trial._times)))))


def fastest(trials: Iterable[Trial]) -> Trial:
    """The trial with the shortest median step."""
    return min(trials, key=lambda trial: trial.median_ms)


def ratio(mine: Sequence[float], theirs: Sequence[float]) -> Interval:
    """Interval of the ratios in common rounds: how many times as fast the second is."""
    n = min(len(mine), len(theirs))
    return ratio_interval(mine[:n], theirs[:n])


def present_mode(net: Any) -> str:
    """The name of the mode nearest to that of ``net``.

    >>> from gluontune.runtime import mxnet
    >>> net = mxnet().gluon.nn.Dense(1)
    >>> before = present_mode(net)
    >>> net.hybridize(static_alloc=True, static_shape=True)
    >>> before, present_mode(net)
    ('imperative', 'static')
    """
    blocks = topmost_hybrid(net)
    if not blocks or not blocks[0]._active:
        return "imperative"
    flags = {key: value for key, value in blocks[0]._flags if key != "inline_limit"}
    for name, settings in SETTINGS.items():
        wanted = {key: value for key, value in settings.items() if key != "active"}
        if settings["active"] and all(flags.get(k, False) == wanted.get(k, False) for k in {*flags, *wanted}):
            return name
    return "hybridized"


def _rss_mib() -> float:
    return float(psutil.Process().memory_info().rss) / 2**20
