"""Operators that cut, join, repeat and pad."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from gluontune.graph.rules.moving import same_size
from gluontune.graph.shapes import MaybeShape, merged, rule
from gluontune.graph.symbol import MOST_OUTPUTS


def _steps(size: int, low: int | None, high: int | None, step: int | None = None) -> int:
    return len(range(size)[slice(low, high, step or None)])


@rule("slice")
def cut(attrs: Mapping[str, Any], shapes: list[MaybeShape]) -> list[MaybeShape]:
    x, steps = shapes[0] or (), tuple(attrs["step"] or ())
    ways = zip(x, attrs["begin"], attrs["end"], steps + (None,) * len(x))
    sizes = tuple(_steps(n, low, high, step) for n, low, high, step in ways)
    return [sizes + x[len(sizes) :]]


@rule("slice_axis")
def slice_axis(attrs: Mapping[str, Any], shapes: list[MaybeShape]) -> list[MaybeShape]:
    x = list(shapes[0] or ())
    size, end = x[attrs["axis"]], attrs["end"]
    if end is not None and end > size:
        raise ValueError(f"axis {attrs['axis']} has no {end}")
    x[attrs["axis"]] = _steps(size, attrs["begin"], end)
    return [tuple(x)]


@rule("slice_like", needs=2)
def slice_like(attrs: Mapping[str, Any], shapes: list[MaybeShape]) -> list[MaybeShape]:
    x, like = list(shapes[0] or ()), shapes[1] or ()
    for axis in attrs["axes"] or range(len(like)):
        if like[axis] > x[axis]:
            raise ValueError(f"axis {axis} has no {like[axis]}")
        x[axis] = like[axis]
    return [tuple(x)]


@rule("SliceChannel", needs=0)
def slice_channel(attrs: Mapping[str, Any], shapes: list[MaybeShape]) -> list[MaybeShape]:
    x, parts = shapes[0], attrs["num_outputs"]
    if not 0 < parts <= MOST_OUTPUTS:
        raise ValueError(f"it is cut into {parts} parts")
    if x is None:
        return [None] * parts
    axis = attrs["axis"] % len(x)
    if x[axis] % parts:
        raise ValueError(f"axis {axis} is not cut into {parts}")
    if attrs["squeeze_axis"]:
        return [x[:axis] + x[axis + 1 :]] * parts
    size = x[axis] if x[axis] < 0 else x[axis] // parts
    return [(*x[:axis], size, *x[axis + 1 :])] * parts


@rule("_split_v2")
def split_v2(attrs: Mapping[str, Any], shapes: list[MaybeShape]) -> list[MaybeShape]:
    x = shapes[0] or ()
    axis = attrs["axis"] % len(x)
    if attrs["sections"]:
        return list(slice_channel({**attrs, "num_outputs": attrs["sections"]}, shapes))
    places = [*attrs["indices"], x[axis]]
    sizes = [max(0, min(b, x[axis]) - a) for a, b in zip(places, places[1:])]
    if attrs["squeeze_axis"]:
        return [x[:axis] + x[axis + 1 :]] * len(sizes)
    return [(*x[:axis], size, *x[axis + 1 :]) for size in sizes]


@rule("Concat", "_npi_concatenate", needs=0)
def concat(attrs: Mapping[str, Any], shapes: list[MaybeShape]) -> list[MaybeShape]:
    known = [s for s in shapes if s is not None]
    if not known:
        return [None]
    axis = attrs.get("axis", attrs["dim"])
    if axis is None or axis == "None":
        return [(sum(math.prod(s) for s in known),) if len(known) == len(shapes) else None]
    axis = int(axis) % len(known[0])
    around: MaybeShape = None
    for s in known:
        around = merged(around, (*s[:axis], -1, *s[axis + 1 :]))
    assert around is not None
    shapes[:] = [merged(s, around) for s in shapes]
    sizes = [s[axis] for s in shapes if s is not None]
    return [(*around[:axis], -1 if -1 in sizes else sum(sizes), *around[axis + 1 :])]


@rule("stack", "_npi_stack", needs=0)
def stack(attrs: Mapping[str, Any], shapes: list[MaybeShape]) -> list[MaybeShape]:
    found: MaybeShape = None
    for shape in shapes:
        found = merged(found, shape)
    shapes[:] = [found] * len(shapes)
    if found is None:
        return [None]
    axis = attrs["axis"] % (len(found) + 1)
    return [(*found[:axis], len(shapes), *found[axis:])]


@rule("tile")
def tile(attrs: Mapping[str, Any], shapes: list[MaybeShape]) -> list[MaybeShape]:
    x, reps = shapes[0] or (), tuple(attrs["reps"])
    rank = max(len(x), len(reps))
    pairs = zip((1,) * (rank - len(x)) + x, (1,) * (rank - len(reps)) + reps)
    return [tuple(n * r for n, r in pairs)]


@rule("repeat")
def repeat(attrs: Mapping[str, Any], shapes: list[MaybeShape]) -> list[MaybeShape]:
    x = list(shapes[0] or ())
    if attrs["axis"] is None:
        return [(math.prod(x) * attrs["repeats"],)]
    x[attrs["axis"]] *= attrs["repeats"]
    return [tuple(x)]


@rule("broadcast_axis")
def broadcast_axis(attrs: Mapping[str, Any], shapes: list[MaybeShape]) -> list[MaybeShape]:
    x = list(shapes[0] or ())
    for axis, size in zip(attrs["axis"], attrs["size"]):
        x[axis] = size
    return [tuple(x)]


@rule("broadcast_to", "_npi_broadcast_to")
def broadcast_to(attrs: Mapping[str, Any], shapes: list[MaybeShape]) -> list[MaybeShape]:
    x, wanted = shapes[0] or (), tuple(attrs["shape"])
    old = (1,) * (len(wanted) - len(x)) + x
    found = tuple(o if n == 0 else n for o, n in zip(old, wanted))
    if any(o not in (1, n) for o, n in zip(old, found)):
        raise ValueError(f"not to be broadcast to {wanted}")
    return [found]


@rule("broadcast_like", needs=2)
def broadcast_like(attrs: Mapping[str, Any], shapes: list[MaybeShape]) -> list[MaybeShape]:
    x, other = list(shapes[0] or ()), shapes[1] or ()
    if not attrs["lhs_axes"]:
        return [other]
    for a, b in zip(attrs["lhs_axes"], attrs["rhs_axes"] or ()):
        x[a] = other[b]
    return [tuple(x)]


@rule("Pad")
def pad(attrs: Mapping[str, Any], shapes: list[MaybeShape]) -> list[MaybeShape]:
    x, width = shapes[0] or (), attrs["pad_width"]
    return [tuple(n + before + after for n, before, after in zip(x, width[::2], width[1::2]))]


@rule("depth_to_space")
def depth_to_space(attrs: Mapping[str, Any], shapes: list[MaybeShape]) -> list[MaybeShape]:
    (n, c, h, w), size = shapes[0] or (), attrs["block_size"]
    return [same_size((n, c, h, w), (n, c // size**2, h * size, w * size))]


@rule("space_to_depth")
def space_to_depth(attrs: Mapping[str, Any], shapes: list[MaybeShape]) -> list[MaybeShape]:
    (n, c, h, w), size = shapes[0] or (), attrs["block_size"]
    return [same_size((n, c, h, w), (n, c * size**2, h // size, w // size))]
