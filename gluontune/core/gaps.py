"""Distances of arrays: the one place where two nets, files or ranks are compared.

Arrays that cannot be compared are infinitely far apart: other shapes or types, a name on one side only, and NaN. So no
caller's ``max`` or ``<=`` lets a NaN pass.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

_LEAST = 1e-12  # the scale of arrays of zeros


def distance(mine: Any, theirs: Any) -> float:
    """The largest difference of two values; equal infinities count as no difference.

    >>> one = np.array([1.0, np.inf])
    >>> distance(one, one), distance(one, np.array([3.0, np.inf])), distance(one, np.array([1.0, np.nan]))
    (0.0, 2.0, inf)
    >>> distance(one, one.astype("float32")), distance(one, one[:1])
    (inf, inf)
    """
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
    """Their :func:`distance` as a share of ``theirs``' largest value, or of ``scale`` where that is larger.

    >>> gap(np.array([1.0, 2.0]), np.array([1.0, 4.0])), gap(np.array([np.nan]), np.array([np.nan]))
    (0.5, inf)
    """
    return distance(mine, theirs) / max(size(theirs), scale, _LEAST)


def gaps(mine: Mapping[Any, Any], theirs: Mapping[Any, Any]) -> dict[Any, float]:
    """The :func:`gap` of each name that either side has.

    >>> gaps({"a": np.ones(1), "b": np.ones(1)}, {"a": np.ones(1), "c": np.ones(1)})
    {'a': 0.0, 'c': inf, 'b': inf}
    """
    none = float("inf")
    found = {name: gap(mine[name], array) if name in mine else none for name, array in theirs.items()}
    return {**found, **{name: none for name in mine if name not in theirs}}


def worst(mine: Iterable[Any], theirs: Iterable[Any], scale: float = 0.0) -> float:
    """The largest :func:`gap` of arrays in order, with that ``scale``; infinite if one side has more.

    >>> worst([np.ones(2)], [np.ones(2)]), worst([np.ones(2)], [])
    (0.0, inf)
    """
    pairs = itertools.zip_longest(mine, theirs)
    return max((gap(a, b, scale) if a is not None and b is not None else float("inf") for a, b in pairs), default=0.0)
