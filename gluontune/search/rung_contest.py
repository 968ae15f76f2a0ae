"""The contest of a rung: its variants beside the best recipe, measured until the question is decided."""

from __future__ import annotations

import functools
import math
import statistics
import time
from collections.abc import Sequence

from gluontune.core import stats
from gluontune.core.events import OnProgress, RungRow, progress
from gluontune.monitor.cpu import OtherLoad
from gluontune.search.budget import Budget
from gluontune.search.judge import LIKELY, MAYBE, TOLD, against, choice, helps
from gluontune.search.measure import BACKGROUND, DISTURBED_PCT, Contender, interleave
from gluontune.search.sequential import LOOKS, Scatter, futility_bound, logs_of_starts, ratio_at_look

TOO_SLOW = 0.25  # of the best recipe's rate: twice below it in the warm-up ends a variant's measurement
_NAIVE_ROUNDS = 4  # the naive rate gives the ladder's height only; verdicts are made against the best
_FEWEST_ALONE = 2  # rounds of the naive script alone: it is measured again beside what is tried first
_SETTLED = 6  # rounds after which the fastest of several helpful variants is not searched any longer
FUTILE = 1.06  # a hurried contest ends when a gain of this much is unlikely
UNCLEAR = 1.2  # the question is unanswered if a gain of this much is still possible when the time is up
_LONG = 3.0  # times a slice: naive takes no part in later contests where its own take longer
_FAR = 0.7  # of the best: variants below it are reported as cut off
_LOOK_S = 0.5  # of sampling the background load before measuring
_HURRY_S = 60.0  # with less time, a contest ends as soon as a gain becomes unlikely
_LONGER = 2.0  # times the time, if a gain is likely but not proven
_STARTS = 4  # at most, from which a gain is measured
_FAR_FASTER = 2.5  # times: more than the best start of one recipe is faster than its worst
_APART = 1.15  # times: a start that differs so much from those before it is measured for longer
_STARTS_S = 1.0  # at least, for starting a process and warming it up
_SHORTER = 0.6  # of the time, under background load: more slices would not make it certain


