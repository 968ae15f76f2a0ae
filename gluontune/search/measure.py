"""Contenders, measured in turn: slices of real training, round by round, each alone on the machine."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Protocol, TypeVar, cast

from gluontune.core.events import OnProgress
from gluontune.core.stats import in_turn
from gluontune.monitor.cpu import OtherLoad
from gluontune.recipe import Recipe
from gluontune.recipe.result import RunResult
from gluontune.training.group import Group, RunFailed
from gluontune.training.loop import drive
from gluontune.training.starting import ScriptRun, ScriptSite, log_name


class Turns(Protocol):
    """Anything that can be started, warmed up and then measured slice by slice."""

    rates: list[float]

    @property
    def failure(self) -> Exception | None: ...

    def launch(self) -> None: ...

    def warm_up(self, slice_s: float) -> Any: ...

    def slice(self) -> None: ...

    def close(self) -> None: ...


T = TypeVar("T", bound=Turns)
A = TypeVar("A")
STARTS = 3  # of each contender, in a comparison that has the time for them
_LONG_STEP_S = 0.3
DISTURBED_PCT = 10.0  # background load, of the usable cores: it halves the speed of two training threads on two cores
BACKGROUND = "other programs took"  # the begin of each note about background load


class Contender:
    """A recipe in its own processes, which are paused between its turns.

    Attributes:
        rates: images a second of each of its slices in the current comparison.
        failure: the reason why it could not be measured, or None.
        cut: the reason why it got no more slices, or None; it was measured until then.
        starts: slices in ``rates`` of each start of its processes. beside: rates of the best beside them, if several.
    """

    def __init__(self, recipe: Recipe, label: str, time_limit: float = 600.0):
        self.recipe, self.label, self.time_limit = recipe, label, time_limit
        self.rates: list[float] = []
        self.starts: list[int] = []
        self.beside: list[float] = []
        self.failure: RunFailed | None = None
        self.cut: str | None = None
        self.group: Group | None = None
        self._steps, self.step_s, self._warm = 1, 0.0, False

    def launch(self) -> None:
        if self.group is None and self.failure is None:
            self._warm = False
            with self.guarded():
                self.group = self.start()

    def start(self) -> Group:
        return Group(self.recipe, time_limit=self.time_limit, wait=False)

    def warm_up(self, slice_s: float, too_slow: float = 0.0) -> float:
        """The last rate, or 0; then it is known how many steps fill a slice.

        Twice below ``too_slow`` samples a second ends the warm-up.
        """
        group = self.group
        if group is None or self._warm:
            return 0.0
        with self.guarded():
            group.wait()
            rate = self.first_rate(group, slice_s, too_slow)
            group.pause()
            self._warm = True
            return rate
        return 0.0

    def first_rate(self, group: Group, slice_s: float, too_slow: float) -> float:
        group.steps(2)  # compilation and caches
        seen = group.steps(1)
        if too_slow and seen["samples"] / seen["seconds"] < too_slow:
            seen = group.steps(1)
        elif seen["seconds"] < slice_s:
            for _ in range(2):  # the first estimate contains some of the warm-up
                self._steps = max(1, round(slice_s / max(seen["seconds"], 1e-6) * seen["count"]))
                seen = group.steps(self._steps)
        self.step_s = seen["seconds"] / seen["count"]
        return seen["samples"] / seen["seconds"]

    def train(self, result: RunResult, on_event: OnProgress | None = None) -> None:
        """The recipe's whole training from its seeded start, into ``result``; paused again afterwards.

        Ranks behind a parameter server begin in fresh processes, because the server cannot be reset.
        """
        group = self.group
        if group is None:
            raise self.failure or RunFailed("Closed", "the contender has ended", "training")
        if group.world > 1 and self.recipe.engine != "shared-memory":
            group.close()
            group = self.group = Group(self.recipe, time_limit=self.time_limit)
        group.resume()
        if group.recipe.epochs != self.recipe.epochs:
            group.reset(self.recipe.epochs)
        drive(group, result, on_event)
        group.pause()

    def of_length(self, epochs: float, label: str) -> Contender:
        """The same recipe with a training of another length; it takes over the processes."""
        other = Contender(self.recipe.override(epochs=epochs), label, self.time_limit)
        other.rates, other.failure, other.cut = self.rates, self.failure, self.cut
        self.hand_to(other)
        return other

    def hand_to(self, other: Contender) -> None:
        """Give the processes, which differ in the length of a training at most, to another contender."""
        other.group, self.group = self.group, None
        other._steps, other.step_s, other._warm = self._steps, self.step_s, self._warm

    @contextlib.contextmanager
    def guarded(self) -> Iterator[None]:
        try:
            yield
        except RunFailed as failure:
            self.failure = failure
            self.close()

    def ask(self, work: Callable[[Group], A]) -> A | None:
        """The result of ``work`` on its processes, which are resumed for it; None if there are none, or they fail."""
        if self.group is None:
            return None
        with self.guarded():
            self.group.resume()
            found = work(self.group)
            self.group.pause()
            return found
        return None

    def slice(self) -> None:
        """One turn: an untimed step to wake up, then a timed slice."""

        def turn(group: Group) -> Mapping[str, Any]:
            if self.step_s < _LONG_STEP_S:  # waking up would be a large part of the slice
                group.steps(1)
            return group.steps(self._steps)

        if seen := self.ask(turn):
            self.rates.append(seen["samples"] / seen["seconds"])

    @property
    def seen(self) -> Mapping[str, Any]:
        """What its first process reported when it was ready; empty if there is none."""
        return self.group.ready[0] if self.group is not None and self.group.ready else {}

    @property
    def slice_s(self) -> float:
        return self._steps * self.step_s

    def close(self) -> None:
        if self.group is not None:
            self.group.close()
            self.group = None


class ScriptContender(Contender):
    """A way to run a script, in a process of its own, paused between its turns; ``logs``: the folder of its output."""

    def __init__(self, run: ScriptRun, label: str, time_limit: float, logs: Path | None):
        super().__init__(cast(Any, run), label, time_limit)
        self.run, self._logs = run, logs
        self.losses: list[float | None] = []
        self.at = 0  # the script's step that it has done last

    def start(self) -> Group:
        site = functools.partial(ScriptSite, log=self._logs / log_name(self.label) if self._logs else None)
        return Group(cast(Any, self.run), time_limit=self.time_limit, wait=False, site=site)

    def first_rate(self, group: Group, slice_s: float, too_slow: float) -> float:
        """The process has taken some steps before it is ready: one slice more, unless a step is as long."""
        self.losses, self.step_s = self.seen["losses"], max(self.seen["step_s"], 1e-6)
        rate: float = self.seen["samples_per_step"] / self.step_s
        self._steps, self.at = max(1, round(slice_s / self.step_s)), self.seen["steps"]
        if self._steps > 1 or rate < too_slow:
            seen = group.steps(self._steps)
            self.at = int(seen["at"])
            self.step_s, rate = seen["seconds"] / seen["count"], seen["samples"] / seen["seconds"]
            self._steps = max(1, round(slice_s / self.step_s))
        return rate

    def keep_step_with(self, other: ScriptContender) -> None:
        """Slices of as many steps as the other's, which then are the same work if both begin at the same step."""
        self._steps, self.step_s = other._steps, other.step_s

    def go_to(self, step: int) -> None:
        """Train up to a step of the script; where its end comes before that, up to the same step of its next start."""
        for _ in range(3):
            if self.at < step and (seen := self.ask(lambda group: group.steps(step - self.at))):
                self.at = int(seen["at"])


