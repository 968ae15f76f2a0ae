"""The contest of a rung: its variants beside the best recipe, measured for as long as that decides something."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from gluontune import stats
from gluontune.ladder.judge import LIKELY, MAYBE, helps
from gluontune.ladder.measure import Contender
from gluontune.ladder.sequential import LOOKS, Scatter, hardly_above, ratio_at_look

__all__ = ["Contest"]

TOO_SLOW = 0.25  # of the best recipe's rate: twice below it while warming up, and a variant is not measured any further
_NAIVE_ROUNDS = 4  # the naive script tells the height of the ladder; the verdict is made against the best
_SETTLED = 6  # rounds after which it does not matter any more which of the variants that help is the fastest
FUTILE = 1.06  # where so much is unlikely, a contest in a hurry ends
UNCLEAR = 1.2  # where so much is still well possible when the time is up, the question is not answered
_FAR = 0.7  # of the best: what ends so far below is reported as cut off


class Contest:
    """Slices in turn, looked at after 4, 6, 9, … rounds: what is decided is measured no further.

    Args:
        best: the recipe to beat; None where there is none (the naive rung itself).
        naive: measured alongside for the first rounds. field: the variants.
        slice_s: about how long a slice takes, in seconds.
        races: whether the fastest is looked for. Where something else decides, such as the time to an accuracy, each
            is measured for six rounds and none is cut off but the hopeless.
        scatter: of the contests before.
        hurries: whether it ends as soon as a gain worth the time is unlikely.
        time_up: whether the time for this is over, given whether a gain is likely but not proven; four rounds are
            measured all the same, if they can be.
        over: whether all time is over: measuring ends with the round.
        on_start: called when all are warm. on_round: called with the number of the round.

    Attributes:
        rounds: that were measured.
        decided: whether the question was answered, rather than the time used up.
    """

    def __init__(
        self,
        best: Contender | None,
        naive: Contender,
        field: Sequence[Contender],
        *,
        slice_s: float,
        races: bool = True,
        scatter: Scatter,
        hurries: bool = False,
        time_up: Callable[[bool], bool],
        over: Callable[[], bool],
        on_start: Callable[[], None],
        on_round: Callable[[int], None],
    ):
        self.best, self.naive, self.field = best, naive, list(field)
        self.slice_s, self.time_up, self.over, self.on_round = slice_s, time_up, over, on_round
        self.races, self.scatter, self.hurries, self.on_start = races, scatter, hurries, on_start
        self.rounds, self.decided = 0, False

    @property
    def _alive(self) -> list[Contender]:
        return [c for c in self.field if c.failure is None and c.cut is None]

    def run(self) -> None:
        """Start, warm up and measure all; failures and cuts stand with the contenders."""
        everyone = list({id(c): c for c in (self.best, self.naive, *self.field) if c is not None}.values())
        for contender in everyone:
            contender.rates, contender.cut = [], None
            contender.launch()
        self._warm_up(everyone)
        self.on_start()
        while self.rounds < LOOKS[-1]:
            self._round(everyone)
            if self.rounds in LOOKS and self._look():
                self.decided = True
                return
            if self.over() or (self.rounds >= LOOKS[0] and self.time_up(self._likely())):
                break
        self.decided = self._futile(UNCLEAR)

    def teach(self) -> None:
        """Tell the scatter what this contest has shown of it; the verdict is made with what was known before."""
        for contender in self.field:
            if contender is self.naive:
                self.scatter.learn_alone(contender.rates)
            elif contender.failure is None and self.best is not None:
                self.scatter.learn(contender.rates, self.best.rates)

    def _likely(self) -> bool:
        """Whether a variant that is not proven to be faster seems to be."""
        if self.best is None or not self.best.rates:
            return False
        ratios = [self._ratio(c, self.best) for c in self._alive]
        return any(ratio["median"] >= LIKELY for ratio in ratios)

    def _futile(self, gain: float) -> bool:
        """Whether none of the variants is likely to bring so much."""
        best = self.best
        if best is None or self.rounds < LOOKS[0]:
            return False
        return all(hardly_above(c.rates, best.rates, self.scatter) < gain for c in self._alive)

    def _ratio(self, contender: Contender, other: Contender) -> stats.Interval:
        return ratio_at_look(contender.rates, other.rates, len(self.field), self.scatter)

    def _warm_up(self, everyone: Sequence[Contender]) -> None:
        floor = 0.0
        for contender in everyone:
            rate = contender.warm_up(self.slice_s, floor)
            if contender is self.best:
                contender.slice()  # a warm one tells no rate
                floor = TOO_SLOW * contender.rates[-1] if contender.rates else 0.0
                reference = contender.rates[-1] if contender.rates else 0.0
                contender.rates = []
            elif contender in self.field and contender.failure is None and 0 < rate < floor:
                contender.cut = f"cut off while warming up at {rate:,.0f} samples/s, {rate / reference:.2f} × the best"
                contender.rates = [rate]
                contender.close()

    def _round(self, everyone: Sequence[Contender]) -> None:
        field = [c for c in everyone if c.cut is None and c.failure is None]
        if self.best is not None and self.best is not self.naive and self.rounds >= _NAIVE_ROUNDS:
            field = [c for c in field if c is not self.naive]
        for contender in stats.in_turn(field, self.rounds):
            contender.slice()
        self.rounds += 1
        self.on_round(self.rounds)

    def _look(self) -> bool:
        """Cut off what is decided; whether everything is."""
        best = self.best
        if best is None or not self.races:
            return self.rounds >= _SETTLED
        alive = self._alive
        if best.failure is not None or not alive:
            return True
        leader = max(alive, key=lambda c: stats.interval(c.rates)["median"])
        for contender in alive:
            against_best = self._ratio(contender, best)
            if against_best["ci95"][1] < 1:
                contender.cut = _cut(contender, against_best["median"], "the best")
            elif contender is not leader:
                ratio = self._ratio(contender, leader)
                if ratio["ci95"][1] < 1:
                    contender.cut = f"slower than {leader.label} ({ratio['median']:.2f} × it)"
        alive = self._alive
        ratios = [self._ratio(c, best) for c in alive]
        if all(ratio["ci95"][1] < MAYBE for ratio in ratios):
            return True
        if self.hurries and self._futile(FUTILE):
            return True
        return any(map(helps, ratios)) and (len(alive) == 1 or self.rounds >= _SETTLED)


def _cut(contender: Contender, ratio: float, of: str) -> str:
    rate = stats.interval(contender.rates)["median"]
    if ratio >= _FAR:
        return f"slower than {of} ({ratio:.2f} × it)"
    return f"cut off after {len(contender.rates)} slices at {rate:,.0f} samples/s, {ratio:.2f} × {of}"