class Contest:
    """Slices in turn, examined after 4, 6, 9, … rounds; decided variants are measured no further.

    Args:
        best: the recipe to beat; None for the naive rung itself. naive: measured for a few rounds.
        seconds: after the start, at least four rounds; twice as long if a gain is likely but not proven.
        races: whether the fastest wins. If another figure decides, such as the time to an accuracy, each variant is
            measured for six rounds, and only hopeless ones are cut off.
        even_late: whether it goes on after the end of the budget.
        explains: whether ``field`` is ``best`` without a part of it: what that brings is the question.

    ``rounds`` were measured; ``decided``: the question was answered before the time was over.
    """

    def __init__(
        self, host: Rounds, name: str, best: Contender | None, naive: Contender, field: Sequence[Contender],
        seconds: float, races: bool = True, even_late: bool = False, explains: bool = False,
    ):  # fmt: skip
        self.host, self.name, self.best, self.naive, self.field = host, name, best, naive, list(field)
        self.seconds, self.races, self.even_late, self.explains = seconds, races, even_late, explains
        self.rounds, self.decided = 0, False
        self._began = host.budget.spent_s
        self._starting = sum(c.group is None for c in [naive, best, *field] if c is not None)

    @property
    def beside_naive(self) -> bool:
        """Whether the naive script takes part; its slices of a few long steps would take most of the time."""
        return self.best in (None, self.naive) or self.naive.slice_s <= _LONG * self.host.slice_s

    @property
    def _alive(self) -> list[Contender]:
        return [c for c in self.field if c.failure is None and c.cut is None]

    def run(self) -> None:
        naive = self.naive if self.beside_naive else None
        everyone = list({id(c): c for c in (self.best, naive, *self.field) if c is not None}.values())
        for contender in everyone:
            contender.cut, contender.starts, contender.beside = None, [], []
        interleave(
            everyone, rounds=LOOKS[-1], slice_s=self.host.slice_s, on_round=self._is_over, warm_up=self._warm_up,
            playing=self._playing,
        )  # fmt: skip
        self.decided = self.decided or self._futile(UNCLEAR)

    def _is_over(self, number: int, _: int) -> bool:
        self.rounds = number
        rates = {c.label: c.rates[-1] for c in self._alive if c.rates}
        fastest = max(rates, key=lambda label: rates[label], default="")
        detail = f"round {number}: {fastest} {rates.get(fastest, 0):,.0f} samples/s"
        done = min(1.0, (self.host.budget.spent_s - self._began) / max(self.seconds, 1e-6))
        self.host.progress(self.name, "measuring", done, detail, rates.get(fastest))
        self.decided = number in LOOKS and self._look()
        if self.decided or (not self.even_late and self.host.budget.free_s <= 0):
            return True
        return number >= (LOOKS[0] if self.best is not None else _FEWEST_ALONE) and self.is_late(self._likely())

    def is_late(self, likely: bool) -> bool:
        """Whether its time is over, given whether a gain is likely but not proven."""
        return self.host.budget.spent_s - self._began >= (_LONGER if likely else 1.0) * self.seconds

    def update_scatter(self) -> None:
        """Add this contest to the scatter; called after its verdict, which is based on the earlier contests."""
        for contender in self.field:
            if contender is self.naive:
                self.host.scatter.add_single(contender.rates)
            elif contender.failure is None and self.best is not None:
                if contender.beside:
                    self.host.scatter.add_starts(logs_of_starts(contender.rates, contender.beside, contender.starts))
                self.host.scatter.add(contender.rates, self.best.rates)

    def _likely(self) -> bool:
        if self.best is None or not self.best.rates:
            return False
        ratios = [self._ratio(c, self.best) for c in self._alive]
        return any((1 / ratio["median"] if self.explains else ratio["median"]) >= LIKELY for ratio in ratios)

    def _futile(self, gain: float) -> bool:
        best = self.best
        if best is None or self.rounds < LOOKS[0]:
            return False
        return all(futility_bound(c.rates, best.rates, self.host.scatter) < gain for c in self._alive)

    def _ratio(self, contender: Contender, other: Contender) -> stats.Interval:
        return ratio_at_look(contender.rates, other.rates, len(self.field), self.host.scatter)

    def _warm_up(self, everyone: Sequence[Contender]) -> None:
        reference = 0.0
        for contender in everyone:
            rate = contender.warm_up(self.host.slice_s, TOO_SLOW * reference)
            if contender is self.best:
                contender.slice()  # the warm-up of a warm contender returns no rate
                reference = contender.rates[-1] if contender.rates else 0.0
                contender.rates = []
            elif contender in self.field and contender.failure is None and 0 < rate < TOO_SLOW * reference:
                contender.cut = f"cut off while warming up at {rate:,.0f} samples/s, {rate / reference:.2f} × the best"
                contender.rates = [rate]
                contender.close()
        spent = self.host.budget.spent_s
        if self._starting:
            took = (spent - self._began) / self._starting
            self.host.starts_s = max(_STARTS_S, (self.host.starts_s + took) / 2)
        self._began = spent

    def _playing(self, everyone: Sequence[Contender]) -> list[Contender]:
        field = [c for c in everyone if c.cut is None and c.failure is None]
        if self.best is not None and self.best is not self.naive and self.rounds >= _NAIVE_ROUNDS:
            return [c for c in field if c is not self.naive]
        return field

    def _look(self) -> bool:
        """Cut off decided variants. Returns whether the contest is decided."""
        best = self.best
        if best is None or not self.races:
            return self.rounds >= _SETTLED
        alive = self._alive
        if best.failure is not None or not alive:
            return True
        if self.explains:
            low, high = self._ratio(alive[0], best)["ci95"]
            return high < 1 or low > 1 or high <= TOLD * low
        leader = max(alive, key=lambda c: stats.interval(c.rates)["median"])
        for contender in alive:
            against_best = self._ratio(contender, best)
            if against_best["ci95"][1] < 1:
                rate, ratio = stats.interval(contender.rates)["median"], against_best["median"]
                far = f"cut off after {len(contender.rates)} slices at {rate:,.0f} samples/s, {ratio:.2f} × the best"
                contender.cut = far if ratio < _FAR else f"slower than the best ({ratio:.2f} × it)"
            elif contender is not leader and (beside := self._ratio(contender, leader))["ci95"][1] < 1:
                contender.cut = f"slower than {leader.label} ({beside['median']:.2f} × it)"
        alive = self._alive
        ratios = [self._ratio(c, best) for c in alive]
        if all(each["ci95"][1] < MAYBE for each in ratios):
            return True
        if self.seconds < _HURRY_S and self._futile(FUTILE):
            return True
        return any(map(helps, ratios)) and (len(alive) == 1 or self.rounds >= _SETTLED)


