"""Operators that reshape and turn."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from gluontune.graph.rules.reducing import axes_of
from gluontune.graph.shapes import MaybeShape, Shape, rule

__all__ = ["new_shape", "np_new_shape", "same_size"]


def new_shape(old: Any, codes: Any, reverse: bool = False) -> tuple[int, ...]:
    """The shape that Reshape's codes mean: 0 keeps, -1 infers, -2 keeps the rest, -3 joins two, -4 splits one.

    >>> new_shape((2, 3, 4), (0, -1)), new_shape((2, 3, 4), (-3, 0)), new_shape((2, 6), (0, -4, 2, -1))
    ((2, 12), (6, 4), (2, 2, 3))
    >>> new_shape((10, 5, 4), (-1, 0)), new_shape((10, 5, 4), (-1, 0), True), new_shape((2, 20), (-2, 4, 5, -4), True)
    ((40, 5), (50, 4), (2, 4, 5))
    """
    old, codes = list(old), list(codes)
    if reverse:
        return tuple(reversed(new_shape(old[::-1], codes[::-1])))  # a split is (a, b, -4) here
    found: list[int] = []
    at = i = 0
    while i < len(codes):
        code = codes[i]
        if code == 0:
            found.append(old[at])
        elif code == -2:
            found += old[at:]
            at = len(old) - 1
        elif code == -3:
            found.append(old[at] * old[at + 1])
            at += 1
        elif code == -4:
            a, b = codes[i + 1 : i + 3]
            found += [old[at] // b if a == -1 else a, old[at] // a if b == -1 else b]
            i += 2
        else:
            found.append(code)
        at, i = at + 1, i + 1
    if -1 in found:
        known = -math.prod(found)
        found[found.index(-1)] = math.prod(old) // known if known else 0
    return tuple(found)


def np_new_shape(old: Any, codes: Any, reverse: bool = False) -> tuple[int, ...]:
    """The same for ``npx.reshape``: -2 keeps one, -3 drops a 1, -4 keeps the rest, -5 joins two, -6 splits one.

    >>> np_new_shape((2, 3, 4), (-2, -5)), np_new_shape((2, 1, 4), (-2, -3, -1))
    ((2, 12), (2, 4))
    """
    old, codes = list(old), list(codes)
    if -3 in codes:
        sizes = old[::-1] if reverse else old
        ones = _places_of(codes[::-1] if reverse else codes, -3)
        if any(place >= len(sizes) or sizes[place] != 1 for place in ones):
            raise ValueError(
                f"-3 of {tuple(codes)} drops a side of 1, which {tuple(old)} does not have there"
            )
        kept = [size for place, size in enumerate(sizes) if place not in ones]
        old, codes = kept[::-1] if reverse else kept, [code for code in codes if code != -3]
    plain = [{-2: 0, -4: -2, -5: -3, -6: -4}.get(code, code) for code in codes]
    return new_shape(old, plain, reverse)


def _places_of(codes: list[int], wanted: int) -> list[int]:
    """Which axes of the old shape the code ``wanted`` stands for; codes after one that infers are not counted."""
    found, at, i = [], 0, 0
    while i < len(codes):
        if codes[i] == wanted:
            found.append(at)
        at += 2 if codes[i] == -5 else 1
        i += 3 if codes[i] == -6 else 1
    return found


def _reshape_back(attrs: Mapping[str, Any], shapes: list[MaybeShape], outputs: list[MaybeShape]) -> None:
    """One unknown side follows from the number of elements."""
    x, out = shapes[0], outputs[0]
    if x is not None and out is not None and x.count(-1) == 1 and -1 not in out:
        rest = -math.prod(x)
        shapes[0] = tuple(math.prod(out) // rest if n == -1 else n for n in x) if rest else x


@rule("Reshape", back=_reshape_back)
def reshape(attrs: Mapping[str, Any], shapes: list[MaybeShape]) -> list[MaybeShape]:
    x = shapes[0] or ()
    return [same_size(x, new_shape(x, attrs["shape"] or attrs["target_shape"], attrs["reverse"]))]


@rule("_npx_reshape")
def npx_reshape(attrs: Mapping[str, Any], shapes: list[MaybeShape]) -> list[MaybeShape]:
    x = shapes[0] or ()
    return [same_size(x, np_new_shape(x, attrs["newshape"], attrs["reverse"]))]


@rule("_np_reshape")
def np_reshape(attrs: Mapping[str, Any], shapes: list[MaybeShape]) -> list[MaybeShape]:
    x, wanted = shapes[0] or (), list(attrs["newshape"])
    if -1 in wanted:
        known = -math.prod(wanted)
        wanted[wanted.index(-1)] = math.prod(x) // known if known else 0
    return [same_size(x, tuple(wanted))]


def same_size(old: Shape, new: Shape) -> Shape:
    """``new``, where it holds as many numbers as ``old``."""
    if math.prod(old) != math.prod(new):
        raise ValueError(f"{math.prod(old)} numbers do not fill {new}")
    return new


@rule("reshape_like", needs=2)
def reshape_like(attrs: Mapping[str, Any], shapes: list[MaybeShape]) -> list[MaybeShape]:
    x, other = shapes[0] or (), shapes[1] or ()
    a = slice(attrs["lhs_begin"], attrs["lhs_end"]).indices(len(x))
    b = slice(attrs["rhs_begin"], attrs["rhs_end"]).indices(len(other))
    return [same_size(x, x[: a[0]] + other[b[0] : b[1]] + x[a[1] :])]


@rule("Flatten")
def flatten(attrs: Mapping[str, Any], shapes: list[MaybeShape]) -> list[MaybeShape]:
    x = shapes[0] or ()
    return [(x[0], math.prod(x[1:]))]


@rule("transpose", "_np_transpose", needs=0)
def transpose(attrs: Mapping[str, Any], shapes: list[MaybeShape]) -> list[MaybeShape]:
    x = shapes[0]
    if x is None:
        return [None]
    axes = attrs["axes"] or range(len(x) - 1, -1, -1)
    if sorted(a % len(x) for a in axes) != list(range(len(x))):
        raise ValueError(f"axes {tuple(axes)}")
    return [tuple(x[a] for a in axes)]


@rule("SwapAxis", needs=0)
def swap_axis(attrs: Mapping[str, Any], shapes: list[MaybeShape]) -> list[MaybeShape]:
    if shapes[0] is None:
        return [None]
    x = list(shapes[0])
    a, b = attrs["dim1"], attrs["dim2"]
    x[a], x[b] = x[b], x[a]
    return [tuple(x)]


@rule("expand_dims", needs=0)
def expand_dims(attrs: Mapping[str, Any], shapes: list[MaybeShape]) -> list[MaybeShape]:
    x = shapes[0]
    if x is None:
        return [None]
    axis = attrs["axis"] % (len(x) + 1)
    return [(*x[:axis], 1, *x[axis:])]


@rule("squeeze", "_np_squeeze")
def squeeze(attrs: Mapping[str, Any], shapes: list[MaybeShape]) -> list[MaybeShape]:
    x, axis = shapes[0] or (), attrs["axis"]
    if axis is None or axis == ():
        return [tuple(n for n in x if n != 1)]
    axes = axes_of(len(x), axis)
    if any(x[a] != 1 for a in axes):
        raise ValueError(f"axes {axes} are not all of size 1")
    return [tuple(n for a, n in enumerate(x) if a not in axes)]
