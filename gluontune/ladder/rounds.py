"""Rounds of slices beside what others do to the machine: wait for calm, measure, say how much others took."""

from __future__ import annotations

import time

from gluontune.documents import RungRow
from gluontune.events import OnProgress, progress
from gluontune.ladder.budget import Budget
from gluontune.ladder.contest import Contest
from gluontune.ladder.measure import DISTURBED_PCT, OTHERS, Contender
from gluontune.ladder.sequential import Scatter
from gluontune.monitor.others import OtherLoad

__all__ = ["Rounds"]

_LOOK_S = 0.5  # at what others do, before measuring
_HURRY_S = 60.0  # with less, a contest ends when a gain becomes unlikely; with more, it is looked at more closely
_LONGER = 2.0  # times the time, where a gain is likely but not proven
_STARTS_S = 1.0  # at least, for starting a process and warming it up
_SHORTER = 0.6  # of the time, where others disturb: more slices would not make it certain


class Rounds:
    """Runs the contests of a climb within its budget.

    Args:
        budget: of the climb. slice_s: about how long a slice takes, in seconds.
        tell: takes the events of the live table.

    Attributes:
        scatter: of the contests before the last. starts_s: seconds that starting a process takes.
    """

    def __init__(self, budget: Budget, slice_s: float, tell: OnProgress):
        self.budget, self.slice_s, self.tell = budget, slice_s, tell
        self.scatter = Scatter()
        self._last: Contest | None = None
        self.starts_s = 3.0

    def run(
        self,
        row: RungRow,
        best: Contender | None,
        naive: Contender,
        field: list[Contender],
        seconds: float,
        races: bool = True,
        even_late: bool = False,
    ) -> float:
        """Measure ``field`` beside ``best`` and ``naive`` for about ``seconds``, starting them not counted.

        The row gets ``contest_decided``, and a note where others disturbed.

        Args:
            even_late: measure for so long even where the budget is spent.

        Returns:
            percent of the cores that others took meanwhile.
        """
        if self._last is not None:
            self._last.teach()
        name, began = row["name"], self.budget.spent_s
        starting = sum(c.group is None for c in [naive, best, *field] if c is not None)
        self.progress(name, "starting", 0.0, ", ".join(c.label for c in field))
        if not self.budget.wait(lambda: self._disturbed(name)):
            seconds *= _SHORTER

        def on_round(number: int) -> None:
            rates = {c.label: c.rates[-1] for c in field if c.rates and c.failure is None and c.cut is None}
            fastest = max(rates, key=lambda label: rates[label], default="")
            detail = f"round {number}: {fastest} {rates.get(fastest, 0):,.0f} samples/s"
            done = min(1.0, (self.budget.spent_s - began) / max(seconds, 1e-6))
            self.progress(name, "measuring", done, detail, rates.get(fastest))

        others = OtherLoad()

        def on_start() -> None:
            nonlocal began
            if starting:
                took = (self.budget.spent_s - began) / starting
                self.starts_s = max(_STARTS_S, (self.starts_s + took) / 2)
            began = self.budget.spent_s

        contest = Contest(
            best,
            naive,
            field,
            slice_s=self.slice_s,
            races=races,
            scatter=self.scatter,
            hurries=seconds < _HURRY_S,
            time_up=lambda likely: self.budget.spent_s - began >= (_LONGER if likely else 1.0) * seconds,
            over=lambda: not even_late and self.budget.free_s <= 0,
            on_start=on_start,
            on_round=on_round,
        )
        self._last = contest
        contest.run()
        taken = others.read()
        row["contest_decided"] = contest.decided
        if taken >= DISTURBED_PCT:
            row["notes"].append(f"{OTHERS} {taken:.0f} % of the cores meanwhile, which changes what threads gain")
        return taken

    def progress(self, name: str, stage: str, done: float, detail: str, rate: float | None = None) -> None:
        """Tell the live table how far a rung is."""
        self.tell({**progress(stage, done, detail, samples_per_sec=rate), "name": name})

    def _disturbed(self, name: str) -> bool:
        """Whether others work on this machine just now, while all that is ours is paused."""
        others = OtherLoad()
        time.sleep(_LOOK_S)
        taken = others.read()
        if taken >= DISTURBED_PCT:
            self.progress(name, "waiting", 0.0, f"other programs take {taken:.0f} % of the cores")
        return taken >= DISTURBED_PCT
