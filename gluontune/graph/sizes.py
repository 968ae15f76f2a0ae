"""Shapes and axes as the attributes of MXNet's operators mean them."""

from __future__ import annotations

import math
from typing import Any

__all__ = ["axes_of", "new_shape", "np_new_shape", "resized"]


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
            raise ValueError(f"-3 of {tuple(codes)} drops a side of 1, which {tuple(old)} does not have there")
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


def axes_of(rank: int, axis: Any, exclude: bool = False) -> tuple[int, ...]:
    """The axes that MXNet means: none or () is all; ``exclude`` turns them round.

    >>> axes_of(3, None), axes_of(3, -1), axes_of(3, (0, 1), exclude=True)
    ((0, 1, 2), (2,), (2,))
    """
    if axis is None or axis == ():
        return tuple(range(rank))
    named = set()
    for a in (axis,) if isinstance(axis, int) else axis:
        if not -rank <= a < rank:
            raise ValueError(f"axis {a} of {rank}")
        named.add(a % rank)
    return tuple(a for a in range(rank) if (a in named) != exclude)


def resized(size: int, scale: float | None, mode: str) -> int:
    """One side of an image that BilinearResize2D makes in its modes without a size."""
    if mode == "size":
        return int(size * (scale or 1))
    if mode == "odd_scale":
        return int(size * (scale or 1)) if size % 2 == 0 else int((size - 1) * (scale or 1)) + 1
    _, parity, way = mode.split("_")
    return size if (size % 2 == 0) == (parity == "even") else size + (1 if way == "up" else -1)
