"""Operators that reduce or sort along axes, and losses."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gluontune.graph.shapes import MaybeShape, Shape, merged, rule

__all__ = ["axes_of", "reduced"]


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


def reduced(x: Shape, axes: tuple[int, ...], keepdims: bool) -> Shape:
    """The shape that is left when ``axes`` are reduced."""
    if keepdims:
        return tuple(1 if a in axes else n for a, n in enumerate(x))
    return tuple(n for a, n in enumerate(x) if a not in axes)


@rule("sum", "mean", "prod", "max", "min", "nansum", "nanprod", "norm")
def reduce(attrs: Mapping[str, Any], shapes: list[MaybeShape]) -> list[MaybeShape]:
    x = shapes[0] or ()
    axes = axes_of(len(x), attrs["axis"], attrs.get("exclude", False))
    return [reduced(x, axes, attrs["keepdims"]) or (1,)]


@rule("_np_sum", "_npi_mean", "_np_max", "_np_min", "_np_prod")
def np_reduce(attrs: Mapping[str, Any], shapes: list[MaybeShape]) -> list[MaybeShape]:
    x = shapes[0] or ()
    return [reduced(x, axes_of(len(x), attrs["axis"]), attrs["keepdims"])]


@rule("argmax", "argmin")
def arg(attrs: Mapping[str, Any], shapes: list[MaybeShape]) -> list[MaybeShape]:
    return [np_arg(attrs, shapes)[0] or (1,)]


@rule("_npi_argmax", "_npi_argmin")
def np_arg(attrs: Mapping[str, Any], shapes: list[MaybeShape]) -> list[MaybeShape]:
    x = shapes[0] or ()
    return [reduced(x, axes_of(len(x), attrs["axis"]), attrs["keepdims"])]


@rule("sort", "argsort")
def ordered(attrs: Mapping[str, Any], shapes: list[MaybeShape]) -> list[MaybeShape]:
    x = shapes[0] or ()
    count = 1
    for n in x:
        count *= n
    return [(count,) if attrs["axis"] is None else x]


@rule("topk")
def topk(attrs: Mapping[str, Any], shapes: list[MaybeShape]) -> list[MaybeShape]:
    x = ordered(attrs, shapes)[0] or ()
    if attrs["ret_typ"] == "mask":
        return [shapes[0]]
    axis = (attrs["axis"] or 0) % len(x)
    if attrs["k"] > x[axis]:
        raise ValueError(f"k={attrs['k']} is more than {x[axis]}")
    found = (*x[:axis], attrs["k"] if attrs["k"] > 0 else x[axis], *x[axis + 1 :])
    return [found, found] if attrs["ret_typ"] == "both" else [found]


@rule("SoftmaxOutput")
def softmax_output(attrs: Mapping[str, Any], shapes: list[MaybeShape]) -> list[MaybeShape]:
    x = shapes[0] or ()
    if len(shapes) > 1 and shapes[1] != x:
        label = x[:1] + x[2:] if attrs["multi_output"] else x[:-1] if attrs["preserve_shape"] else x[:1]
        shapes[1] = merged(shapes[1], label)
    return [x]


@rule("LinearRegressionOutput", "LogisticRegressionOutput", "MAERegressionOutput")
def regression(attrs: Mapping[str, Any], shapes: list[MaybeShape]) -> list[MaybeShape]:
    x = shapes[0] or ()
    if len(shapes) > 1 and shapes[1] is None:
        shapes[1] = x[:1] if len(x) == 2 and x[1] == 1 else x
    return [x]


@rule("softmax_cross_entropy")
def softmax_cross_entropy(attrs: Mapping[str, Any], shapes: list[MaybeShape]) -> list[MaybeShape]:
    shapes[1] = merged(shapes[1], (shapes[0] or ())[:1])
    return [(1,)]


@rule("CTCLoss")
def ctc_loss(attrs: Mapping[str, Any], shapes: list[MaybeShape]) -> list[MaybeShape]:
    return [(shapes[0] or ())[1:2]]
