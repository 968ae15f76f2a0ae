"""Heats of the search, saved in ``tune.json``: candidates beside the start and the best so far, within a budget."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from gluontune import runtime
from gluontune.core import stats
from gluontune.core.events import OnProgress, progress
from gluontune.core.files import atomic_write
from gluontune.core.journal import Document
from gluontune.recipe import Recipe
from gluontune.search.budget import BudgetSpent
from gluontune.search.measure import STARTS, Contender, interleave
from gluontune.search.rung import Site, Variant, in_short
from gluontune.search.study import dataset_facts

TUNE_SCHEMA = 1
_SEVERAL = 9  # rounds: a heat that decides is measured from several starts
FEWEST_ALIVE, MOST_ALIVE = 3, 6  # contenders with processes at the same time


class TuneResults(Document):
    """The measurements of a search, ``tune.json``: each heat is saved, so that a killed search can resume.

    ``asked`` are the options that decide its course besides the recipe (knobs, batch sizes, slices).
    """

    def __init__(self, recipe: Recipe, asked: dict[str, Any], folder: Path | None, resume: bool):
        self.folder, path = folder, None if folder is None else folder / "tune.json"
        fields: dict[str, Any] = {
            "asked": asked, "dataset": dataset_facts(recipe), "site": None, "base_recipe": recipe.to_dict(),
            "seconds": 0.0, "tried": [], "best": None, "sentence": None, "notes": [], "heats": [],
        }  # fmt: skip
        super().__init__(
            path, "search", TUNE_SCHEMA, fields, runtime.machine_facts, usual=Recipe().to_dict(), resume=resume,
            asked=lambda document: {"recipe": document["base_recipe"], **document["asked"]},
        )  # fmt: skip
        self.document.update(heats=self.document["heats"], tried=[], notes=[])

    @property
    def site(self) -> Site:
        found = self.document["site"]
        return Site(**{**found, "rewrites": tuple(found["rewrites"])})

    def heat(self, stage: str, number: int, rounds: int, changes: Sequence[dict[str, Any]]) -> Any:
        """The heat that an interrupted search measured with exactly these contenders, or None."""
        for heat in self.document["heats"]:
            known = [entry["changes"] for entry in heat["entries"]]
            if (heat["stage"], heat["round"], heat["rounds"], known) == (stage, number, rounds, list(changes)):
                return heat
        return None

    def row(self, stage: str, label: str, **values: Any) -> dict[str, Any]:
        empty = dict.fromkeys(("samples_per_sec", "speedup_vs_start", "speedup_ci95", "round_eliminated"))
        row: dict[str, Any] = {
            "stage": stage, "label": label, "status": "skipped", "reason": None, "remark": "", "changes": {}, **empty,
            "kept": False, **values,
        }  # fmt: skip
        self.document["tried"].append(row)
        return row

    def enter_best(self, best: Candidate, labels: Sequence[str]) -> None:
        """Enter the best recipe so far, named by its choices, and write it as ``recipe.yaml``."""
        speedup, rate = stats.ratio_interval(best.rates, best.from_start), stats.interval(best.rates)
        short = in_short(best.recipe)
        if short.job is not None:
            short = short.override(job=str(Path(short.job).resolve()))
        name, shown = " + ".join(labels), stats.bounds(speedup)
        self.document["best"] = {
            "name": name or "start", "labels": list(labels),
            "changes": short.differences(Recipe.from_dict(self.document["base_recipe"])), "recipe": short.to_dict(),
            "samples_per_sec": rate, "speedup_vs_start": speedup["median"], "speedup_ci95": shown,
        }  # fmt: skip
        around = f" (95 %: {shown[0]:.2f}–{shown[1]:.2f})" if shown else ""
        self.document["sentence"] = (
            f"{speedup['median']:.2f} times as fast as the recipe as it was{around}, by {name}."
            if labels
            else "Nothing that was tried is faster than the recipe as it is."
        )
        if self.folder is not None:
            head = f"# chosen by gluontune tune: {name or 'the start'}, {rate['median']:.0f} samples/s\n"
            with atomic_write(self.folder / "recipe.yaml", "w") as stream:
                stream.write(head + short.to_yaml())
        self.save()


class Candidate(Contender):
    def __init__(
        self, recipe: Recipe, label: str, time_limit: float, row: dict[str, Any], option: Variant | None = None
    ):
        super().__init__(recipe, label, time_limit)
        self.row, self.option = row, option
        self.beside: list[float] = []  # rates of the best so far, in its last heat
        self.from_start: list[float] = []  # rates of the start
        self.lost: str | None = None  # the reason why that heat could not measure it

    @property
    def merit(self) -> float:
        """The ratio to the best recipe so far: comparable between the groups of a round."""
        return float(stats.ratio_interval(self.rates, self.beside)["median"])

    def drop(self, number: int) -> None:
        self.row["round_eliminated"] = number
        self.close()


class Racing:
    """Runs and saves heats; ``start`` and ``best`` are the references of each."""

    def __init__(
        self, recipe: Recipe, results: TuneResults, budget_s: float, slice_s: float, tell: OnProgress, time_limit: float
    ):
        self.results, self.budget_s, self.slice_s, self.tell = results, budget_s, slice_s, tell
        self.time_limit = time_limit
        self.start = self.best = Candidate(recipe, "start", time_limit, results.row("start", "as it is"))
        self.launch_s = 0.0  # to start one contender, at most so far
        self.spent_s = 0.0
        self.alive: list[Candidate] = []
        self.most_alive = FEWEST_ALIVE

    def close(self) -> None:
        for candidate in [self.start, self.best, *self.alive]:
            candidate.close()

    def measure(self, stage: str, number: int, field_: list[Candidate], rounds: int) -> None:
        """Measure slices of each, in groups that fit into memory; BudgetSpent if the next one would end too late."""
        size = max(1, self.most_alive - (1 if self.best is self.start else 2))
        for begin in range(0, len(field_), size):
            group = field_[begin : begin + size]
            self.heat(stage, number, group, rounds)
            for candidate in group if len(field_) > size else ():
                candidate.close()

    def heat(self, stage: str, number: int, group: list[Candidate], rounds: int) -> None:
        """Measure a group beside the references, or take the measurements of an interrupted search."""
        field_ = list({id(c): c for c in (self.start, self.best, *group)}.values())
        heat = self.results.heat(stage, number, rounds, [c.recipe.differences(self.start.recipe) for c in field_])
        if heat is None:
            heat = self._race(stage, number, field_, rounds)
        self.spent_s += heat["seconds"]
        self.launch_s, self.most_alive = heat["launch_s"], heat["most_alive"]
        for candidate, entry in zip(field_, heat["entries"]):
            candidate.rates, candidate.lost = entry["rates"], entry["failure"]
        for candidate in field_:
            candidate.beside, candidate.from_start = self.best.rates, self.start.rates
            if candidate.rates or candidate.lost:
                candidate.row.update(status="failed" if candidate.lost else "ran", reason=candidate.lost)
            if candidate.rates:
                speedup = stats.ratio_interval(candidate.rates, candidate.from_start)
                candidate.row["samples_per_sec"] = stats.interval(candidate.rates)
                candidate.row.update(speedup_vs_start=speedup["median"], speedup_ci95=stats.bounds(speedup))
        self.results.save()

    def _race(self, stage: str, number: int, field_: list[Candidate], rounds: int) -> dict[str, Any]:
        starting = sum(c.group is None for c in field_)
        starts = STARTS if rounds >= _SEVERAL else 1
        launches = starting + (starts - 1) * len(field_)
        racing_s = len(field_) * rounds * self.slice_s * 1.2
        if stage != "start" and self.spent_s + launches * self.launch_s + racing_s > self.budget_s:
            raise BudgetSpent
        began, document = time.monotonic(), self.results.document
        self.alive = field_

        def on_round(done: int, total: int) -> None:
            rates = {c.label: c.rates[-1] for c in field_ if c.rates and c.failure is None}
            fastest = max(rates, key=lambda label: rates[label], default="")
            self._progress(stage, f"heat {number}, round {done}/{total}: {fastest}", rates.get(fastest))

        def on_disturbed(text: str) -> None:
            document["notes"].append(f"{stage}, heat {number}: {text}")

        self._progress(stage, "starting " + ", ".join(c.label for c in field_), None)
        interleave(
            field_, rounds=rounds, slice_s=self.slice_s, on_round=on_round, on_disturbed=on_disturbed, starts=starts
        )
        for reference in (self.start, self.best):
            if reference.failure is not None:
                raise reference.failure  # nothing to compare with
        seconds = time.monotonic() - began
        if stage == "start":
            self._read_site()
        if launches:
            self.launch_s = max(self.launch_s, (seconds - racing_s) / launches)
        entries = [
            {"label": c.label, "changes": c.recipe.differences(self.start.recipe),
             "rates": [] if c.failure else list(c.rates), "failure": str(c.failure) if c.failure else None}
            for c in field_
        ]  # fmt: skip
        heat = {
            "stage": stage, "round": number, "rounds": rounds, "seconds": seconds, "launch_s": self.launch_s,
            "most_alive": self.most_alive, "entries": entries,
        }  # fmt: skip
        document["heats"].append(heat)
        document["seconds"] += seconds
        self.results.save()
        return heat

    def _read_site(self) -> None:
        site = Site.of(self.start.seen, self.results.document["machine"], self.start.recipe)
        self.results.document["site"] = {**dataclasses.asdict(site), "rewrites": list(site.rewrites)}
        needed = 2 * (self.start.ask(lambda group: group.peak_rss_mib()) or 0.0)
        limit = runtime.memory_limit_mib()
        if limit and needed:
            self.most_alive = int(min(MOST_ALIVE, max(FEWEST_ALIVE, limit / 2 // needed)))

    def candidate(self, recipe: Recipe, label: str, row: dict[str, Any], option: Variant | None = None) -> Candidate:
        """A candidate; its row gets the fields that differ from the start."""
        row["changes"] = recipe.differences(self.start.recipe)
        return Candidate(recipe, label, self.time_limit, row, option)

    def _progress(self, stage: str, detail: str, rate: float | None) -> None:
        left, done = max(0.0, self.budget_s - self.spent_s), min(1.0, self.spent_s / self.budget_s)
        self.tell(progress(stage, done, detail, samples_per_sec=rate, seconds_left=left))
