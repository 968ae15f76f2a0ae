"""Samples as columns: the newest, all of a log, thinned for a picture; and the steadiness of a device.

Every figure is time-weighted: sample ``i`` covers the interval from the sample before it (a utilization is always a
mean over the time just past); the first one covers the median interval. Time outside the ``spans``, or with a sample of
None (a lost GPU, an N/A field), does not count.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from statistics import median
from typing import Any, Optional

import numpy as np

from gluontune.core.errors import UsageError
from gluontune.monitor.nvml import GPU_FIELDS

Sample = dict[str, Any]
BY_DEVICE = (*GPU_FIELDS, "cpu_cores_pct")
Key = tuple[str, str]  # the field and the device, "" for a field without devices
#: Below this utilization, in percent, a device counts as idle.
IDLE_BELOW_PCT = 10.0
_LEVELS = (10, 50, 90)

Values = Sequence[Optional[float]]
# One stretch of time with one value: (start, end, value, span's number).
_Piece = tuple[float, float, float, int]


def mean_of(values: Values | None) -> float | None:
    """The mean of the known values; None without one."""
    known = [value for value in values or () if value is not None]
    return sum(known) / len(known) if known else None


def columns(samples: Sequence[Sample]) -> dict[str, Any]:
    """Samples as columns of equal length, with None for a missing field."""
    ring = Ring(max(1, len(samples)))
    for sample in samples:
        ring.add(sample)
    return ring.table()


def thin(table: dict[str, Any], max_points: int) -> dict[str, Any]:
    """Means of neighbouring points, so that at most ``max_points`` remain; a time is the last of its group."""
    if max_points < 1:
        raise UsageError(f"max_points={max_points}: keep at least one point")
    size = max(1, math.ceil(len(table["t_s"]) / max_points))

    def join(values: Any) -> Any:
        if isinstance(values, dict):
            return {key: join(part) for key, part in values.items()}
        return [mean_of(values[i : i + size]) for i in range(0, len(values), size)]

    thinned = {name: join(values) for name, values in table.items() if name != "t_s"}
    times = table["t_s"]
    return {"t_s": [times[min(i + size, len(times)) - 1] for i in range(0, len(times), size)], **thinned}


def steadiness_of(series: dict[str, Any], spans: Iterable[tuple[float, float]] | None = None) -> dict[str, Any]:
    """Steadiness of a whole series: the main device's figures, its name and those of each device.

    Args:
        series: of :meth:`Monitor.series`. spans: (start, end) in seconds of the time that counts; None: all.

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


class Ring:
    """A ring buffer of the newest ``size`` samples, which returns columns; its memory is constant."""

    def __init__(self, size: int):
        self.size, self.count = size, 0
        self._columns: dict[Key, np.ndarray] = {}
        self._whole: dict[Key, bool] = {}  # whether all values were whole numbers

    def add(self, sample: dict[str, Any]) -> None:
        """Add a sample: a mapping of fields to a number or None, or to a mapping of these by device."""
        place = self.count % self.size
        for column in self._columns.values():
            column[place] = math.nan
        for key, value in _flat(sample):
            if key not in self._columns:
                # Written at once, so that the system allocates the memory now.
                self._columns[key] = np.full(self.size, math.nan)
                self._whole[key] = True
            if value is not None:
                self._columns[key][place] = value
                self._whole[key] &= isinstance(value, int)
        self.count += 1

    @property
    def oldest_s(self) -> float | None:
        """The time of the oldest sample."""
        times = self._columns.get(("t_s", ""))
        return None if times is None else float(times[self.count % self.size if self.count > self.size else 0])

    def table(self) -> dict[str, Any]:
        """The samples as columns of equal length, as of :func:`columns`."""
        if self.count <= self.size:
            order: Any = slice(0, self.count)
        else:
            order = np.roll(np.arange(self.size), -(self.count % self.size))
        columns: dict[str, Any] = {"t_s": [], "cpu_pct": [], "rss_mib": [], "gpu_util_pct": {}, "gpu_mem_mib": {}}
        for (name, device), column in self._columns.items():
            whole = self._whole[name, device]
            values = [  # no more digits than a sampler can resolve, since series are long and saved
                None if math.isnan(value) else int(value) if whole else round(value, 4)
                for value in column[order].tolist()
            ]
            if name in BY_DEVICE:
                columns.setdefault(name, {})[device] = values
            else:
                columns[name] = values
        return columns


def _flat(sample: dict[str, Any]) -> Iterator[tuple[Key, Any]]:
    for name, value in sample.items():
        if name in BY_DEVICE:
            for device, own in (value or {}).items():
                yield (name, device), own
        else:
            yield (name, ""), value


