"""Operators that take, pick and mask, and products of matrices."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gluontune.graph.rules.elementwise import broadcast
from gluontune.graph.shapes import MaybeShape, Shape, merged, rule


@rule("take", needs=2)
def take(attrs: Mapping[str, Any], shapes: list[MaybeShape]) -> list[MaybeShape]:
    x, index = shapes[0] or (), shapes[1] or ()
    axis = attrs["axis"] % len(x)
    return [x[:axis] + index + x[axis + 1 :]]


@rule("pick")
def pick(attrs: Mapping[str, Any], shapes: list[MaybeShape]) -> list[MaybeShape]:
    x = shapes[0] or ()
    if attrs["axis"] is None:
        return [(1,)]
    axis = attrs["axis"] % len(x)
    kept, gone = (*x[:axis], 1, *x[axis + 1 :]), x[:axis] + x[axis + 1 :]
    if shapes[1] is None or len(shapes[1]) == len(gone):
        shapes[1] = merged(shapes[1], gone)
    return [kept if attrs["keepdims"] else gone or (1,)]


@rule("one_hot")
def one_hot(attrs: Mapping[str, Any], shapes: list[MaybeShape]) -> list[MaybeShape]:
    return [(*(shapes[0] or ()), attrs["depth"])]


@rule("gather_nd", needs=2)
def gather_nd(attrs: Mapping[str, Any], shapes: list[MaybeShape]) -> list[MaybeShape]:
    x, index = shapes[0] or (), shapes[1] or ()
    if index[0] > len(x):
        raise ValueError(f"indices of {index[0]} axes")
    return [index[1:] + x[index[0] :]]


@rule("batch_take")
def batch_take(attrs: Mapping[str, Any], shapes: list[MaybeShape]) -> list[MaybeShape]:
    shapes[1] = merged(shapes[1], (shapes[0] or ())[:1])
    return [shapes[1]]


def _lengths(attrs: Mapping[str, Any], shapes: list[MaybeShape]) -> Shape:
    x = shapes[0] or ()
    if len(shapes) > 1:
        shapes[1] = merged(shapes[1], (x[1 - attrs["axis"]],))
    return x


@rule("SequenceMask", "SequenceReverse")
def sequence(attrs: Mapping[str, Any], shapes: list[MaybeShape]) -> list[MaybeShape]:
    return [_lengths(attrs, shapes)]


@rule("SequenceLast")
def sequence_last(attrs: Mapping[str, Any], shapes: list[MaybeShape]) -> list[MaybeShape]:
    x = _lengths(attrs, shapes)
    return [(x[1 - attrs["axis"]], *x[2:])]


def _turned(shape: Shape, turn: bool) -> Shape:
    return (*shape[:-2], shape[-1], shape[-2]) if turn else shape


def _product(a: Shape, b: Shape) -> Shape:
    if a[-1] != b[-2]:
        raise ValueError(f"{a[-1]} columns and {b[-2]} rows")
    return a[-2], b[-1]


@rule("batch_dot", "_linalg_gemm2", needs=2)
def batch_dot(attrs: Mapping[str, Any], shapes: list[MaybeShape]) -> list[MaybeShape]:
    a = _turned(shapes[0] or (), attrs["transpose_a"])
    b = _turned(shapes[1] or (), attrs["transpose_b"])
    if a[:-2] != b[:-2]:
        raise ValueError("other batches")
    return [(*a[:-2], *_product(a, b))]


@rule("dot", needs=2)
def dot(attrs: Mapping[str, Any], shapes: list[MaybeShape]) -> list[MaybeShape]:
    a, b = shapes[0] or (), shapes[1] or ()
    if len(a) == len(b) == 1:
        return [(1,)]
    a = a[1:] + a[:1] if attrs["transpose_a"] else a
    b = b[-1:] + b[:-1] if attrs["transpose_b"] else b
    if a[-1] != b[0]:
        raise ValueError(f"{a[-1]} columns and {b[0]} rows")
    return [a[:-1] + b[1:]]


@rule("_np_dot", needs=2)
def np_dot(attrs: Mapping[str, Any], shapes: list[MaybeShape]) -> list[MaybeShape]:
    a, b = shapes[0] or (), shapes[1] or ()
    if not a or not b:
        return [a + b]
    inner = b[-2] if len(b) > 1 else b[0]
    if a[-1] != inner:
        raise ValueError(f"{a[-1]} columns and {inner} rows")
    return [a[:-1] + (b[:-2] + b[-1:] if len(b) > 1 else ())]


@rule("_npi_matmul", needs=2)
def matmul(attrs: Mapping[str, Any], shapes: list[MaybeShape]) -> list[MaybeShape]:
    a, b = shapes[0] or (), shapes[1] or ()
    left, right = ((1, *a) if len(a) == 1 else a), ((*b, 1) if len(b) == 1 else b)
    rows, columns = _product(left, right)
    batch = broadcast(left[:-2], right[:-2])
    return [(*batch, *([rows] if len(a) > 1 else []), *([columns] if len(b) > 1 else []))]
