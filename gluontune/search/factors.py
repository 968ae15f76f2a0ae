"""Factor analysis: the gain of each factor alone, on top of each other, and on top of all the others.

Throughput is measured by interleaved slices, in blocks of contenders with the base recipe in each; time to
accuracy by whole trainings. Sets that do not reach the target stay in the table.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from gluontune.core import stats
from gluontune.core.errors import UsageError
from gluontune.core.events import OnProgress, Piece, of_piece, progress
from gluontune.core.journal import resumable
from gluontune.recipe import Recipe
from gluontune.search import factor_plan
from gluontune.search.budget import QUICK, Pace
from gluontune.search.factor_plan import EXTRA_FACTORS, Factor, FactorSet, plan, quotient, recipe_of, set_name
from gluontune.search.measure import STARTS, Contender, interleave
from gluontune.search.rung import Site
from gluontune.search.rungs import RUNGS
from gluontune.search.study import Part, Study, check_target, dataset_facts, train_once
from gluontune.search.time_to_target import accuracies, first_crossing

FACTORS_SCHEMA = 1
Row = Mapping[str, Any]
ONE = {"median": 1.0, "ci95": [1.0, 1.0]}  # the base against itself
BLOCK = 5  # contenders beside the base in one interleaved comparison, with processes at the same time


@resumable
def analyse(
    recipe: Recipe,
    *,
    factors: Sequence[str] | None = None,
    own: Sequence[Factor] = (),
    targets: Sequence[float] = (),
    repeats: int = 1,
    pairs: bool = True,
    every_set: bool = False,
    pace: Pace = QUICK,
    out: str | Path | None = None,
    resume: bool = False,
    part: Part | None = None,
    on_event: OnProgress | None = None,
    time_limit: float = 600.0,
) -> dict[str, Any]:
    """Switch factors on and off, and measure throughput and, with targets, time to accuracy, for ``factors.json``.

    Args:
        recipe: the base; its ``epochs`` are the longest run to a target.
        factors: names of rungs. own: the user's factors, see :func:`gluontune.search.factor_plan.parse_factor`.
        targets: validation accuracies, 0 … 1; one run serves them all. None: throughput alone.
        repeats: runs of each set to the targets, by seed. pairs: measure each pair of factors, for the interactions.
        every_set: run factors alone and pairs to the targets, too, not only the cumulative and leave-one-out sets.
        pace: slices of the throughput measurement.
        out: folder for ``factors.json``, written after each piece; ``resume`` goes on with it, and with its parts.
        part: do these repeats alone, for a later ``resume`` of all; the first part measures throughput, too.
        on_event: see :func:`gt.train.run`. time_limit: seconds of silence after which a run counts as hung.

    Raises:
        UsageError: factors that contradict each other, fewer than one, a target outside 0 … 1.
        GluontuneError: the base recipe cannot run, the data set cannot be opened. Another set that fails is a row.

    >>> import gluontune as gt
    >>> base = gt.Recipe(net="mlp", train_samples=256, val_samples=64)
    >>> short = gt.ladder.Pace("short", rounds=3, slice_s=0.05, epochs=1)
    >>> found = gt.ladder.factors(base, factors=["records"], pace=short)
    >>> [entry["name"] for entry in found["sets"]], found["sets"][-1]["throughput"]["ratio"]["n"]
    (['base', 'records'], 3)
    """
    targets = sorted(set(targets))
    for target in targets:
        check_target(target)
    if repeats < 1:
        raise UsageError(f"--repeats {repeats}: give at least 1")
    for name in factors or ():
        if name not in EXTRA_FACTORS:
            RUNGS[name]  # refuses an unknown one before any process starts
    recipe = recipe.override(target_accuracy=None)
    given = {
        "recipe": recipe.to_dict(), "factors": list(factors) if factors is not None else None,
        "own": [factor.to_dict() for factor in own], "targets": targets, "pace": pace.name, "pairs": pairs,
        "every_set": every_set,
    }  # fmt: skip
    facts = dataset_facts(recipe)
    store = Study("factors", FACTORS_SCHEMA, given, out, resume, part)
    store.document.update(dataset=facts, repeats=repeats)
    tell = on_event or (lambda event: None)
    with contextlib.closing(_Analysis(recipe, store, pace, tell, time_limit)) as analysis, store.under_way():
        analysis.choose(factors, own)
        if store.takes(0):
            analysis.throughput(pairs)
        analysis.to_targets(targets, repeats, every_set)
    if part is None:
        conclude(store.document)
    store.save()
    return store.document


class _Analysis:
    def __init__(self, recipe: Recipe, store: Study, pace: Pace, tell: OnProgress, time_limit: float):
        self.recipe, self.store, self.pace, self.tell = recipe, store, pace, tell
        self.time_limit = time_limit
        self.base = Contender(recipe, "base", time_limit)
        self.field: list[Contender] = []
        self.factors: list[Factor] = []

    def close(self) -> None:
        for contender in [self.base, *self.field]:
            contender.close()

    def choose(self, names: Sequence[str] | None, users: Sequence[Factor]) -> None:
        """The factors: those of the store in a resumed analysis, else those that the site allows."""
        document = self.store.document
        if "factors" in document:
            self.factors = [Factor(**values) for values in document["factors"]]
            factor_plan.check_factors(self.recipe, self.factors)
            return
        self.tell({**progress("starting", 0.0), "set": "base", "piece": 1, "pieces": 1})
        self._start_base()
        site = Site.of(self.base.seen, document["machine"], self.recipe)
        self.factors, skipped = factor_plan.resolve_factors(self.recipe, site, names, users)
        if not self.factors:
            reasons = "; ".join(f"{name}: {reason}" for name, reason in skipped.items())
            raise UsageError(f"no factor to analyse here ({reasons})")
        document.update(factors=[factor.to_dict() for factor in self.factors], skipped=skipped)
        self.store.save()

    def _start_base(self) -> None:
        self.base.launch()
        self.base.warm_up(self.pace.slice_s)
        if self.base.failure is not None:
            raise self.base.failure

    def _recipe(self, chosen: FactorSet) -> Recipe:
        return recipe_of(self.recipe, [f for f in self.factors if f.name in chosen])

    def throughput(self, pairs: bool) -> None:
        document = self.store.document
        done = {tuple(row["set"]) for row in document["done"] if row["kind"] == "throughput"}
        todo = [chosen for chosen in plan([f.name for f in self.factors], pairs) if chosen and chosen not in done]
        blocks = [todo[i : i + BLOCK] for i in range(0, len(todo), BLOCK)]
        for number, block in enumerate(blocks, 1):
            self._start_base()
            self.field = [Contender(self._recipe(chosen), set_name(chosen), self.time_limit) for chosen in block]
            about: Piece = {"set": ", ".join(c.label for c in self.field), "piece": number, "pieces": len(blocks)}
            self.tell({**progress("starting", 0.0), **about})

            def on_round(at: int, rounds: int, about: Piece = about) -> None:
                self.tell({**progress("measuring", at / rounds, f"round {at}/{rounds}"), **about})

            def on_disturbed(text: str, about: Piece = about) -> None:
                document.setdefault("notes", []).append(f"{about['set']}: {text}")

            interleave(
                [self.base, *self.field], rounds=self.pace.rounds, slice_s=self.pace.slice_s, on_round=on_round,
                on_disturbed=on_disturbed, starts=STARTS,
            )  # fmt: skip
            if self.base.failure is not None:
                raise self.base.failure
            measured = dict(zip(block, self.field))
            if () not in done:
                measured = {(): self.base, **measured}
                done.add(())
            rows = [throughput_row(chosen, contender, self.base) for chosen, contender in measured.items()]
            for contender in self.field:
                contender.close()
            self.store.enter(*rows)
            self.tell({**progress("done", 1.0), **about, "rows": rows})

    def to_targets(self, targets: Sequence[float], repeats: int, every_set: bool) -> None:
        if not targets:
            return
        self.base.close()  # frees memory and threads
        wanted = ("base", "cumulative", "all", "without ")
        parts = plan([f.name for f in self.factors], every_set)
        sets = [s for s, roles in parts.items() if every_set or any(r.startswith(wanted) for r in roles)]
        first = {s: self._recipe(s).override(target_accuracy=max(targets)) for s in sets}
        runs = [(s, recipe.override(seed=self.recipe.seed + n)) for n in filter(self.store.takes, range(repeats))
                for s, recipe in first.items()]  # fmt: skip
        train_to_targets(self.store, runs, targets, self.tell, self.time_limit)


def train_to_targets(
    store: Study,
    runs: Sequence[tuple[FactorSet, Recipe]],
    targets: Sequence[float],
    tell: OnProgress,
    time_limit: float,
) -> None:
    """Train the ``runs`` that the store lacks; each becomes a row."""
    done = {(tuple(row["set"]), row["seed"]) for row in store.document["done"] if row["kind"] == "tta"}
    for number, (chosen, recipe) in enumerate(runs, 1):
        if (chosen, recipe.seed) in done:
            continue
        about: Piece = {"set": f"{set_name(chosen)}, seed {recipe.seed}", "piece": number, "pieces": len(runs)}
        name = ("-".join(chosen) or "base").replace(", ", "-").replace(" ", "-")
        result, _ = store.train(train_once, recipe, f"{name}-seed{recipe.seed}", of_piece(tell, about), time_limit)
        row = tta_row(chosen, recipe.seed, result, targets)
        store.enter(row)
        tell({**progress("done", 1.0), **about, "rows": [row]})


def throughput_row(chosen: FactorSet, contender: Contender, base: Contender) -> dict[str, Any]:
    row = {"kind": "throughput", "set": list(chosen), "status": "ran", "reason": None}
    if contender.failure is not None:
        return {**row, "status": "failed", "reason": str(contender.failure), "samples_per_sec": None, "ratio": None}
    ratio = ONE if contender is base else stats.ratio_interval(contender.rates, base.rates)
    return {**row, "samples_per_sec": stats.interval(contender.rates), "ratio": ratio}


def tta_row(chosen: FactorSet, seed: int, result: Any, targets: Sequence[float]) -> dict[str, Any]:
    places = [first_crossing(accuracies(result), target) for target in targets]
    row: dict[str, Any] = {"kind": "tta", "set": list(chosen), "seed": seed, "status": "ran", "reason": None}
    row["seconds"] = [None if place is None else result.elapsed_seconds[place] for place in places]
    row["epochs"] = [None if place is None else place + 1 for place in places]
    row["best_accuracy"] = max(result.val_accuracy, default=None)
    row["last_accuracy"] = next(iter(result.val_accuracy[-1:]), None)
    row["spent_seconds"] = sum(result.epoch_seconds)
    if result.error is not None:
        row.update(status="failed", reason=f"{result.error['message']} (while {result.error['phase']})")
    return row


def conclude(document: dict[str, Any]) -> None:
    names = [factor["name"] for factor in document.get("factors", [])]
    targets = document["given"]["targets"]
    sets: list[dict[str, Any]] = []
    for chosen, parts in plan(names, document["given"]["pairs"] or document["given"]["every_set"]).items():
        rows = [row for row in document["done"] if tuple(row["set"]) == chosen]
        speed = next((row for row in rows if row["kind"] == "throughput"), None)
        runs = [row for row in rows if row["kind"] == "tta"]
        tta = [tta_of(runs, place, target) for place, target in enumerate(targets)] if runs else []
        sets.append({"set": list(chosen), "name": set_name(chosen), "parts": parts, "throughput": speed, "tta": tta})
    gains = {"throughput": {tuple(s["set"]): (s["throughput"] or {}).get("ratio") for s in sets}}
    gains.update({f"time to {target:g}": _time_gains(sets, place) for place, target in enumerate(targets)})
    document["sets"] = sets
    document["interactions"] = {title: factor_plan.interactions(found, names) for title, found in gains.items()}
    document["leave_one_out"] = {title: factor_plan.leave_one_out(found, names) for title, found in gains.items()}


def tta_of(runs: Sequence[Mapping[str, Any]], place: int, target: float) -> dict[str, Any]:
    """Time to one target over a set's runs; ``converged``: all of them reached it."""
    reached = [seconds for row in runs if (seconds := row["seconds"][place]) is not None]
    best = [row["best_accuracy"] for row in runs if row["best_accuracy"] is not None]
    return {
        "target": target, "seconds": stats.interval(reached) if reached else None, "reached": len(reached),
        "runs": len(runs), "converged": len(reached) == len(runs), "best_accuracy": max(best, default=None),
        "reasons": [row["reason"] for row in runs if row["reason"]],
    }  # fmt: skip


def _time_gains(sets: Sequence[Mapping[str, Any]], place: int) -> dict[FactorSet, dict[str, Any] | None]:
    """Time of the base ÷ time of each set, where both converged."""
    times = {tuple(s["set"]): s["tta"][place] for s in sets if s["tta"]}
    gains: dict[FactorSet, dict[str, Any] | None] = dict.fromkeys(times)
    if (base := times.get(())) and base["converged"]:
        for chosen in (each for each, found in times.items() if found["converged"]):
            pair = (base["seconds"], times[chosen]["seconds"])
            gains[chosen] = quotient(*({**s, "ci95": stats.bounds(s)} for s in pair))  # one or two runs have none
        gains[()] = ONE
    return gains
