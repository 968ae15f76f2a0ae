"""Climbing: each rung measured against the best recipe so far, trained, judged, kept or not."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from gluontune import monitor
from gluontune.core.events import OnLadderEvent, RungRow, rung_row
from gluontune.core.journal import resumable
from gluontune.recipe import Recipe
from gluontune.runtime import doctor
from gluontune.search.accuracy import judge_quality
from gluontune.search.batch_size import Batches
from gluontune.search.budget import QUICK, Budget, Pace
from gluontune.search.explanation import explained, held, over_naive
from gluontune.search.judge import choose, compare, judge, judge_accuracy, next_best
from gluontune.search.measure import Contender
from gluontune.search.parts_alone import compare_counts, note, predict, step_shares
from gluontune.search.proof import finish
from gluontune.search.results_store import ResultsStore
from gluontune.search.revisit import revisit
from gluontune.search.rung import Rung, Site, Variant
from gluontune.search.rung_contest import Rounds
from gluontune.search.rungs import RUNGS
from gluontune.search.trainings import Trainings
from gluontune.training.group import RunFailed

_FACTS = ("num_workers", "loader", "hybridize", "dtype", "batch_size_per_device", "num_devices")
_LEAST_S = 6.0  # free seconds that a rung needs to begin
_PAIRS = 3  # trainings of each that an interval needs
_SLOWER, _BETWEEN_S = 1.1, 4.0  # factor and seconds by which the proof may exceed the slices' prediction


@resumable
def climb(
    recipe: Recipe,
    *,
    out: str | Path | None = None,
    pace: Pace = QUICK,
    budget_s: float | None = None,
    rungs: Iterable[str] | None = None,
    resume: bool = False,
    on_event: OnLadderEvent | None = None,
    time_limit: float = 600.0,
    clock: Callable[[], float] = time.monotonic,
) -> dict[str, Any]:
    """Climb the ladder with one job, within a time, and return the document of ``ladder.json``.

    Time is spent where it decides something: a clear contest ends after four slices of each variant, an unclear one
    after up to 36 (:mod:`gluontune.search.sequential` controls the error); trainings are made where they can change a
    verdict (:mod:`gluontune.search.trainings`). The document names everything that there was no time for.

    Args:
        recipe: the naive script, which the rungs change. Its ``epochs`` are shortened if the budget requires it.
        out: folder for ``ladder.json`` and the rungs' RunResults; written after each rung.
        pace: ``QUICK`` or ``FULL``.
        budget_s: seconds that the climb may take; None takes the pace's.
        rungs: names of the rungs to climb; by default all of this pace. ``naive`` is always climbed.
        resume: go on with an interrupted climb of the same recipe in ``out``; the budget begins anew.
        on_event: called with the events that the live table shows.
        time_limit: seconds after which a silent training process counts as hung.
        clock: seconds that only grow, for tests.

    Raises:
        GluontuneError: the data set cannot be opened, the folder cannot be written, nothing to resume. A failed rung
            is a row, never an exception.

    >>> import gluontune as gt
    >>> naive = gt.Recipe(net="mlp", loader="resident", train_samples=256, val_samples=64)
    >>> found = gt.ladder.climb(naive, rungs=["naive"], budget_s=20)  # all rungs where none is named
    >>> [(rung["name"], rung["status"], rung["kept"]) for rung in found["rungs"]]
    [('naive', 'ran', True)]
    """
    recipe = recipe.override(seconds=None, target_accuracy=None)
    wanted = None if rungs is None else {"naive", *(RUNGS[rung].name for rung in rungs)}
    names = [rung.name for rung in RUNGS if (rung.pace in (None, pace.name) if wanted is None else rung.name in wanted)]
    doctor.must_work()
    results = ResultsStore(recipe, pace.name, Path(out) if out is not None else None, resume, names)
    budget = Budget(pace.budget_s if budget_s is None else budget_s, clock)
    climber = _Climber(recipe, results, pace, budget, names, on_event or (lambda event: None), time_limit)
    try:
        climber.climb()
    except KeyboardInterrupt:
        results.document["complete"] = False
    finally:
        climber.close()
        results.document["budget"] = {"seconds": budget.total_s, "spent_seconds": budget.spent_s}
        results.save()
    climber.tell({"event": "ladder-end", "ladder": results.document})
    return results.document


class _Climber:
    """One climb: the contenders that stay alive from rung to rung, and the results."""

    def __init__(
        self, recipe: Recipe, results: ResultsStore, pace: Pace, budget: Budget, names: list[str], tell: OnLadderEvent,
        time_limit: float,
    ):  # fmt: skip
        self.recipe, self.results, self.pace, self.names, self.tell = recipe, results, pace, names, tell
        self.budget, self.time_limit = budget, time_limit
        self.trainings = Trainings(results, budget, tell, time_limit)
        self.naive = Contender(recipe, "naive", time_limit)
        self.best: Contender | None = None
        self.field: list[Contender] = []
        self.still: list[str] = list(names)
        self.background_pct = 0.0
        self.rounds = Rounds(budget, pace.slice_s, tell)
        self._site: Site | None = None

    def close(self) -> None:
        for contender in [self.naive, self.best, *self.field]:
            if contender is not None:
                contender.close()

    def climb(self) -> None:
        document = self.results.document
        mode, data = self.pace.name, document["dataset"]
        self.tell({"event": "ladder-start", "rungs": self.names, "mode": mode, "dataset": data})
        todo = list(self.names)
        while todo:
            # What was proven together is explained first.
            todo.sort(key=lambda name: name not in ("naive", "together") and not self._held(name))
            name, *todo = todo
            self.still = self._possible([name, *todo])
            row = self.results.finished(name)
            if row is not None:
                self._take_over(row)
                continue
            began = time.monotonic()
            rung = RUNGS[name]
            left = max(0.0, self.budget.left_s)
            self.tell({"event": "rung-start", "name": name, "sentence": rung.sentence, "seconds_left": left})
            row = rung_row(name, rung.sentence)
            try:
                self._rung(rung, row)
                row["finished"] = True
            except RunFailed as failure:
                row.update({"status": "failed", "verdict": "n/a", "kept": False, "error": failure.to_dict()})
                row.update({"reason": str(failure), "finished": True})
            finally:
                row["seconds"] = time.monotonic() - began
                for contender in self.field:
                    if contender is not self.best:
                        contender.close()
                self.field = []
                self.results.enter(row)
            self.tell({"event": "rung-end", "row": row})
        if self.best is not None and self.naive.failure is None:
            if self.best is self.naive:
                self.budget.release_proof()  # nothing to prove yet
            self.best = revisit(self.best, self.naive, self.site, self.trainings, self.rounds)
        self.best = finish(self.naive, self.best, self.site, self.trainings, self.rounds)
        document["complete"] = True

    def _take_over(self, row: RungRow) -> None:
        """A rung from the earlier part of a resumed climb."""
        if row["kept"]:
            assert row["recipe"] is not None, "what was kept has a recipe"
            label = "naive" if row["name"] == "naive" else "best"
            self.best = Contender(Recipe.from_dict(row["recipe"]), label, self.time_limit)
            if label == "naive":  # at the length that fitted into that budget
                self.naive = self.best
        self.tell({"event": "rung-end", "row": row})

    def _rung(self, rung: Rung, row: RungRow) -> None:
        if rung.name == "naive":
            self._naive(row)
            return
        if self.best is not None and self._held(rung.name) and self.budget.free_s >= _LEAST_S:
            self._leave_out(self.best, rung, row)
            return
        base = self.best.recipe if self.best is not None else self.recipe
        reason = rung.requires(base, self.site)
        variants = [] if reason else rung.variants(base, self.site)
        if variants and self.budget.free_s < _LEAST_S:
            variants, reason = [], "not measured: the budget was used up by the rungs before it"
        if not variants:
            row.update({"status": "skipped", "reason": reason or "nothing to change"})
            return
        variants = self._affordable(row, variants)
        self.field = [Contender(base.override(**v.changes), v.label, self.time_limit) for v in variants]
        self.rounds.progress(row["name"], "predicting", 0.0, ", ".join(c.label for c in self.field))
        guesses = predict(rung.name, self.best, self.field, self.site, self.pace.slice_s)
        self._measure(row, self.field, races=not rung.by_time)
        chosen = compare(row, self.field, variants, self.naive, self.best, self.rounds.scatter)
        note(row, guesses)
        if chosen is None:
            raise next(c.failure for c in self.field if c.failure is not None)
        judge(row, self.background_pct, has_best=self.best is not None)
        if rung.by_time and self.best is not None and self.results.kept_accuracies():
            chosen = self._by_time_to_accuracy(row, chosen)
            note(row, guesses)
        else:
            chosen = self._checked(row, chosen, guesses)
        if rung.name == "multi-device" and self.best is not None:
            self._count_devices(row)
        if row["kept"]:
            if self.best is not None and self.best is not self.naive:
                self.best.close()
            self.best = chosen
            self._reserve()

    def _held(self, name: str) -> dict[str, Any]:
        """The fields, with their naive values, in which the best recipe has a rung that was proven together."""
        return held(self.results, RUNGS[name], self.best.recipe, self.naive.recipe) if self.best is not None else {}

    def _leave_out(self, best: Contender, rung: Rung, row: RungRow) -> None:
        """Explain a rung of what was proven together: the best recipe beside the same without it."""
        back = self._held(rung.name)
        without = Contender(best.recipe.override(**back), f"without {rung.name}", self.time_limit)
        self.field = [without]
        self._measure(row, self.field)
        if best.failure is not None or without.failure is not None or not without.rates:
            raise best.failure or without.failure or RunFailed("NotMeasured", "it has no slice", "measuring")
        compare(row, self.field, [Variant("without it", back)], self.naive, best, self.rounds.scatter)
        if not explained(row, best, back, self.results, self.background_pct):
            row["recipe"] = without.recipe.to_dict()
            if best is not self.naive:
                best.close()
            self.best = without

    def _affordable(self, row: RungRow, variants: list[Variant]) -> list[Variant]:
        """The variants that there is time to start; the row names the others."""
        most = self.budget.variants(row["name"], self.still, self.rounds.starts_s)
        kept = sorted(variants, key=lambda variant: variant.rank)[:most]
        left = [variant.label for variant in variants if variant not in kept]
        if left:
            row["notes"].append(f"no time for {', '.join(left)}: a larger --budget tries them, too")
        return [variant for variant in variants if variant in kept]

    def _possible(self, names: list[str]) -> list[str]:
        """The rungs that still need time: those that this machine or job can run."""
        if self.best is None:
            return names
        base = self.best.recipe
        return [name for name in names if RUNGS[name].requires(base, self.site) is None]

    def _reserve(self) -> None:
        """Reserve time for the proof: three trainings of each, and some seconds between them."""
        assert self.best is not None
        needs = self.trainings.seconds_of(self.naive) + self.trainings.seconds_of(self.best)
        self.budget.reserve(_PAIRS * (_SLOWER * needs + _BETWEEN_S))

    def _checked(self, row: RungRow, chosen: Contender, guesses: Any) -> Contender:
        """The fastest variant that keeps its accuracy."""
        while True:
            lost = judge_accuracy(row, self.trainings.check(row, chosen, self.best))
            lost = lost or judge_quality(row, self.results.document["rungs"])
            another = next_best(row, self.field) if lost and row["measurable"] else None
            if another is None:
                return chosen
            chosen = another
            choose(row, chosen, self.field, self.naive)
            note(row, guesses)
            judge(row, self.background_pct, has_best=True)

    def _by_time_to_accuracy(self, row: RungRow, fastest: Contender) -> Contender:
        assert self.best is not None
        search = Batches(row, self.best, self.naive, self.field, self.trainings, self.rounds)
        row["measurable"] = True
        winner = search.search()
        search.enter()
        self.field += [c for c in search.added if c not in self.field]
        for entry in row["variants"] if winner is None else ():
            entry["chosen"] = False
        return winner or fastest

    def _count_devices(self, row: RungRow) -> None:
        """Enter the best number of devices, and the parts of the others' steps."""
        assert self.best is not None
        self.rounds.progress(row["name"], "measuring", 1.0, "exchange and loader alone")
        shares = {c.label: step_shares(c) for c in self.field if c.failure is None}
        found = compare_counts(self.best, self.field, shares, bool(self.site.gpus))
        if found is not None:
            row["devices"] = found
            row["notes"] = [*row["notes"], found["sentence"]]

    def _naive(self, row: RungRow) -> None:
        self._measure(row, [self.naive])
        if self.naive.failure is not None:
            raise self.naive.failure
        self.trainings.probe(self.naive)
        self.naive = self.trainings.fit_length(row, self.naive)
        self.recipe = self.naive.recipe
        compare(row, [self.naive], RUNGS["naive"].variants(self.recipe, self.site), self.naive, None)
        self.trainings.check(row, self.naive, None)
        row.update({"status": "ran", "verdict": "n/a", "kept": True, "reason": None})
        self.best = self.naive
        self._reserve()
        self.results.document["verdict"] = self._what_limits(row)

    def _what_limits(self, row: RungRow) -> dict[str, Any]:
        """The monitor's verdict on the naive training."""
        facts = {name: getattr(self.recipe, name) for name in _FACTS}
        device = "gpu" if self.site.gpus and self.recipe.devices != "cpu" else "cpu"
        phases = {**row["phases"], "phases_pct": row["phases_pct"]}
        facts.update(usable_cores=self.site.cores, device=device)
        return monitor.verdict(phases, row["utilization"], facts).to_dict()

    def _measure(self, row: RungRow, field: list[Contender], races: bool = True) -> None:
        best = None if field == [self.naive] else self.best
        if best is not None:
            row["over_naive"] = over_naive(self.results)  # the contest takes it out again if naive takes part
        starting = sum(c.group is None for c in field) * self.rounds.starts_s
        seconds = self.budget.slices_s(row["name"], self.still, starting)
        self.background_pct = self.rounds.run(row, best, self.naive, field, seconds, races=races)

    @property
    def site(self) -> Site:
        """The machine and the job, as the naive process reported them; guessed if it never started."""
        if self._site is None:
            self.naive.launch()  # a resumed climb has no naive process yet
            self.naive.warm_up(self.pace.slice_s)
            ready = self.naive.group.ready[0] if self.naive.group is not None else {}
            self._site = Site.of(ready, self.results.document["machine"], self.recipe)
        return self._site