def interleave(
    contenders: Iterable[T], *, rounds: int, slice_s: float, on_round: Callable[[int, int], object] | None = None,
    on_disturbed: Callable[[str], None] | None = None, warm_up: Callable[[list[T]], None] | None = None,
    playing: Callable[[list[T]], list[T]] = lambda field: field, starts: int = 1,
) -> list[T]:  # fmt: skip
    """Measure contenders in turn, ``rounds`` times; the order rotates with each round.

    A disturbance of the machine then affects all alike: ratios within a round are valid where absolute times are
    not. Failed contenders carry their ``failure``; the others go on. Returns those that were measured in every round.

    Args:
        on_round: called with ``(round, rounds)``; True ends the contest.
        on_disturbed: called at the end with a sentence if the background load was a tenth of the cores or more:
            threads that wait for each other lose much more than that.
        warm_up: warms all up after their start, in place of each by itself. playing: the contenders of the next round.
        starts: of each contender's processes, over the rounds: where a start places its memory is a part of its speed.
    """
    field = list(contenders)
    for contender in field:
        contender.rates = []
        contender.launch()
    if warm_up is not None:
        warm_up(field)
    for contender in field if warm_up is None else ():
        contender.warm_up(slice_s)
    background = OtherLoad() if on_disturbed is not None else None
    for number in range(rounds):
        if number and number * starts // rounds > (number - 1) * starts // rounds:
            start_anew(playing(field), slice_s)
        for contender in in_turn(playing(field), number):
            contender.slice()
        if on_round is not None and on_round(number + 1, rounds) is True:
            break
    if background is not None and on_disturbed is not None and (taken := background.read()) >= DISTURBED_PCT:
        on_disturbed(
            f"{BACKGROUND} {taken:.0f} % of the cores while this was measured, which changes what threads gain: "
            "repeat it on a machine that does nothing else"
        )
    return [c for c in field if c.failure is None and len(c.rates) == rounds]


def start_anew(field: Iterable[Turns], slice_s: float) -> None:
    """Fresh processes for all that have not failed, warmed up."""
    field = [contender for contender in field if contender.failure is None]
    for contender in field:
        contender.close()
        contender.launch()
    for contender in field:
        contender.warm_up(slice_s)
