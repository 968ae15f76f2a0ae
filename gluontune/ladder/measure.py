"""Contenders, measured in turn: slices of real training, round by round, each alone on the machine."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Protocol, TypeVar

from gluontune.events import OnProgress
from gluontune.monitor.others import OtherLoad
from gluontune.recipe import Recipe
from gluontune.result import RunResult
from gluontune.stats import in_turn
from gluontune.train import Group, RunFailed, drive

__all__ = ["Contender", "Turns", "interleave"]


class Turns(Protocol):
    """What can be measured in turn: anything that is started once, warmed up, and then gives its slices."""

    rates: list[float]

    @property
    def failure(self) -> Exception | None: ...

    def launch(self) -> None: ...

    def warm_up(self, slice_s: float) -> Any: ...

    def slice(self) -> None: ...


T = TypeVar("T", bound=Turns)
_LONG_STEP_S = 0.3
DISTURBED_PCT = 10.0  # of the usable cores, taken by others: two training threads on two cores then lose a half
OTHERS = "other programs took"  # how a sentence about them begins


class Contender:
    """A recipe in processes of its own, kept and paused between its turns.

    Args:
        recipe: what it trains.
        label: how the report calls it.
        time_limit: seconds after which a silent process counts as hung.

    Attributes:
        rates: images a second of each of its slices in the current comparison.
        failure: why it could not be measured, or None.
        cut: why it was given no more slices, or None; it was measured until then.
    """

    def __init__(self, recipe: Recipe, label: str, time_limit: float = 600.0):
        self.recipe, self.label, self.time_limit = recipe, label, time_limit
        self.rates: list[float] = []
        self.failure: RunFailed | None = None
        self.cut: str | None = None
        self.group: Group | None = None
        self._steps, self._step_s, self._warm = 1, 0.0, False

    def launch(self) -> None:
        """Start the processes, unless they are there, without waiting for them."""
        if self.group is None and self.failure is None:
            self._warm = False
            with self.guarded():
                self.group = Group(self.recipe, time_limit=self.time_limit, wait=False)

    def warm_up(self, slice_s: float, too_slow: float = 0.0) -> float:
        """Two steps for compilation and caches, then find how many fill a slice.

        Args:
            too_slow: samples a second; what stays below, twice, is not warmed up any further.

        Returns:
            samples a second of the last steps; 0 where there is nothing to warm up.
        """
        group = self.group
        if group is None or self._warm:
            return 0.0
        with self.guarded():
            group.wait()
            group.steps(2)
            seen = group.steps(1)
            if too_slow and seen["samples"] / seen["seconds"] < too_slow:
                seen = group.steps(1)
            elif seen["seconds"] < slice_s:
                for _ in range(2):  # the first estimate still holds some warming up
                    self._steps = max(1, round(slice_s / max(seen["seconds"], 1e-6) * seen["count"]))
                    seen = group.steps(self._steps)
            self._step_s = seen["seconds"] / seen["count"]
            group.pause()
            self._warm = True
            return seen["samples"] / seen["seconds"]
        return 0.0

    def train(self, result: RunResult, on_event: OnProgress | None = None) -> None:
        """The recipe's whole training from its seeded start, into ``result``; paused again afterwards.

        Ranks behind a parameter server begin in fresh processes, because it cannot forget.
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
        """The same recipe with a training of another length, in the same processes: this one has none any more."""
        other = Contender(self.recipe.override(epochs=epochs), label, self.time_limit)
        other.rates, other.failure, other.cut = self.rates, self.failure, self.cut
        self.hand_to(other)
        return other

    def hand_to(self, other: Contender) -> None:
        """Give the processes, which differ in the length of a training at most, to another contender."""
        other.group, self.group = self.group, None
        other._steps, other._step_s, other._warm = self._steps, self._step_s, self._warm

    @contextlib.contextmanager
    def guarded(self) -> Iterator[None]:
        """Turn a failure of the processes into a finding about this contender."""
        try:
            yield
        except RunFailed as failure:
            self.failure = failure
            self.close()

    def slice(self) -> None:
        """One turn: an untimed step to wake up, then a timed slice."""
        group = self.group
        if group is None:
            return
        with self.guarded():
            group.resume()
            if self._step_s < _LONG_STEP_S:  # waking up is then a part of it that counts
                group.steps(1)
            seen = group.steps(self._steps)
            group.pause()
            self.rates.append(seen["samples"] / seen["seconds"])

    def close(self) -> None:
        if self.group is not None:
            self.group.close()
            self.group = None


def interleave(
    contenders: Iterable[T],
    *,
    rounds: int,
    slice_s: float,
    on_round: Callable[[int, int], None] | None = None,
    on_disturbed: Callable[[str], None] | None = None,
) -> list[T]:
    """Measure contenders in turn, ``rounds`` times over; the order turns with each round.

    A disturbance of the machine so falls on all alike, and ratios within a round mean something where
    absolute times do not. Failed contenders carry their ``failure``; the others go on.

    Args:
        rounds: slices of each contender.
        slice_s: about how long a slice takes, in seconds.
        on_round: called with ``(round, rounds)``.
        on_disturbed: called at the end with a sentence if other programs took a tenth of the cores or more: threads
            that wait for each other then lose much more than that.

    Returns:
        those that were measured in every round.
    """
    field = list(contenders)
    for contender in field:
        contender.rates = []
        contender.launch()
    for contender in field:
        contender.warm_up(slice_s)
    others = OtherLoad() if on_disturbed is not None else None
    for number in range(rounds):
        for contender in in_turn(field, number):
            contender.slice()
        if on_round is not None:
            on_round(number + 1, rounds)
    if others is not None and on_disturbed is not None and (taken := others.read()) >= DISTURBED_PCT:
        on_disturbed(
            f"{OTHERS} {taken:.0f} % of the cores while this was measured, which changes what threads gain: "
            "repeat it on a machine that does nothing else"
        )
    return [c for c in field if c.failure is None and len(c.rates) == rounds]
