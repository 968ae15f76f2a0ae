"""Samples as columns, thinned for a picture, and their steadiness."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

from gluontune.errors import UsageError
from gluontune.monitor.nvml import GPU_FIELDS
from gluontune.monitor.steady import steadiness, together

__all__ = ["BY_DEVICE", "blank_table", "columns", "short", "steadiness_of", "thin"]

Sample = dict[str, Any]
BY_DEVICE = (*GPU_FIELDS, "cpu_cores_pct")


def columns(samples: Sequence[Sample]) -> dict[str, Any]:
    """Samples as columns of equal length, with None wherever a sample lacks a field."""
    names = dict.fromkeys(name for sample in samples for name in sample)
    table = blank_table()
    for name in names:
        if name in BY_DEVICE:
            keys = dict.fromkeys(key for sample in samples for key in sample.get(name) or {})
            table[name] = {key: [short((s.get(name) or {}).get(key)) for s in samples] for key in keys}
        else:
            table[name] = [short(sample.get(name)) for sample in samples]
    return table


def thin(table: dict[str, Any], max_points: int) -> dict[str, Any]:
    """Means of neighbouring points, so that at most ``max_points`` remain; a time is the last of its group.

    >>> thin({"t_s": [1, 2, 3, 4], "cpu_pct": [0, 10, None, 30]}, 2)
    {'t_s': [2, 4], 'cpu_pct': [5.0, 30.0]}
    """
    if max_points < 1:
        raise UsageError(f"max_points={max_points}: keep at least one point")
    size = max(1, math.ceil(len(table["t_s"]) / max_points))

    def join(values: Any) -> Any:
        if isinstance(values, dict):
            return {key: join(part) for key, part in values.items()}
        groups = ([v for v in values[i : i + size] if v is not None] for i in range(0, len(values), size))
        return [sum(group) / len(group) if group else None for group in groups]

    thinned = {name: join(values) for name, values in table.items() if name != "t_s"}
    times = table["t_s"]
    return {"t_s": [times[min(i + size, len(times)) - 1] for i in range(0, len(times), size)], **thinned}


def steadiness_of(series: dict[str, Any], spans: Iterable[tuple[float, float]] | None = None) -> dict[str, Any]:
    """Steadiness of a whole series: the main device's figures, its name and those of each device.

    Args:
        series: of :meth:`Monitor.series`. spans: seconds (from, to) that count; None: all.

    >>> found = steadiness_of({"t_s": [0.0, 1.0, 2.0], "cpu_pct": [50.0, 50.0, 50.0]})
    >>> found["mean_pct"], found["device"]
    (50.0, 'cpu')
    """
    spans = None if spans is None else list(spans)
    times, gpus = series["t_s"], series.get("gpu_util_pct") or {}
    by_device = {"cpu": steadiness(times, series["cpu_pct"], spans=spans)}
    by_device.update({key: steadiness(times, values, spans=spans) for key, values in gpus.items()})
    measured = any(value is not None for values in gpus.values() for value in values)
    main = steadiness(times, together(gpus), spans=spans) if measured else by_device["cpu"]
    return {**main, "device": "gpu" if measured else "cpu", "by_device": by_device}


def blank_table() -> dict[str, Any]:
    """The columns that are always there."""
    return {"t_s": [], "cpu_pct": [], "rss_mib": [], "gpu_util_pct": {}, "gpu_mem_mib": {}}


def short(value: float | None) -> float | None:
    """No more digits than a sampler can tell apart: series are long, and they are kept."""
    return round(value, 4) if isinstance(value, float) else value
