"""Samples as columns: the newest of them, all of a log, thinned for a picture, and their steadiness."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np

from gluontune.core.errors import UsageError
from gluontune.monitor.nvml import GPU_FIELDS
from gluontune.monitor.steady import steadiness, together

__all__ = ["BY_DEVICE", "Ring", "columns", "steadiness_of", "thin"]

Sample = dict[str, Any]
BY_DEVICE = (*GPU_FIELDS, "cpu_cores_pct")
Key = tuple[str, str]  # the field and the device, "" for a field of its own


def columns(samples: Sequence[Sample]) -> dict[str, Any]:
    """Samples as columns of equal length, with None wherever a sample lacks a field."""
    names = dict.fromkeys(name for sample in samples for name in sample)
    table = _blank_table()
    for name in names:
        if name in BY_DEVICE:
            keys = dict.fromkeys(key for sample in samples for key in sample.get(name) or {})
            table[name] = {key: [_short((s.get(name) or {}).get(key)) for s in samples] for key in keys}
        else:
            table[name] = [_short(sample.get(name)) for sample in samples]
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


def _blank_table() -> dict[str, Any]:
    """The columns that are always there."""
    return {"t_s": [], "cpu_pct": [], "rss_mib": [], "gpu_util_pct": {}, "gpu_mem_mib": {}}


def _short(value: float | None) -> float | None:
    """No more digits than a sampler can tell apart: series are long, and they are kept."""
    return round(value, 4) if isinstance(value, float) else value


class Ring:
    """Samples in, columns out; the oldest makes room for the newest, so hours of watching cost what minutes do.

    Args:
        size: samples that are kept.

    >>> ring = Ring(2)
    >>> for t in (1.0, 2.0, 3.0):
    ...     ring.add({"t_s": t, "cpu_pct": None if t == 2 else 10 * t, "gpu_util_pct": {"0": t}})
    >>> ring.table()["t_s"], ring.table()["cpu_pct"], ring.table()["gpu_util_pct"]
    ([2.0, 3.0], [None, 30.0], {'0': [2.0, 3.0]})
    """

    def __init__(self, size: int):
        self.size, self.count = size, 0
        self._columns: dict[Key, np.ndarray] = {}
        self._whole: dict[Key, bool] = {}  # whether all that came were whole numbers

    def add(self, sample: dict[str, Any]) -> None:
        """Keep a sample: a mapping of fields to a number or None, or to such by device."""
        place = self.count % self.size
        for column in self._columns.values():
            column[place] = math.nan
        for key, value in _flat(sample):
            if key not in self._columns:
                # Written at once, so that the system gives the memory now and not page by page.
                self._columns[key] = np.full(self.size, math.nan)
                self._whole[key] = True
            if value is not None:
                self._columns[key][place] = value
                self._whole[key] &= isinstance(value, int)
        self.count += 1

    @property
    def oldest_s(self) -> float | None:
        """The time of the oldest sample that is kept."""
        times = self._columns.get(("t_s", ""))
        return None if times is None else float(times[self.count % self.size if self.count > self.size else 0])

    def copy(self) -> Ring:
        """The samples as they are now: quick, so that whoever adds hardly waits."""
        other = Ring(self.size)
        other.count, other._whole = self.count, dict(self._whole)
        other._columns = {key: column.copy() for key, column in self._columns.items()}
        return other

    def table(self) -> dict[str, Any]:
        """The samples as columns of equal length, as :func:`columns` gives them."""
        if self.count <= self.size:
            order: Any = slice(0, self.count)
        else:
            order = np.roll(np.arange(self.size), -(self.count % self.size))
        found = _blank_table()
        for (name, device), column in self._columns.items():
            whole = self._whole[name, device]
            values = [
                None if math.isnan(value) else int(value) if whole else _short(value)
                for value in column[order].tolist()
            ]
            if name in BY_DEVICE:
                found.setdefault(name, {})[device] = values
            else:
                found[name] = values
        return found


def _flat(sample: dict[str, Any]) -> Iterator[tuple[Key, Any]]:
    for name, value in sample.items():
        if name in BY_DEVICE:
            for device, own in (value or {}).items():
                yield (name, device), own
        else:
            yield (name, ""), value