class Rounds:
    """Runs the contests of a climb within its budget; ``scatter`` is that of all but the last."""

    def __init__(self, budget: Budget, slice_s: float, tell: OnProgress):
        self.budget, self.slice_s, self.tell = budget, slice_s, tell
        self.scatter = Scatter()
        self._last: Contest | None = None
        self.starts_s = 3.0  # seconds to start a process

    def run(
        self, row: RungRow, best: Contender | None, naive: Contender, field: list[Contender], seconds: float,
        races: bool = True, even_late: bool = False, explains: bool = False,
    ) -> float:  # fmt: skip
        """Measure ``field`` beside ``best`` and ``naive`` for about ``seconds`` after their start.

        ``even_late`` measures even if the budget is spent. Returns the background load, percent of the cores.
        """
        if self._last is not None:
            self._last.update_scatter()
        name = row["name"]
        contest = self._last = Contest(self, name, best, naive, field, seconds, races, even_late, explains)
        self.progress(name, "starting", 0.0, ", ".join(c.label for c in field))
        if not self.budget.wait(lambda: self._disturbed(name)):
            contest.seconds *= _SHORTER
        background = OtherLoad()
        contest.run()
        if best is not None and races and not explains:
            self._from_new_starts(contest, best, row)
        taken = background.read()
        row["contest_decided"] = contest.decided
        if contest.beside_naive:
            row.pop("over_naive", None)
        if taken >= DISTURBED_PCT:
            row["notes"].append(f"{BACKGROUND} {taken:.0f} % of the cores meanwhile, which changes what threads gain")
        return taken

    def _from_new_starts(self, contest: Contest, best: Contender, row: RungRow) -> None:
        """Measure what would be kept from new starts of it and of the best, until it is certain or hopeless."""
        while best.failure is None and (c := choice(contest.field, best, self.scatter)) is not None and not c.starts:
            first = best.rates
            rates, beside, c.starts = c.rates, first[: len(c.rates)], [len(c.rates)]
            ratio = against(c, best, len(contest.field), self.scatter)
            least, gains = 2 if ratio["median"] >= _FAR_FASTER else 3, [ratio["median"]]
            while len(c.starts) < _STARTS and (
                len(c.starts) == 1 or (ratio["median"] >= LIKELY and (len(c.starts) < least or not helps(ratio)))
            ):
                needs = 2 * (self.starts_s + LOOKS[0] * max(c.slice_s, best.slice_s))
                if self.budget.free_s < needs and not contest.even_late:
                    row["notes"].append(f"{c.label}: no time to measure it from {len(c.starts) + 1} starts")
                    break
                self.progress(row["name"], "measuring", 1.0, f"{c.label}: start {len(c.starts) + 1}")
                c.close()
                best.close()
                alike = functools.partial(self._like, ratio["median"], c, best)
                interleave([best, c], rounds=LOOKS[2], slice_s=self.slice_s, on_round=alike)
                if best.failure is not None or c.failure is not None:
                    break
                rates, beside = [*rates, *c.rates], [*beside, *best.rates]
                c.starts.append(len(c.rates))
                c.rates, c.beside = rates, beside
                ratio = against(c, best, len(contest.field), self.scatter)
                gains = [math.exp(statistics.median(logs)) for logs in logs_of_starts(rates, beside, c.starts)]
                least = _STARTS if max(gains) > _APART * min(gains) else least
            c.rates, best.rates = rates, first
            if not helps(ratio):
                contest.decided = ratio["median"] < LIKELY
                row["notes"].append(f"{c.label}, start by start: {', '.join(f'{gain:.2f}×' for gain in gains)}")

    @staticmethod
    def _like(before: float, contender: Contender, best: Contender, number: int, _: int) -> bool:
        """Whether some slices of a new start say what the starts before it said; if not, it gets more of them."""
        if number < LOOKS[0] or len(contender.rates) != len(best.rates):
            return contender.failure is not None or best.failure is not None
        now = statistics.median(a / b for a, b in zip(contender.rates, best.rates))
        return max(now, before) <= _APART * min(now, before)

    def progress(self, name: str, stage: str, done: float, detail: str, rate: float | None = None) -> None:
        self.tell({**progress(stage, done, detail, samples_per_sec=rate), "name": name})

    def _disturbed(self, name: str) -> bool:
        """Whether there is background load while all contenders are paused."""
        background = OtherLoad()
        time.sleep(_LOOK_S)
        taken = background.read()
        if taken >= DISTURBED_PCT:
            self.progress(name, "waiting", 0.0, f"other programs take {taken:.0f} % of the cores")
        return taken >= DISTURBED_PCT
