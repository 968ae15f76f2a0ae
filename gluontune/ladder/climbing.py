"""Climbing: each rung measured against the best recipe so far, trained, judged, kept or not."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gluontune import datasets, monitor
from gluontune.files import writable_folder
from gluontune.ladder.book import Book
from gluontune.ladder.devices import compare_counts, look_into
from gluontune.ladder.judge import choose, compare, judge, next_best, undecided
from gluontune.ladder.measure import Contender, interleave
from gluontune.ladder.predicting import note, predict
from gluontune.ladder.rungs import RUNGS, Rung, Site
from gluontune.recipe import Recipe
from gluontune.result import RunResult
from gluontune.train import RunFailed

__all__ = ["FULL", "QUICK", "Pace", "climb"]

_SECOND_LOOK = 3  # times the rounds of the first, where that one was undecided

OnEvent = Callable[[dict[str, Any]], None]


@dataclass(frozen=True)
class Pace:
    """How long a ladder takes its time: ``rounds`` slices of ``slice_s`` seconds for each contender."""

    name: str
    rounds: int
    slice_s: float
    epochs: float


QUICK = Pace("quick", rounds=9, slice_s=0.3, epochs=1)
FULL = Pace("full", rounds=12, slice_s=1.0, epochs=2)


def climb(
    recipe: Recipe,
    *,
    out: str | Path | None = None,
    pace: Pace = QUICK,
    rungs: Iterable[str] | None = None,
    resume: bool = False,
    on_event: OnEvent | None = None,
    time_limit: float = 600.0,
) -> dict[str, Any]:
    """Climb the ladder with one job and return what ``ladder.json`` holds.

    Args:
        recipe: the naive script; every rung changes it further. Its ``epochs`` count.
        out: folder for ``ladder.json`` and the rungs' RunResults; written after each rung.
        pace: ``QUICK`` or ``FULL``.
        rungs: names of the rungs to climb; all by default. ``naive`` is always climbed.
        resume: go on with what ``out`` holds from an interrupted climb of the same recipe.
        on_event: called with the events that the live table shows.
        time_limit: seconds after which a silent training process counts as hung.

    Raises:
        GluontuneError: the data set cannot be opened, the folder cannot be written, there is nothing
            to resume. A rung that fails is a row, never an exception.
    """
    recipe = recipe.override(seconds=None, target_accuracy=None)
    names = [n for n in RUNGS.names() if rungs is None or n == "naive" or n in [RUNGS[r].name for r in rungs]]
    if out is not None:
        writable_folder(out)
    if recipe.job is None:
        datasets.open(recipe.dataset)  # a missing data set is told before anything is started
    book = Book.open(recipe, pace.name, Path(out) if out is not None else None, resume, names)
    climber = _Climber(recipe, book, pace, names, on_event or (lambda event: None), time_limit)
    try:
        climber.climb()
    except KeyboardInterrupt:
        book.document["complete"] = False
    finally:
        climber.close()
        book.save()
    climber.tell({"event": "ladder-end", "ladder": book.document})
    return book.document


class _Climber:
    """One climb: the contenders that live from rung to rung, and the book that is kept."""

    def __init__(
        self, recipe: Recipe, book: Book, pace: Pace, names: list[str], tell: OnEvent, time_limit: float
    ):
        self.recipe, self.book, self.pace, self.names, self.tell = recipe, book, pace, names, tell
        self.time_limit = time_limit
        self.naive = Contender(recipe, "naive", time_limit)
        self.best: Contender | None = None
        self.field: list[Contender] = []
        self._site: Site | None = None

    def close(self) -> None:
        for contender in [self.naive, self.best, *self.field]:
            if contender is not None:
                contender.close()

    def climb(self) -> None:
        document = self.book.document
        event = {"rungs": self.names, "mode": self.pace.name, "dataset": document["dataset"]}
        self.tell({"event": "ladder-start", **event})
        for place, name in enumerate(self.names):
            row = self.book.finished(name)
            if row is not None:
                self._take_over(row)
                continue
            started = time.monotonic()
            left = self._seconds_left(self.names[place:])
            rung = RUNGS[name]
            self.tell({"event": "rung-start", "name": name, "sentence": rung.sentence, "seconds_left": left})
            row = self.book.new_row(name, rung.sentence)
            try:
                self._rung(rung, row)
                row["finished"] = True
            except RunFailed as failure:
                self._failed(row, failure)
                row["finished"] = True
            finally:
                row["seconds"] = time.monotonic() - started
                for contender in self.field:
                    if contender is not self.best:
                        contender.close()
                self.field = []
                self.book.enter(row)
            self.tell({"event": "rung-end", "row": row})
        document["complete"] = True

    def _take_over(self, row: dict[str, Any]) -> None:
        """A rung from the earlier part of a resumed climb."""
        if row["kept"]:
            same = row["name"] == "naive"
            recipe = Recipe.from_dict(row["recipe"])
            self.best = self.naive if same else Contender(recipe, "best", self.time_limit)
        self.tell({"event": "rung-end", "row": row})

    def _rung(self, rung: Rung, row: dict[str, Any]) -> None:
        if rung.name == "naive":
            self._naive(row)
            return
        base = self.best.recipe if self.best is not None else self.recipe
        reason = rung.requires(base, self.site)
        variants = [] if reason else rung.variants(base, self.site)
        if not variants:
            row.update(status="skipped", reason=reason or "nothing to change")
            return
        self.field = [Contender(base.override(**v.changes), v.label, self.time_limit) for v in variants]
        references = list({id(c): c for c in (self.naive, self.best) if c is not None}.values())
        self._progress(row["name"], "predicting", 0.0, ", ".join(c.label for c in self.field), None)
        guesses = predict(rung.name, self.best, self.field, self.site, self.pace.slice_s)
        self._measure(row, [*references, *self.field])
        chosen = compare(row, self.field, variants, self.naive, self.best)
        note(row, guesses)
        if chosen is None:
            raise next(c.failure for c in self.field if c.failure is not None)
        judge(row, self._train(row, chosen), self.book.kept_accuracies(), has_best=self.best is not None)
        while (another := next_best(row, self.field)) is not None:
            chosen = another
            choose(row, chosen, self.field, self.naive)
            note(row, guesses)
            judge(row, self._train(row, chosen), self.book.kept_accuracies(), has_best=True)
        if rung.name == "multi-device" and self.best is not None:
            self._count_devices(row)
        if row["kept"]:
            if self.best is not None and self.best is not self.naive:
                self.best.close()
            self.best = chosen

    def _count_devices(self, row: dict[str, Any]) -> None:
        """Which number of devices is best, and where the steps of the others go."""
        assert self.best is not None
        self._progress(row["name"], "measuring", 1.0, "exchange and loader alone", None)
        shares = {c.label: look_into(c) for c in self.field if c.failure is None}
        found = compare_counts(self.best, self.field, shares, bool(self.site.gpus))
        if found is not None:
            row["devices"] = found
            row["notes"] = [*row["notes"], found["sentence"]]

    def _naive(self, row: dict[str, Any]) -> None:
        self._measure(row, [self.naive])
        if self.naive.failure is not None:
            raise self.naive.failure
        compare(row, [self.naive], RUNGS["naive"].variants(self.recipe, self.site), self.naive, None)
        result = self._train(row, self.naive)
        judge(row, result, [], has_best=False)
        row.update(verdict="n/a", kept=True, reason=None)
        self.best = self.naive
        facts = {
            name: getattr(self.recipe, name)
            for name in (
                "num_workers",
                "loader",
                "hybridize",
                "dtype",
                "batch_size_per_device",
                "num_devices",
            )
        }
        facts["usable_cores"] = self.site.cores
        facts["device"] = "gpu" if self.site.gpus and self.recipe.devices != "cpu" else "cpu"
        self.book.document["verdict"] = monitor.verdict(result.phases, result.utilization, facts).to_dict()

    def _measure(self, row: dict[str, Any], field: list[Contender]) -> None:
        name = row["name"]
        labels = ", ".join(c.label for c in field)

        def on_round(done: int, rounds: int) -> None:
            rates = {c.label: c.rates[-1] for c in field if c.rates and c.failure is None}
            fastest = max(rates, key=lambda label: rates[label], default="")
            detail = f"round {done}/{rounds}: {fastest} {rates.get(fastest, 0):,.0f} img/s"
            self._progress(name, "measuring", done / rounds, detail, rates.get(fastest))

        def more() -> int:
            ratio = undecided(self.field, self.best)
            if ratio is None:
                return 0
            low, high = ratio["ci95"]
            rounds = _SECOND_LOOK * self.pace.rounds
            row["notes"].append(
                f"undecided after {self.pace.rounds} rounds ({low:.2f}–{high:.2f}× the recipe before it), so measured "
                f"in {rounds} more"
            )
            return rounds

        self._progress(name, "starting", 0.0, labels, None)
        interleave(
            field,
            rounds=self.pace.rounds,
            slice_s=self.pace.slice_s,
            on_round=on_round,
            on_disturbed=row["notes"].append,
            more=more,
        )

    def _train(self, row: dict[str, Any], contender: Contender) -> RunResult:
        """Train the chosen variant; its result is saved beside, whatever comes."""
        result = RunResult(recipe=contender.recipe.to_dict(), machine=self.book.document["machine"])
        name = row["name"]
        try:
            contender.train(result, lambda event: self.tell({**event, "name": name}))
        except RunFailed as failure:
            result.status, result.error = "failed", failure.to_dict()
            raise
        except KeyboardInterrupt:
            result.status = "interrupted"
            raise
        finally:
            self.book.enter_run(row, result)
        return result

    def _failed(self, row: dict[str, Any], failure: RunFailed) -> None:
        row.update(status="failed", verdict="n/a", kept=False, error=failure.to_dict(), reason=str(failure))

    def _progress(self, name: str, stage: str, done: float, detail: str, rate: float | None) -> None:
        self.tell(
            {
                "event": "progress",
                "name": name,
                "stage": stage,
                "done": done,
                "detail": detail,
                "samples_per_sec": rate,
                "val_accuracy": None,
                "seconds_left": None,
            }
        )

    def _seconds_left(self, names: list[str]) -> float | None:
        """A guess from what the rungs so far took, training made faster by the best speedup so far."""
        rows = [r for r in self.book.document["rungs"] if r["status"] == "ran"]
        if not rows:
            return None
        training = sum(rows[0]["epoch_seconds"]) / max(r["speedup_vs_naive"] or 1.0 for r in rows)
        measuring = 4 * self.pace.rounds * self.pace.slice_s * 1.5 + 8.0
        return len(names) * (training + measuring)

    @property
    def site(self) -> Site:
        """The machine and the job, as the naive process found them; guessed where it never started."""
        if self._site is None:
            self._start_naive()
            ready = self.naive.group.ready[0] if self.naive.group is not None else {}
            self._site = Site.of(ready, self.book.document["machine"], self.recipe)
        return self._site

    def _start_naive(self) -> None:
        """A resumed climb has no naive process yet."""
        if self.naive.group is None and self.naive.failure is None:
            self.naive.launch()
            self.naive.warm_up(self.pace.slice_s)
