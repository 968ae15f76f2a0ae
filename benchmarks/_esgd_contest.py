"""ESGD against a single training and against a population without evolution, at equal compute."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from gluontune.core.errors import GluontuneError
from gluontune.optim import evolution
from gluontune.recipe import Recipe
from gluontune.search.esgd import EsgdPlan, IndividualRun, WorkerPool, cost, esgd
from gluontune.search.study import Study

__all__ = ["CONTENDERS", "conclude", "contend"]

#: All get the same number of image passes; a trained image counts as three.
CONTENDERS = {
    "ESGD": "population with back-off and evolution",
    "ESGD without evolution": "population with back-off alone, one optimizer drawn anew in each generation",
    "population baseline": "as many individuals, each with one drawn optimizer and a cosine schedule; the best of all",
    "single baseline": "one training by NAG with a one-cycle schedule, as long as the whole population's",
}


def contend(
    ledger: Study,
    recipe: Recipe,
    plan: EsgdPlan,
    seeds: Sequence[int],
    *,
    rate: float,
    workers: int | None,
    folder: Path | None,
    say: Callable[[str], None],
    time_limit: float,
) -> None:
    """Add the missing rows, one for each contender and seed, to the ledger.

    ESGD comes first; its number of passes is the others' limit.

    Args:
        rate: peak rate of the single baseline.
        folder: for an interrupted ESGD; None: not saved.
    """
    done = {(r["contender"], r["seed"]): r for r in ledger.document["done"]}
    for seed in seeds:
        own = recipe.override(seed=seed)
        steps = None
        for name in CONTENDERS:
            row = done.get((name, seed))
            if row is None:
                say(f"seed {seed}: {name}")
                try:
                    row = _contend(name, own, plan, steps, rate, workers, folder, time_limit)
                except GluontuneError as error:
                    row = {"status": "failed", "reason": str(error)}
                row = {"contender": name, "seed": seed, **row}
                ledger.enter(row)
            if name == "ESGD" and row["status"] == "ok":
                steps = _steps(row, plan)


def _contend(
    name: str,
    recipe: Recipe,
    plan: EsgdPlan,
    steps: int | None,
    rate: float,
    workers: int | None,
    folder: Path | None,
    time_limit: float,
) -> dict[str, Any]:
    if name == "ESGD":
        return _evolved(recipe, plan, workers, folder, time_limit)
    if steps is None:
        raise GluontuneError("ESGD failed, so it is not known how much the others may compute")
    if name == "ESGD without evolution":
        generations = max(1, steps // (plan.population * plan.sgd_steps))
        alone = dataclasses.replace(plan, evolution_steps=0, generations=generations)
        return _evolved(recipe, alone, workers, None, time_limit)
    with WorkerPool(recipe, workers, time_limit) as crew:
        updates = plan.updates or crew.batches_per_epoch
        if name == "single baseline":
            setup = {"optimizer": "nag", "learning_rate": rate, "momentum": 0.9, "schedule": "onecycle"}
            runs = [IndividualRun("single", 1, None, setup, steps=max(1, steps), updates=updates)]
        else:
            runs = _drawn(recipe, plan, max(1, steps // plan.population), updates)
        records = [record for _, record in crew.run(runs)]
    best = min((r["best"] for r in records), key=lambda s: evolution.ranked_value(s["fitness"]))
    return {"status": "ok", "reason": "", "best": best, "cost": cost(records)}


def _steps(row: dict[str, Any], plan: EsgdPlan) -> int:
    """SGD steps, each with its score, that cost as many passes as ESGD, including its offspring's scores.

    >>> cost = {"image_passes": 1000, "trained_images": 200}
    >>> _steps({"cost": cost, "best": {"samples": 20}}, EsgdPlan(population=2, generations=5, sgd_steps=1))
    12
    """
    trained = row["cost"]["trained_images"] / (plan.population * plan.generations * plan.sgd_steps)
    return int(row["cost"]["image_passes"] // (3 * trained + row["best"]["samples"]))


def _evolved(
    recipe: Recipe, plan: EsgdPlan, workers: int | None, folder: Path | None, time_limit: float
) -> dict[str, Any]:
    own = None if folder is None else folder / f"esgd-seed{recipe.seed}"
    begun = own is not None and (own / "esgd.json").is_file()
    found = esgd(recipe, plan, workers=workers, out=own, resume=begun, time_limit=time_limit)
    if not found["complete"]:
        raise KeyboardInterrupt
    shares = [g["offspring_share_of_elite"] for g in found["generations"]]
    chosen = [g["best"]["setup"] for g in found["generations"]]
    return {
        "status": "ok",
        "reason": "",
        "best": found["best"]["score"],
        "cost": found["cost"],
        "offspring_share_of_elite": shares,
        "setups_of_best": chosen,
    }


def _drawn(recipe: Recipe, plan: EsgdPlan, steps: int, updates: int) -> list[IndividualRun]:
    """Individuals that keep their first optimizer."""
    runs = []
    for j in range(plan.population):
        setup = evolution.draw(evolution.POOL, np.random.default_rng([recipe.seed, 1, 1, j]))
        setup["schedule"] = "cosine"
        start = recipe.seed * 10_000 + j if plan.start == "own" else None
        runs.append(IndividualRun(f"individual {j}", 1 + j, None, setup, steps=steps, updates=updates, start=start))
    return runs


def conclude(rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Whether ESGD's loss is the smallest, seed by seed and in the mean."""
    losses: dict[str, dict[int, float]] = {}
    for row in rows:
        if row["status"] == "ok" and row["best"]["loss"] is not None:
            losses.setdefault(row["contender"], {})[row["seed"]] = row["best"]["loss"]
    if "ESGD" not in losses:
        return {"holds": False, "sentence": "ESGD gave no result."}
    mine, beaten, texts = losses["ESGD"], {}, []
    for name, theirs in losses.items():
        common = [seed for seed in mine if seed in theirs]
        mean = sum(theirs.values()) / len(theirs)
        texts.append(f"{name} {mean:.4f}")
        if name != "ESGD" and common:
            beaten[name] = {"seeds": len(common), "won": sum(mine[seed] < theirs[seed] for seed in common)}
    baselines = [name for name in ("single baseline", "population baseline") if name in beaten]
    won = ", ".join(f"{beaten[name]['won']} of {beaten[name]['seeds']} against the {name}" for name in baselines)
    return {
        "holds": len(baselines) == 2 and all(beaten[n]["won"] == beaten[n]["seeds"] for n in baselines),
        "won": beaten,
        "sentence": f"Mean loss at equal compute: {', '.join(texts)}. ESGD is better in {won or 'no comparison'}.",
    }
