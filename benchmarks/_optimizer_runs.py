"""The trainings of ``python -m benchmarks optimizers``: recipes and conclusions of each part."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

from benchmarks import _optimizer_findings as findings
from benchmarks._deck_logs import BATCHES
from gluontune.compute import bfloat16_support
from gluontune.optim import OPTIMIZERS
from gluontune.recipe import Recipe
from gluontune.search.bench.benchmark import selected

__all__ = ["LARGE", "OPTIMIZERS_OF_DECK_001", "PLANS", "Piece", "Plan", "fast_recipe"]


@dataclasses.dataclass(frozen=True)
class Piece:
    """One training: its group and its recipe, with the seed."""

    group: str
    recipe: Recipe

    @property
    def name(self) -> str:
        return f"{self.group}, seed {self.recipe.seed}"


@dataclasses.dataclass(frozen=True)
class Plan:
    """One part that consists of trainings.

    Args:
        title: a sentence for the table and the page. epochs, seeds: defaults.
        groups: ``(base recipe, epochs) -> {group: recipe}``.
        conclude: ``(groups as summarized) -> {"holds", "sentence", …}``.
    """

    title: str
    epochs: tuple[int, ...]
    seeds: int
    groups: Any
    conclude: Any

    def pieces(
        self, base: Recipe, seeds: Sequence[int], epochs: Sequence[int], only: Sequence[str] | None
    ) -> list[Piece]:
        """All trainings, seed by seed, so that an interrupted study has results of every group."""
        found = []
        for seed in seeds:
            for length in epochs:
                groups = self.groups(base.override(epochs=length), length)
                found += [Piece(group, groups[group].override(seed=seed)) for group in selected(groups, only)]
        return found


def fast_recipe(dataset: str, **changes: Any) -> Recipe:
    """Fast settings for this CPU: resident data, compiled, rewritten, bfloat16 if the CPU has it."""
    native = bfloat16_support().level == "native"
    start = Recipe(
        dataset=dataset,
        loader="resident",
        runtime="tuned",
        hybridize="static",
        rewrites=("pool-to-mean", "pad-channels" if native else "fuse-bn-relu"),  # the faster ones
        dtype="bfloat16" if native else "float32",
        batch_size_per_device=128,
        base_batch_size=128,
    )
    return start.override(**changes)


def _batches(base: Recipe, epochs: int) -> dict[str, Recipe]:
    """Only the batch changes: the rate is that of batch 64 for all."""
    naive = base.override(
        optimizer="sgd", learning_rate=0.05, base_batch_size=64, lr_scaling="none", schedule="constant"
    )
    return {f"batch {size}": naive.override(batch_size_per_device=size) for size in BATCHES}


_GATHERED = {"batch_size_per_device": 128, "accumulate": 10}  # BatchNorm then has the statistics of 128
_MUON = {"optimizer": "muon", "learning_rate": 0.04, "lr_scaling": "none", "wd": 0.1}
#: Setups for batch 1280, from nothing to what theory recommends, as changes of batch 64's recipe (NAG, one-cycle).
LARGE: dict[str, dict[str, Any]] = {
    "naive": {"lr_scaling": "none", "schedule": "constant"},
    "linear rate": {"lr_scaling": "linear"},
    "sqrt rate": {"lr_scaling": "sqrt"},
    "sqrt rate, gathered from 128": {"lr_scaling": "sqrt", **_GATHERED},
    "lars": {"optimizer": "lars", "learning_rate": 12.0, "lr_scaling": "none", "warmup_epochs": 1.0,
             "schedule": "poly"},
    "lamb": {"optimizer": "lamb", "learning_rate": 0.01, "lr_scaling": "none", "wd": 0.01},
    "muon": _MUON,
    "muon, gathered from 128": {**_MUON, **_GATHERED},
}  # fmt: skip


def _large(base: Recipe, epochs: int) -> dict[str, Recipe]:
    """Batch 64 with a one-cycle schedule, by NAG and by Muon, and batch 1280 with each setup; all as many epochs."""
    small = base.override(
        optimizer="nag", learning_rate=0.2, base_batch_size=64, schedule="onecycle", batch_size_per_device=64
    )
    found = {
        findings.LARGE_REFERENCE: small,
        f"{findings.LARGE_REFERENCE}, muon": small.override(**{**_MUON, "learning_rate": 0.02}),
    }
    for name, changes in LARGE.items():
        warmup = min(changes.get("warmup_epochs", 0.0), epochs / 4)
        found[f"batch 1280, {name}"] = small.override(
            **{"batch_size_per_device": 1280, **changes, "warmup_epochs": warmup}
        )
    return found


def _logs(base: Recipe, epochs: int) -> dict[str, Recipe]:
    """The deck's three optimizers. LBSGD is for large batches, so it has one, with its warm-up."""
    cycle = base.override(learning_rate=0.4, schedule="onecycle")
    large = {"optimizer": "lbsgd", "batch_size_per_device": 512, "lr_scaling": "sqrt", "schedule": "cosine"}
    found = {
        "sgd": cycle.override(optimizer="sgd"),
        "nag": cycle.override(optimizer="nag"),
        "lbsgd": cycle.override(**large, warmup_epochs=min(2.0, epochs / 4)),
    }
    return {f"{name}, {epochs} epochs": recipe for name, recipe in found.items()}


#: Name in the comparison: fields of the recipe. Rates are the cards' own; nag has sgd's.
OPTIMIZERS_OF_DECK_001: dict[str, dict[str, Any]] = {
    "sgd": {"optimizer": "sgd", "momentum": 0.0},
    "momentum": {"optimizer": "sgd", "momentum": 0.9},
    "nag": {"optimizer": "nag", "momentum": 0.9, "learning_rate": 0.1},
    "adagrad": {"optimizer": "adagrad"},
    "adadelta": {"optimizer": "adadelta"},
    "rmsprop": {"optimizer": "rmsprop"},
    "adam": {"optimizer": "adam"},
    "yellowfin": {"optimizer": "yellowfin"},
}


def _nets(base: Recipe, epochs: int) -> dict[str, Recipe]:
    plain = base.override(
        dtype="float32", rewrites=(), batch_size_per_device=128, schedule="constant", lr_scaling="none", wd=0.0,
        augment="none",
    )  # fmt: skip
    return {
        f"{net}, {name}": plain.override(
            **{"net": net, "learning_rate": OPTIMIZERS[changes["optimizer"]].learning_rate, **changes}
        )
        for net in findings.NETS
        for name, changes in OPTIMIZERS_OF_DECK_001.items()
    }


PLANS: dict[str, Plan] = {
    "batches": Plan("The batch grows and nothing else changes", (3,), 1, _batches, findings.conclude_batches),
    "large-batch": Plan("Batch 1280 against batch 64 at equal epochs", (10,), 3, _large, findings.conclude_large),
    "epochs": Plan("SGD, NAG and LBSGD: epochs to the deck's accuracy", (8, 20), 1, _logs, findings.conclude_logs),
    "nets": Plan("Eight optimizers on three small nets", (10,), 1, _nets, findings.conclude_nets),
}
