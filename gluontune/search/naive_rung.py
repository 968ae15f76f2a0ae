"""The naive rung's own work: how long trainings may be, and what holds the script back."""

from __future__ import annotations

from typing import Any

from gluontune import monitor
from gluontune.core.ladder_document import RungRow
from gluontune.recipe import Recipe
from gluontune.search.measure import Contender
from gluontune.search.results_store import ResultsStore
from gluontune.search.rung import Site
from gluontune.search.trainings import Trainings

__all__ = ["fit_length", "what_limits"]

_FACTS = ("num_workers", "loader", "hybridize", "dtype", "batch_size_per_device", "num_devices")


def fit_length(row: RungRow, naive: Contender, trainings: Trainings) -> Contender:
    """The naive script, shortened with all trainings of the climb to what the budget allows; the row says so.

    Where not even a short one fits, no accuracy is looked at.
    """
    document = trainings.results.document
    document["num_val"] = trainings.num_val
    document["samples_per_epoch"] = trainings.batches * naive.recipe.global_batch_size or None
    fitted = trainings.fitted_epochs(naive)
    asked = naive.recipe.epochs
    if fitted is None:
        document["samples_per_epoch"] = None
        row["notes"].append(
            "the budget does not suffice for one training: throughput is measured, accuracy is not looked at"
        )
    elif fitted < asked:
        row["notes"].append(
            f"each training is {fitted:g} epochs long instead of {asked:g}, to fit into the budget of "
            f"{trainings.budget.total_s / 60:.3g} min"
        )
        naive = naive.of_length(fitted, "naive")
    return naive


def what_limits(results: ResultsStore, row: RungRow, recipe: Recipe, site: Site) -> dict[str, Any]:
    """The monitor's verdict on the naive training."""
    facts = {name: getattr(recipe, name) for name in _FACTS}
    facts["usable_cores"] = site.cores
    facts["device"] = "gpu" if site.gpus and recipe.devices != "cpu" else "cpu"
    phases = {**row["phases"], "phases_pct": row["phases_pct"]}
    return monitor.verdict(phases, row["utilization"], facts).to_dict()
