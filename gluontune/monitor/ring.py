"""The newest samples, as columns whose memory is taken at the start: hours of watching cost what minutes do."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np

from gluontune.monitor.series import BY_DEVICE, blank_table, short

__all__ = ["Ring"]

Key = tuple[str, str]  # the field and the device, "" for a field of its own


class Ring:
    """Samples in, columns out; the oldest makes room for the newest.

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
        """The samples as columns of equal length, as :func:`gluontune.monitor.series.columns` gives them."""
        if self.count <= self.size:
            order: Any = slice(0, self.count)
        else:
            order = np.roll(np.arange(self.size), -(self.count % self.size))
        found = blank_table()
        for (name, device), column in self._columns.items():
            whole = self._whole[name, device]
            values = [
                None if math.isnan(value) else int(value) if whole else short(value) for value in column[order].tolist()
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
