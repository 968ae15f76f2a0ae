"""What a change costs a job whose metric is no accuracy: a loss, an error, a signal-to-noise ratio."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from gluontune.documents import RungRow

__all__ = ["COLLAPSED", "judge_quality", "quality_of"]

REMARK = 0.05  # of the kept rungs' value: a worse one is remarked upon
COLLAPSED = 0.25  # so much worse cannot be one unlucky seed's


def quality_of(row: Mapping[str, Any]) -> float | None:
    """The last value of a row's metric; None: there is none, or it is an accuracy, which has a gate of its own.

    >>> quality_of({"val_metric": {"name": "rmse", "mode": "min", "values": [2.0, 1.5]}})
    1.5
    """
    metric = row.get("val_metric") or {}
    if not metric or metric["name"] == "accuracy" or not metric["values"]:
        return None
    return metric["values"][-1]


def judge_quality(row: RungRow, rows: Sequence[Mapping[str, Any]]) -> bool:
    """Take a gain back where the job's metric has collapsed; whether that is so. A smaller loss is a note.

    Args:
        row: of a rung that has been trained. rows: those before it.

    >>> row = {"kept": True, "notes": [], "val_metric": {"name": "rmse", "mode": "min", "values": [2.0]},
    ...        "ratio_to_previous": {"median": 1.5}}
    >>> kept = {"kept": True, "val_metric": {"name": "rmse", "mode": "min", "values": [1.0]}}
    >>> judge_quality(row, [kept]), row["reason"]
    (True, 'rmse 2, and 1 before it (smaller is better), at equal epochs (throughput 1.50×)')
    """
    metric = row.get("val_metric") or {}
    before = [value for value in (quality_of(r) for r in rows if r["kept"]) if value is not None]
    if not metric or metric["name"] == "accuracy" or not metric["values"] or not before:
        return False
    value, reference = metric["values"][-1], statistics.median(before)
    sign = 1.0 if metric["mode"] == "min" else -1.0
    worse = float("inf") if value is None else sign * (value - reference) / max(abs(reference), 1e-12)
    shown = "not finite" if value is None else f"{value:.4g}"
    way = "smaller" if metric["mode"] == "min" else "larger"
    words = f"{metric['name']} {shown}, and {reference:.4g} before it ({way} is better), at equal epochs"
    if not worse <= COLLAPSED and row["kept"]:
        speed = row["ratio_to_previous"] or {"median": 1.0}
        row.update({"kept": False, "verdict": "hurt", "reason": f"{words} (throughput {speed['median']:.2f}×)"})
        return True
    if not worse <= REMARK:
        row["notes"].append(f"{words}: one seed cannot tell whether that is noise")
    return False