def steadiness(
    t_s: Sequence[float], value_pct: Values, *, spans: Iterable[tuple[float, float]] | None = None
) -> dict[str, Any]:
    """The steadiness of a utilization.

    With ``v`` the value and ``w`` the length of each piece of time, ``W = sum(w)``:

    ======================  ================================================================================
    ``mean_pct``            ``sum(w v) / W``, percent
    ``cv``                  coefficient of variation, ``sqrt(sum(w (v - mean)^2) / W) / mean``
    ``below_10_pct`` …      share of the time, in percent, with ``v`` below 10 (50, 90) %
    ``idle_gaps``           number of unbroken stretches with ``v`` below 10 %
    ``longest_idle_gap_s``  seconds; 0 without a gap. ``mean_idle_gap_s``: None without a gap
    ``idle_period_s``       mean seconds from the start of a gap to the start of the next one of its span
    ``score``               ``1 / (1 + cv^2)``: 1 is perfectly even; a device that is busy for a share ``p`` of
                            the time and otherwise at zero scores ``p``
    ``measured_s``          ``W``, seconds
    ======================  ================================================================================

    The score measures how *even* the load is, ``mean_pct`` how *high*: an even 30 % is steady but low.

    Args:
        t_s: times of the samples in seconds, in ascending order.
        value_pct: utilization in percent (0 … 100), None if unknown.
        spans: ``(start_s, end_s)`` of the time that counts; None: all. Spans closer than half a sampling interval
            are joined.

    Returns:
        The table's figures, ready for JSON; None for an undefined figure (no samples, a mean of zero).

    Raises:
        UsageError: the lengths differ, or the times do not ascend.

    Source: the score is Jain's fairness index over time; Jain, Chiu, Hawe, *A Quantitative Measure of
    Fairness and Discrimination for Resource Allocation in Shared Computer Systems*, DEC-TR-301, 1984.

    >>> spiky = steadiness([1, 2, 3, 4], [100, 0, 100, 0])
    >>> spiky["mean_pct"], spiky["score"], spiky["below_10_pct"], spiky["idle_gaps"], spiky["idle_period_s"]
    (50.0, 0.5, 50.0, 2, 2.0)
    >>> steadiness([1, 2, 3, 4], [50, 50, 50, 50])["score"]
    1.0
    """
    pieces = _pieces(t_s, value_pct, None if spans is None else sorted(spans))
    total = sum(end - start for start, end, _, _ in pieces)
    mean = cv = None
    below: dict[int, float | None] = dict.fromkeys(_LEVELS)
    if total > 0:
        mean = sum((end - start) * value for start, end, value, _ in pieces) / total
        spread = sum((end - start) * (value - mean) ** 2 for start, end, value, _ in pieces) / total
        cv = math.sqrt(spread) / mean if mean > 0 else None
        below = {n: 100.0 * sum(end - start for start, end, value, _ in pieces if value < n) / total for n in _LEVELS}
    gaps = _gaps(pieces)
    lengths = [end - start for start, end, _ in gaps]
    return {
        "measured_s": round(total, 6), "mean_pct": mean, "cv": cv,
        **{f"below_{level}_pct": share for level, share in below.items()},
        "idle_gaps": len(gaps), "longest_idle_gap_s": max(lengths, default=0.0) if total > 0 else None,
        "mean_idle_gap_s": mean_of(lengths),
        "idle_period_s": mean_of([b[0] - a[0] for a, b in zip(gaps, gaps[1:]) if a[2] == b[2]]),
        "score": None if cv is None else 1.0 / (1.0 + cv**2),
    }  # fmt: skip


def together(by_device: Mapping[str, Values]) -> list[float | None]:
    """The mean percent over several devices at each sample, without devices that have no value then."""
    return [mean_of(values) for values in zip(*by_device.values())]


def _pieces(t_s: Sequence[float], values: Values, spans: list[tuple[float, float]] | None) -> list[_Piece]:
    if len(t_s) != len(values):
        raise UsageError(f"steadiness: {len(t_s)} times and {len(values)} values; give one value per time")
    lengths = [b - a for a, b in zip(t_s, t_s[1:])]
    if any(length < 0 or not math.isfinite(length) for length in lengths):
        raise UsageError("steadiness: t_s must ascend; sort the samples by time")
    usual = median(lengths) if lengths else 0.0
    merged = None if spans is None else _merge(spans, usual / 2)
    pieces: list[_Piece] = []
    number = 0
    for end, length, value in zip(t_s, [usual, *lengths], values):
        start = end - length
        if merged is None:
            overlaps = [(start, end, 0)]
        else:
            while number < len(merged) and merged[number][1] <= start:
                number += 1
            overlaps = _overlaps(merged, number, start, end)
        if value is not None and math.isfinite(value):
            pieces += [(a, b, float(value), span) for a, b, span in overlaps if b > a]
    return pieces


def _merge(spans: list[tuple[float, float]], closer_than: float) -> list[tuple[float, float]]:
    """Ascending spans without overlap; those that the samples cannot separate become one."""
    merged: list[tuple[float, float]] = []
    for start, end in spans:
        if merged and start - merged[-1][1] <= closer_than:
            merged[-1] = (merged[-1][0], max(end, merged[-1][1]))
        else:
            merged.append((start, end))
    return merged


def _overlaps(
    spans: list[tuple[float, float]], number: int, start: float, end: float
) -> list[tuple[float, float, int]]:
    found = []
    while number < len(spans) and spans[number][0] < end:
        found.append((max(start, spans[number][0]), min(end, spans[number][1]), number))
        number += 1
    return found


def _gaps(pieces: list[_Piece]) -> list[tuple[float, float, int]]:
    """``(start, end, span)`` of each unbroken idle stretch."""
    gaps: list[tuple[float, float, int]] = []
    for start, end, value, span in pieces:
        if value >= IDLE_BELOW_PCT:
            continue
        if gaps and gaps[-1][2] == span and math.isclose(gaps[-1][1], start, rel_tol=0, abs_tol=1e-9):
            gaps[-1] = (gaps[-1][0], end, span)
        else:
            gaps.append((start, end, span))
    return gaps
