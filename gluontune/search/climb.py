"""The climb with a recipe: each rung measured beside the best one so far, trained, judged, kept or not."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from gluontune import monitor
from gluontune.core import stats
from gluontune.core.events import Guess, OnLadderEvent, RungRow, VariantRow
from gluontune.core.journal import resumable
from gluontune.recipe import Recipe
from gluontune.runtime import doctor
from gluontune.search.batches import Batches
from gluontune.search.budget import QUICK, Budget, Pace
from gluontune.search.climber import LEAST_S, Climber
from gluontune.search.judge import TOLD, WORTH, compare, judge, judge_accuracy, judge_quality
from gluontune.search.measure import Contender
from gluontune.search.parts_alone import compare_counts, predict, step_shares
from gluontune.search.proof import finish
from gluontune.search.results_store import ResultsStore
from gluontune.search.revisit import revisit
from gluontune.search.rung import Rung, Site, Variant
from gluontune.search.rungs import RUNGS
from gluontune.search.study import dataset_facts
from gluontune.search.trainings import Trainings
from gluontune.training.group import RunFailed

_FACTS = ("num_workers", "loader", "hybridize", "dtype", "batch_size_per_device", "num_devices")
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
        pace: ``QUICK`` or ``FULL``. budget_s: seconds that the climb may take; None takes the pace's.
        rungs: names of the rungs to climb; by default all of this pace. ``naive`` is always climbed.
        resume: go on with an interrupted climb of the same recipe in ``out``; the budget begins anew.
        on_event: called with the events that the live table shows. clock: seconds that only grow, for tests.
        time_limit: seconds after which a silent training process counts as hung.

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
    results = ResultsStore(out, pace.name, dataset_facts(recipe), recipe, resume, names)
    budget = Budget(pace.budget_s if budget_s is None else budget_s, clock)
    return _Climber(recipe, results, pace, budget, names, on_event or (lambda event: None), time_limit).run()


class _Climber(Climber[Contender]):
    rungs = RUNGS

    def __init__(self, recipe: Recipe, *how: Any):
        super().__init__(recipe, *how)
        self.trainings = Trainings(self.results, self.budget, self.tell, self.time_limit)
        self.guesses: list[Guess | None] = []
        self._site: Site | None = None

    def contender(self, recipe: Recipe, label: str) -> Contender:
        return Contender(recipe, label, self.time_limit)

    @property
    def site(self) -> Site:
        """The machine and the job, as the naive process reported them; guessed if it never started."""
        if self._site is None:
            self.naive.launch()  # a resumed climb has no naive process yet
            self.naive.warm_up(self.pace.slice_s)
            self._site = Site.of(self.naive.seen, self.results.document["machine"], self.naive.recipe)
        return self._site

    def in_order(self, names: list[str]) -> list[str]:
        """What was proven together is explained first."""
        return sorted(names, key=lambda name: name not in ("naive", "together") and not self._held(name))

    def climb_rung(self, rung: Rung, row: RungRow) -> None:
        if rung.name == "naive":
            self._naive(row)
        elif self.best is not None and self._held(rung.name) and self.budget.free_s >= LEAST_S:
            self._leave_out(self.best, rung, row)
        else:
            super().climb_rung(rung, row)
            if row["kept"]:
                self._reserve()

    def before(self, rung: Rung) -> None:
        self.rounds.progress(rung.name, "predicting", 0.0, ", ".join(c.label for c in self.field))
        self.guesses = predict(rung.name, self.best, self.field, self.site, self.pace.slice_s)

    def entered(self, row: RungRow) -> None:
        """The predictions: one for each variant, and the chosen one's as the row's."""
        for entry, guess in zip(row["variants"], self.guesses):
            entry["predicted"] = guess
            if entry["chosen"]:
                row["predicted"] = guess

    def checked(self, rung: Rung, row: RungRow, chosen: Contender) -> Contender:
        """The variant that arrives first where that decides; else the fastest one that keeps its accuracy."""
        if rung.by_time and self.best is not None and self.results.kept_accuracies():
            chosen = self._by_time_to_accuracy(row, self.best, chosen)
        else:
            chosen = super().checked(rung, row, chosen)
        if rung.name == "multi-device" and self.best is not None:
            self._count_devices(row, self.best)
        return chosen

    def passes(self, row: RungRow, chosen: Contender) -> bool:
        lost = judge_accuracy(row, self.trainings.check(row, chosen, self.best))
        return not (lost or judge_quality(row, self.results.document["rungs"]))

    def climb(self) -> None:
        super().climb()
        if self.best is not None and self.naive.failure is None:
            if self.best is self.naive:
                self.budget.release_proof()  # nothing to prove yet
            self.best = revisit(self.best, self.naive, self.site, self.trainings, self.rounds)
        self.best = finish(self.naive, self.best, self.site, self.trainings, self.rounds)

    def _naive(self, row: RungRow) -> None:
        self.measure(row, [self.naive])
        if self.naive.failure is not None:
            raise self.naive.failure
        self.trainings.probe(self.naive)
        self.naive = self.trainings.fit_length(row, self.naive)
        compare(row, [self.naive], RUNGS["naive"].variants(self.naive.recipe, self.site), self.naive, None)
        self.trainings.check(row, self.naive, None)
        row.update({"status": "ran", "verdict": "n/a", "kept": True, "reason": None})
        self.best = self.naive
        self._reserve()
        self.results.document["verdict"] = self._what_limits(row)

    def _what_limits(self, row: RungRow) -> dict[str, Any]:
        """The monitor's verdict on the naive training."""
        facts = {name: getattr(self.naive.recipe, name) for name in _FACTS}
        device = "gpu" if self.site.gpus and self.naive.recipe.devices != "cpu" else "cpu"
        phases = {**row["phases"], "phases_pct": row["phases_pct"]}
        facts.update(usable_cores=self.site.cores, device=device)
        return monitor.verdict(phases, row["utilization"], facts).to_dict()

    def _held(self, name: str) -> dict[str, Any]:
        """The fields, with their naive values, in which the best recipe has a rung that was proven together."""
        together = self.results.finished("together")
        if self.best is None or together is None or not together["kept"]:
            return {}
        back = RUNGS[name].left_out(self.best.recipe, self.naive.recipe)
        return back if set(back) & set(together["changes"]) else {}

    def _leave_out(self, best: Contender, rung: Rung, row: RungRow) -> None:
        """Explain a rung of what was proven together: the best recipe beside the same without it."""
        back = self._held(rung.name)
        without = self.contender(best.recipe.override(**back), f"without {rung.name}")
        self.field = [without]
        self.measure(row, self.field, explains=True)
        if best.failure is not None or without.failure is not None or not without.rates:
            raise best.failure or without.failure or RunFailed("NotMeasured", "it has no slice", "measuring")
        compare(row, self.field, [Variant("without it", back)], self.naive, best, self.rounds.scatter)
        if not self._explained(row, best, back):
            row["recipe"] = without.recipe.to_dict()
            if best is not self.naive:
                best.close()
            self.best = without

    def _explained(self, row: RungRow, best: Contender, back: Mapping[str, Any]) -> bool:
        """Judge a rung by the best recipe ÷ the same without it. Returns whether the recipe keeps it.

        It goes if nothing is lost by that, and stays if its gain is certain, or may be one.
        """
        lost = row["variants"][0]
        against = lost["ratio_to_previous"]
        assert against is not None, "both were measured"
        ratio, speedup = stats.inverse(against), self.results.over_naive()
        row["changes"] = {field: best.recipe.to_dict()[field] for field in back}
        kept: VariantRow = {
            **lost, "label": "with it", "changes": row["changes"], "reason": None, "chosen": True,
            "samples_per_sec": stats.interval(best.rates), "ratio_to_previous": ratio,
        }  # fmt: skip
        lost["chosen"], row["variants"] = False, [kept, lost]
        row.update({"samples_per_sec": kept["samples_per_sec"], "ratio_to_previous": ratio, "left_out": True})
        row.update({"speedup_vs_naive": speedup["median"], "speedup_ci95": speedup["ci95"]})
        row["recipe"] = best.recipe.to_dict()
        judge(row, self.background_pct, has_best=True)
        if row["kept"]:
            row["reason"] = None
        elif row["measurable"] and ratio["median"] < WORTH:
            self.results.leave_out(row["name"], back)
            return False
        else:
            told = row["measurable"] and ratio["ci95"][1] <= TOLD * ratio["ci95"][0]
            if not told:
                row.update({"verdict": "n/a", "measurable": False})
            alone = f"{ratio['median']:.2f}×{f' {stats.around(ratio)}' if told else ''} alone, no certain gain"
            row.update({"kept": True, "reason": f"{alone}: it stays as a part of what is proven together"})
        return True

    def _reserve(self) -> None:
        """Reserve time for the proof: three trainings of each, and some seconds between them."""
        assert self.best is not None
        needs = self.trainings.seconds_of(self.naive) + self.trainings.seconds_of(self.best)
        starts = 2 * (_PAIRS - 1) * self.rounds.starts_s
        self.budget.reserve(_PAIRS * (_SLOWER * needs + _BETWEEN_S) + starts)

    def _by_time_to_accuracy(self, row: RungRow, best: Contender, fastest: Contender) -> Contender:
        search = Batches(row, best, self.naive, self.field, self.trainings, self.rounds)
        row["measurable"] = True
        winner = search.search()
        search.enter()
        self.field += [c for c in search.added if c not in self.field]
        for entry in row["variants"] if winner is None else ():
            entry["chosen"] = False
        self.entered(row)
        return winner or fastest

    def _count_devices(self, row: RungRow, best: Contender) -> None:
        """Enter the best number of devices, and the parts of the others' steps."""
        self.rounds.progress(row["name"], "measuring", 1.0, "exchange and loader alone")
        shares = {c.label: step_shares(c) for c in self.field if c.failure is None}
        if found := compare_counts(best, self.field, shares, bool(self.site.gpus)):
            row["devices"] = found
            row["notes"] = [*row["notes"], found["sentence"]]
