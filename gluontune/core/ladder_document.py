"""The shapes of what ``ladder.json`` holds: the ladder writes it, the report reads it. Nothing here imports mxnet."""

from __future__ import annotations

from typing import Any, Optional, TypedDict

from gluontune.core.stats import Interval

__all__ = ["Guess", "RungRow", "VariantRow", "rung_row"]


class Guess(TypedDict):
    """A rate that was predicted before it was measured, and what the prediction rests on."""

    samples_per_sec: float
    basis: str


class _Variant(TypedDict):
    label: str
    changes: dict[str, Any]
    status: str
    reason: Optional[str]
    samples_per_sec: Optional[Interval]
    ratio_to_previous: Optional[Interval]
    chosen: bool
    lost: bool


class VariantRow(_Variant, total=False):
    """One way to climb a rung.

    Args:
        changes: recipe fields. status: ``ran`` or ``failed``. chosen: the rung's figures are this variant's.
        lost: it cost accuracy. predicted: before it was measured.
        accuracy, epochs, seconds_to_accuracy: of the training to the kept accuracy, on the rung of large batches.
    """

    predicted: Optional[Guess]
    accuracy: Optional[float]
    epochs: float
    seconds_to_accuracy: Optional[float]


class _Rung(TypedDict):
    name: str
    sentence: str
    status: str
    reason: Optional[str]
    verdict: str
    measurable: bool
    kept: bool
    finished: bool
    samples_per_sec: Optional[Interval]
    predicted: Optional[Guess]
    speedup_vs_naive: Optional[float]
    speedup_ci95: Optional[list[float]]
    ratio_to_previous: Optional[Interval]
    epoch_seconds: list[float]
    elapsed_seconds: list[float]
    val_accuracy: list[float]
    val_metric: dict[str, Any]
    accuracy_runs: list[float]
    seconds_to_accuracy: Optional[dict[str, Any]]
    train_loss: list[float]
    steadiness: dict[str, Any]
    phases_pct: dict[str, float]
    phases: dict[str, Any]
    utilization: dict[str, Any]
    peak_rss_mib: Optional[float]
    peak_gpu_mib: Optional[float]
    warmup_seconds: Optional[float]
    seconds: Optional[float]
    variants: list[VariantRow]
    changes: dict[str, Any]
    recipe: Optional[dict[str, Any]]
    error: Optional[dict[str, Any]]
    notes: list[str]


class RungRow(_Rung, total=False):
    """One rung: what was measured, what it means, and the recipe that it leaves.

    Args:
        status: ``ran``, ``failed`` or ``skipped``. verdict: ``helped``, ``no gain``, ``hurt`` or ``n/a``; with
            ``measurable`` False it is not known. kept: the climb goes on from its recipe.
        samples_per_sec: of the chosen variant; ``ratio_to_previous``: to the best recipe before it.
        seconds_to_accuracy: of the rung of large batches: ``{"target", "seconds", "ratio", ...}``.
        changes: recipe fields of the chosen variant. variants: all that were tried.
        contest_decided: the slices sufficed for a verdict. devices: the counts that were compared.
        on_top_of: the rung that it was measured on top of, where the proof took that one back.
    """

    contest_decided: bool
    on_top_of: str
    devices: dict[str, Any]


def rung_row(name: str, sentence: str) -> RungRow:
    """A row as it stands when its rung begins: if nothing more comes, it was interrupted.

    >>> rung_row("naive", "as written")["status"]
    'skipped'
    """
    return {
        "name": name, "sentence": sentence, "status": "skipped", "reason": "interrupted before it was finished",
        "verdict": "n/a", "measurable": True, "kept": False, "finished": False, "samples_per_sec": None,
        "predicted": None, "speedup_vs_naive": None, "speedup_ci95": None, "ratio_to_previous": None,
        "epoch_seconds": [], "elapsed_seconds": [], "val_accuracy": [], "val_metric": {}, "accuracy_runs": [],
        "seconds_to_accuracy": None, "train_loss": [], "steadiness": {}, "phases_pct": {}, "phases": {},
        "utilization": {}, "peak_rss_mib": None, "peak_gpu_mib": None, "warmup_seconds": None, "seconds": None,
        "variants": [], "changes": {}, "recipe": None, "error": None, "notes": [],
    }  # fmt: skip
