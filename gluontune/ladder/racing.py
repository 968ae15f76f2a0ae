"""Racing of the search: a few candidates beside the start and the best recipe so far, within a budget."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Any

from gluontune import runtime, stats
from gluontune.events import OnProgress, progress
from gluontune.ladder.knobs import Option
from gluontune.ladder.measure import Contender, interleave
from gluontune.ladder.rung import Site
from gluontune.ladder.tune_results import TuneResults
from gluontune.recipe import Recipe

__all__ = ["FEWEST_ALIVE", "MOST_ALIVE", "Candidate", "Racing", "OutOfBudget"]

FEWEST_ALIVE, MOST_ALIVE = 3, 6  # contenders whose processes exist at the same time


@dataclass(eq=False)
class Candidate:
    """A recipe in the search, its row in the table, and what it measured in its last heat."""

    recipe: Recipe
    label: str
    row: dict[str, Any] | None = None
    option: Option | None = None
    rates: list[float] = field(default_factory=list)
    beside: list[float] = field(default_factory=list)  # of the best so far, and of the start, in that heat
    from_start: list[float] = field(default_factory=list)
    failure: str | None = None
    contender: Contender | None = None

    @property
    def merit(self) -> float:
        """The ratio to the best recipe so far: comparable between the groups of a round."""
        return float(stats.ratio_interval(self.rates, self.beside)["median"])

    def close(self) -> None:
        if self.contender is not None:
            self.contender.close()
            self.contender = None


class OutOfBudget(Exception):
    """The next heat would end after the budget."""


class Racing:
    """Runs heats and writes them down.

    Args:
        recipe: the start. results: where heats and rows are kept.
        budget_s, slice_s, time_limit: in seconds, as :func:`gluontune.ladder.tune` has them.
        tell: called with progress events.

    Attributes:
        start, best: the references of every heat.
    """

    def __init__(
        self, recipe: Recipe, results: TuneResults, budget_s: float, slice_s: float, tell: OnProgress, time_limit: float
    ):
        self.results, self.budget_s, self.slice_s, self.tell = results, budget_s, slice_s, tell
        self.time_limit = time_limit
        self.start = self.best = Candidate(recipe, "start", results.row("start", "as it is"))
        self.launch_s = 0.0  # what starting one contender took so far
        self.spent_s = 0.0
        self.alive: list[Candidate] = []
        self.most_alive = FEWEST_ALIVE

    def close(self) -> None:
        for candidate in [self.start, self.best, *self.alive]:
            candidate.close()

    def measure(self, stage: str, number: int, field_: list[Candidate], rounds: int) -> None:
        """``rounds`` slices of each candidate, in groups that fit into memory together.

        Raises:
            OutOfBudget: the next group would end after the budget; earlier ones are measured.
        """
        references = 1 if self.best is self.start else 2
        size = max(1, self.most_alive - references)
        for begin in range(0, len(field_), size):
            group = field_[begin : begin + size]
            self.heat(stage, number, group, rounds)
            if len(field_) > size:
                for candidate in group:
                    candidate.close()

    def heat(self, stage: str, number: int, group: list[Candidate], rounds: int) -> None:
        """Measure a group beside the references, or take what an interrupted search measured."""
        field_ = list({id(c): c for c in (self.start, self.best, *group)}.values())
        changes = [self.changes(c.recipe) for c in field_]
        heat = self.results.heat(stage, number, rounds, changes)
        if heat is None:
            heat = self._race(stage, number, field_, rounds)
        self.spent_s += heat["seconds"]
        self.launch_s, self.most_alive = heat["launch_s"], heat["most_alive"]
        for candidate, entry in zip(field_, heat["entries"]):
            candidate.rates, candidate.failure = entry["rates"], entry["failure"]
        for candidate in field_:
            candidate.beside, candidate.from_start = self.best.rates, self.start.rates
            self._fill(candidate)
        self.results.save()

    def _race(self, stage: str, number: int, field_: list[Candidate], rounds: int) -> dict[str, Any]:
        starting = sum(c.contender is None or c.contender.group is None for c in field_)
        racing_s = len(field_) * rounds * self.slice_s * 1.2
        if stage != "start" and self.spent_s + starting * self.launch_s + racing_s > self.budget_s:
            raise OutOfBudget
        began = time.monotonic()
        for candidate in field_:
            if candidate.contender is None:
                candidate.contender = Contender(candidate.recipe, candidate.label, self.time_limit)
        contenders = [c.contender for c in field_ if c.contender is not None]
        self.alive = field_

        def on_round(done: int, total: int) -> None:
            rates = {c.label: c.rates[-1] for c in contenders if c.rates and c.failure is None}
            fastest = max(rates, key=lambda label: rates[label], default="")
            self._progress(stage, f"heat {number}, round {done}/{total}: {fastest}", rates.get(fastest))

        self._progress(stage, "starting " + ", ".join(c.label for c in contenders), None)
        interleave(
            contenders,
            rounds=rounds,
            slice_s=self.slice_s,
            on_round=on_round,
            on_disturbed=lambda told: self.results.document["notes"].append(f"{stage}, heat {number}: {told}"),
        )
        for reference in (self.start, self.best):
            if reference.contender is not None and reference.contender.failure is not None:
                raise reference.contender.failure  # nothing to compare with
        seconds = time.monotonic() - began
        if stage == "start":
            self._look_around()
        if starting:
            self.launch_s = max(self.launch_s, (seconds - racing_s) / starting)
        heat = {
            "stage": stage,
            "round": number,
            "rounds": rounds,
            "seconds": seconds,
            "launch_s": self.launch_s,
            "most_alive": self.most_alive,
            "entries": [
                {
                    "label": candidate.label,
                    "changes": self.changes(candidate.recipe),
                    "rates": [] if contender.failure else list(contender.rates),
                    "failure": str(contender.failure) if contender.failure else None,
                }
                for candidate, contender in zip(field_, contenders)
            ],
        }
        self.results.enter_heat(heat)
        return heat

    def _look_around(self) -> None:
        """What the start's process knows of machine and job, and how many of its kind fit into memory."""
        contender = self.start.contender
        if contender is None or contender.group is None:
            return
        group = contender.group
        self.results.enter_site(Site.of(group.ready[0], self.results.document["machine"], self.start.recipe))
        group.resume()
        needed = 2 * group.peak_rss_mib()
        group.pause()
        limit = runtime.memory_limit_mib()
        if limit:
            self.most_alive = int(min(MOST_ALIVE, max(FEWEST_ALIVE, limit / 2 // needed)))

    def changes(self, recipe: Recipe) -> dict[str, Any]:
        """What ``recipe`` changes in the start."""
        return recipe.differences(self.start.recipe)

    def _fill(self, candidate: Candidate) -> None:
        """A candidate's row, from its last heat."""
        row = candidate.row
        if row is None or not (candidate.rates or candidate.failure):
            return
        row.update(status="failed" if candidate.failure else "ran", reason=candidate.failure)
        if candidate.rates:
            row["samples_per_sec"] = stats.interval(candidate.rates)
            speedup = stats.ratio_interval(candidate.rates, candidate.from_start)
            row["speedup_vs_start"], row["speedup_ci95"] = speedup["median"], stats.bounds(speedup)

    def _progress(self, stage: str, detail: str, rate: float | None) -> None:
        left = max(0.0, self.budget_s - self.spent_s)
        done = min(1.0, self.spent_s / self.budget_s)
        self.tell(progress(stage, done, detail, samples_per_sec=rate, seconds_left=left))
