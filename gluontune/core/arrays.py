"""Arrays in nested lists and tuples, and their distances: the one place where nets, files or ranks are compared.

Others than comparable ones (shapes, types, a name on one side, NaN) are infinitely far apart, so that no NaN passes.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np


def flat(value: Any) -> list[Any]:
    """The items of ``value`` in order; without None."""
    if isinstance(value, (list, tuple)):
        return [item for part in value for item in flat(part)]
    return [] if value is None else [value]


def mapped(change: Callable[[Any], Any], value: Any) -> Any:
    """``value`` with each of its items changed."""
    if not isinstance(value, (list, tuple)):
        return change(value)
    items = [mapped(change, item) for item in value]
    return type(value)(*items) if hasattr(value, "_fields") else type(value)(items)


_LEAST = 1e-12  # the scale of arrays of zeros


def distance(mine: Any, theirs: Any) -> float:
    """The largest difference of two values; equal infinities count as no difference."""
    a, b = np.asarray(mine), np.asarray(theirs)
    if a.shape != b.shape or a.dtype != b.dtype or np.isnan(a).any() or np.isnan(b).any():
        return float("inf")
    apart = a != b
    wide = np.float64 if a.dtype.kind != "c" else np.complex128
    return float(np.abs(a[apart].astype(wide) - b[apart].astype(wide)).max(initial=0.0))


def size(array: Any) -> float:
    """The largest finite absolute value."""
    values = np.asarray(array)
    return float(np.abs(values[np.isfinite(values)]).max(initial=0.0))


def gap(mine: Any, theirs: Any, scale: float = 0.0) -> float:
    """Their :func:`distance` as a share of ``theirs``' largest value, or of ``scale`` where that is larger."""
    return distance(mine, theirs) / max(size(theirs), scale, _LEAST)


def gaps(mine: Mapping[Any, Any], theirs: Mapping[Any, Any]) -> dict[Any, float]:
    """The :func:`gap` of each name that either side has."""
    none = float("inf")
    found = {name: gap(mine[name], array) if name in mine else none for name, array in theirs.items()}
    return {**found, **{name: none for name in mine if name not in theirs}}


def worst(mine: Iterable[Any], theirs: Iterable[Any], scale: float = 0.0) -> float:
    """The largest :func:`gap` of arrays in order, with that ``scale``; infinite if one side has more."""
    pairs = itertools.zip_longest(mine, theirs)
    return max((gap(a, b, scale) if a is not None and b is not None else float("inf") for a, b in pairs), default=0.0)
