"""The loop of every climb: rung after rung, each measured beside the best so far, kept or not."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, Generic

from gluontune.core.events import OnLadderEvent, RungRow, rung_row
from gluontune.recipe.registry import Registry
from gluontune.search.budget import Budget, Pace
from gluontune.search.judge import C, choose, compare, judge, next_best
from gluontune.search.results_store import ResultsStore
from gluontune.search.rung import Rung, Variant
from gluontune.search.rung_contest import Rounds
from gluontune.training.group import RunFailed

LEAST_S = 6.0  # free seconds that a rung needs to begin


class Climber(Generic[C]):
    """One climb: the contenders that stay alive from rung to rung, and the results.

    A subclass has the ``rungs`` to climb, the ``site`` from which they choose their variants, and makes contenders.
    ``passes`` tells whether a chosen variant computes what it should; if not, its row is no longer kept.
    """

    rungs: Registry[Rung]
    contender: Callable[[Any, str], C]
    passes: Callable[[RungRow, C], bool]
    site: Any

    def __init__(
        self, start: Any, results: ResultsStore, pace: Pace, budget: Budget, names: list[str], tell: OnLadderEvent,
        time_limit: float,
    ):  # fmt: skip
        self.results, self.pace, self.budget, self.names, self.tell = results, pace, budget, names, tell
        self.time_limit = time_limit
        self.naive: C = self.contender(start, "naive")
        self.best: C | None = None
        self.field: list[C] = []
        self.still: list[str] = list(names)
        self.background_pct = 0.0
        self.rounds = Rounds(budget, pace.slice_s, tell)

    def close(self) -> None:
        for contender in (self.naive, self.best, *self.field):
            if contender is not None:
                contender.close()

    def run(self) -> dict[str, Any]:
        try:
            with self.results.under_way():
                self.climb()
        finally:
            self.close()
            self.results.document["budget"] = {"seconds": self.budget.total_s, "spent_seconds": self.budget.spent_s}
            self.results.save()
        self.tell({"event": "ladder-end", "ladder": self.results.document})
        return self.results.document

    def climb(self) -> None:
        document = self.results.document
        mode, data = document["mode"], document["dataset"]
        self.tell({"event": "ladder-start", "rungs": self.names, "mode": mode, "dataset": data})
        todo = list(self.names)
        while todo:
            name, *todo = self.in_order(todo)
            self.still = [name, *todo]  # what still needs time: the rungs that this machine or job can run
            if self.best is not None:
                base = self.best.recipe
                self.still = [each for each in self.still if self.rungs[each].offers(base, self.site)[1] is None]
            if (row := self.results.finished(name)) is not None:
                if row["kept"]:
                    recipe = self.naive.recipe.from_dict(row["recipe"] or {})
                    self.best = self.contender(recipe, "naive" if name == "naive" else "best")
                    if name == "naive":  # at the length that fitted into that budget
                        self.naive = self.best
                self.tell({"event": "rung-end", "row": row})
                continue
            began, rung = time.monotonic(), self.rungs[name]
            left = max(0.0, self.budget.left_s)
            self.tell({"event": "rung-start", "name": name, "sentence": rung.sentence, "seconds_left": left})
            row = rung_row(name, rung.sentence)
            try:
                self.climb_rung(rung, row)
                row["finished"] = True
            except RunFailed as failure:
                self.failed(row, failure)
            finally:
                row["seconds"] = time.monotonic() - began
                for contender in self.field:
                    if contender is not self.best:
                        contender.close()
                self.field = []
                self.results.enter(row)
            self.tell({"event": "rung-end", "row": row})

    def in_order(self, names: list[str]) -> list[str]:
        return names

    def failed(self, row: RungRow, failure: RunFailed) -> None:
        row.update({"status": "failed", "verdict": "n/a", "kept": False, "error": failure.to_dict()})
        row.update({"reason": str(failure), "finished": True})

    def climb_rung(self, rung: Rung, row: RungRow) -> None:
        """Measure the variants of a rung, judge them, and go on from the best one."""
        base = (self.best or self.naive).recipe
        variants, reason = rung.offers(base, self.site)
        if variants and rung.name != "naive" and self.budget.free_s < LEAST_S:
            variants, reason = [], "not measured: the budget was used up by the rungs before it"
        if not variants:
            row.update({"status": "skipped", "reason": reason or "nothing to change"})
            return
        variants = self._affordable(row, variants)
        first = self.best is None and rung.name == "naive"
        self.field = [self.naive] if first else [self.contender(base.override(**v.changes), v.label) for v in variants]
        self.before(rung)
        self.measure(row, self.field, races=not rung.by_time)
        chosen = self.compared(row, variants)
        judge(row, self.background_pct, has_best=self.best is not None)
        chosen = self.checked(rung, row, chosen)
        if row["kept"]:
            if self.best is not None and self.best is not self.naive:
                self.best.close()
            self.best = chosen

    def before(self, rung: Rung) -> None:
        """Called before a rung is measured; :meth:`entered` whenever a variant has become the row's."""

    def entered(self, row: RungRow) -> None: ...

    def compared(self, row: RungRow, variants: list[Variant]) -> C:
        """The contender to go on with, after ``row`` has the figures of all; RunFailed if none ran."""
        chosen = compare(row, self.field, variants, self.naive, self.best, self.rounds.scatter)
        self.entered(row)
        if chosen is None:
            raise next(c.failure for c in self.field if c.failure is not None)
        return chosen

    def checked(self, rung: Rung, row: RungRow, chosen: C) -> C:
        """The fastest variant that passes."""
        while not self.passes(row, chosen):
            another = next_best(row, self.field) if row["measurable"] else None
            if another is None:
                return chosen
            chosen = another
            choose(row, chosen, self.field, self.naive)
            self.entered(row)
            judge(row, self.background_pct, has_best=True)
        return chosen

    def _affordable(self, row: RungRow, variants: list[Variant]) -> list[Variant]:
        """The variants that there is time to start; the row names the others."""
        most = self.budget.variants(row["name"], self.still, self.rounds.starts_s)
        kept = sorted(variants, key=lambda variant: variant.rank)[:most]
        if left := [variant.label for variant in variants if variant not in kept]:
            row["notes"].append(f"no time for {', '.join(left)}: a larger --budget tries them, too")
        return [variant for variant in variants if variant in kept]

    def measure(self, row: RungRow, field: list[C], races: bool = True, explains: bool = False) -> None:
        best = None if field == [self.naive] else self.best
        if best is not None:
            row["over_naive"] = self.results.over_naive()  # the contest takes it out again if naive takes part
        starting = sum(c.group is None for c in field) * self.rounds.starts_s
        seconds = self.budget.slices_s(row["name"], self.still, starting)
        self.background_pct = self.rounds.run(row, best, self.naive, list(field), seconds, races, explains=explains)
