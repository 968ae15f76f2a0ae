"""Factor analysis: which factors bring what, alone, on top of each other, and on top of all the others.

Throughput is measured by interleaved slices, in blocks of contenders that each hold the base recipe; time to
accuracy by whole trainings. A set that does not reach the target is shown as such, never left out.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from gluontune import datasets
from gluontune.errors import UsageError
from gluontune.events import OnProgress, Piece, of_piece, progress
from gluontune.ladder.factor_results import conclude, throughput_row, tta_row
from gluontune.ladder.factorplan import (
    Factor,
    FactorSet,
    check_factors,
    check_names,
    plan,
    recipe_of,
    resolve_factors,
    set_name,
)
from gluontune.ladder.measure import Contender, interleave
from gluontune.ladder.pace import QUICK, Pace
from gluontune.ladder.repeat import train_once
from gluontune.ladder.results_store import dataset_facts
from gluontune.ladder.resumable import ResumableDocument
from gluontune.ladder.rung import Site
from gluontune.recipe import Recipe

__all__ = ["FACTORS_SCHEMA", "analyse"]

FACTORS_SCHEMA = 1
BLOCK = 5  # contenders beside the base in one interleaved comparison: their processes are alive together


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
    on_event: OnProgress | None = None,
    time_limit: float = 600.0,
) -> dict[str, Any]:
    """Switch factors on and off, and measure throughput and, with targets, time to accuracy.

    Args:
        recipe: the base; its ``epochs`` are the longest that a run to a target may take.
        factors: names of rungs. own: factors of the user's, see :func:`gluontune.ladder.factorplan.parse_factor`.
        targets: validation accuracies, 0 … 1; one run serves them all. None: throughput alone.
        repeats: runs of each set to the targets, by seed.
        pairs: measure each pair of factors, for the interactions.
        every_set: run factors alone and pairs to the targets, too, not only the cumulative and leave-one-out sets.
        pace: slices of the throughput measurement.
        out: folder for ``factors.json``, written after each piece; ``resume`` goes on with it.
        on_event: called as :func:`gt.train.run` calls it.
        time_limit: seconds of silence after which a run counts as hung.

    Returns:
        what ``factors.json`` holds: ``factors``, ``sets`` (each with ``throughput`` and ``tta``),
        ``interactions`` and ``leave_one_out`` by throughput and by time to accuracy.

    Raises:
        UsageError: factors that contradict each other, fewer than one, a target outside 0 … 1.
        GluontuneError: the base recipe cannot run, the data set cannot be opened.
            Another set that fails is a row.

    >>> import gluontune as gt
    >>> base = gt.Recipe(net="mlp", train_samples=256, val_samples=64)
    >>> short = gt.ladder.Pace("short", rounds=3, slice_s=0.05, epochs=1)
    >>> found = gt.ladder.factors(base, factors=["records"], pace=short)
    >>> [entry["name"] for entry in found["sets"]], found["sets"][-1]["throughput"]["ratio"]["n"]
    (['base', 'records'], 3)
    """
    targets = sorted(set(targets))
    for target in targets:
        if not 0 < target <= 1:
            raise UsageError(f"--target {target:g}: give a validation accuracy above 0 and up to 1, such as 0.8")
    if repeats < 1:
        raise UsageError(f"--repeats {repeats}: give at least 1")
    check_names(factors)
    recipe = recipe.override(target_accuracy=None)
    if recipe.job is None:
        datasets.open(recipe.dataset)
    given = {
        "recipe": recipe.to_dict(),
        "factors": list(factors) if factors is not None else None,
        "own": [factor.to_dict() for factor in own],
        "targets": targets,
        "pace": pace.name,
        "pairs": pairs,
        "every_set": every_set,
    }
    store = ResumableDocument("factors", FACTORS_SCHEMA, given, out, resume)
    store.document.update(dataset=dataset_facts(recipe), repeats=repeats)
    study = _Study(recipe, store, pace, on_event or (lambda event: None), time_limit)
    try:
        study.choose(factors, own)
        study.throughput(pairs)
        study.to_targets(targets, repeats, every_set)
        store.document["complete"] = True
    except KeyboardInterrupt:
        store.document["complete"] = False
    finally:
        study.close()
    conclude(store.document)
    store.save()
    return store.document


class _Study:
    """One analysis: the base contender that lives throughout, and the store."""

    def __init__(self, recipe: Recipe, store: ResumableDocument, pace: Pace, tell: OnProgress, time_limit: float):
        self.recipe, self.store, self.pace, self.tell = recipe, store, pace, tell
        self.time_limit = time_limit
        self.base = Contender(recipe, "base", time_limit)
        self.field: list[Contender] = []
        self.factors: list[Factor] = []

    def close(self) -> None:
        for contender in [self.base, *self.field]:
            contender.close()

    def choose(self, names: Sequence[str] | None, own: Sequence[Factor]) -> None:
        """The factors: those of the store in a resumed analysis, else what the site allows."""
        document = self.store.document
        if "factors" in document:
            self.factors = [Factor(**values) for values in document["factors"]]
            check_factors(self.recipe, self.factors)
            return
        self.tell({**progress("starting", 0.0), "set": "base", "piece": 1, "pieces": 1})
        self._start_base()
        ready = self.base.group.ready[0] if self.base.group is not None else {}
        site = Site.of(ready, document["machine"], self.recipe)
        self.factors, skipped = resolve_factors(self.recipe, site, names, own)
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

    def _done(self, kind: str) -> set[tuple[Any, ...]]:
        rows = [row for row in self.store.document["done"] if row["kind"] == kind]
        return {(tuple(row["set"]), row.get("seed")) for row in rows}

    def throughput(self, pairs: bool) -> None:
        done = self._done("throughput")
        sets = list(plan([f.name for f in self.factors], pairs))
        todo = [chosen for chosen in sets if chosen and (chosen, None) not in done]
        blocks = [todo[i : i + BLOCK] for i in range(0, len(todo), BLOCK)]
        for number, block in enumerate(blocks, 1):
            self._start_base()
            self.field = [Contender(self._recipe(chosen), set_name(chosen), self.time_limit) for chosen in block]
            about: Piece = {"set": ", ".join(c.label for c in self.field), "piece": number, "pieces": len(blocks)}
            self.tell({**progress("starting", 0.0), **about})

            def on_round(at: int, rounds: int, about: Piece = about) -> None:
                detail = f"round {at}/{rounds}"
                self.tell({**progress("measuring", at / rounds, detail), **about})

            field = [self.base, *self.field]
            interleave(
                field,
                rounds=self.pace.rounds,
                slice_s=self.pace.slice_s,
                on_round=on_round,
                on_disturbed=functools.partial(self._note, about["set"]),
            )
            if self.base.failure is not None:
                raise self.base.failure
            rows = [throughput_row(chosen, c, self.base) for chosen, c in zip(block, self.field)]
            if ((), None) not in done:
                rows.insert(0, throughput_row((), self.base, self.base))
                done.add(((), None))
            for contender in self.field:
                contender.close()
            self.store.document["done"] += rows
            self.store.save()
            self.tell({**progress("done", 1.0), **about, "rows": rows})

    def _note(self, sets: str, told: str) -> None:
        self.store.document.setdefault("notes", []).append(f"{sets}: {told}")

    def to_targets(self, targets: Sequence[float], repeats: int, every_set: bool) -> None:
        if not targets:
            return
        self.base.close()  # its memory and its threads are wanted
        done = self._done("tta")
        wanted = ("base", "cumulative", "all", "without ")
        parts = plan([f.name for f in self.factors], every_set)
        sets = [s for s, roles in parts.items() if every_set or any(r.startswith(wanted) for r in roles)]
        todo = [(s, self.recipe.seed + n) for n in range(repeats) for s in sets]
        for number, (chosen, seed) in enumerate(todo, 1):
            if (chosen, seed) in done:
                continue
            about: Piece = {"set": f"{set_name(chosen)}, seed {seed}", "piece": number, "pieces": len(todo)}
            result, _ = train_once(
                self._recipe(chosen).override(seed=seed, target_accuracy=max(targets)),
                on_event=of_piece(self.tell, about),
                time_limit=self.time_limit,
                machine=self.store.document["machine"],
            )
            if result.status == "interrupted":
                raise KeyboardInterrupt
            row = tta_row(chosen, seed, result, targets)
            if self.store.path is not None:
                name = "-".join(chosen) or "base"
                result.save(self.store.path.parent / "runs" / f"{name}-seed{seed}.json")
            self.store.enter(row)
            self.tell({**progress("done", 1.0), **about, "rows": [row]})
