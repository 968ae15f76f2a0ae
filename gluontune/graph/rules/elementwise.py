"""Operators whose output is shaped as their inputs, or as these broadcast to one another; and arrays from nothing."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from gluontune.graph.shapes import MaybeShape, Shape, merged, rule

_UNARY = (
    "abs sign floor ceil trunc fix rint round square sqrt rsqrt cbrt rcbrt exp expm1 log log2 log10 log1p sin cos tan "
    "arcsin arccos arctan sinh cosh tanh arcsinh arctanh arccosh degrees radians reciprocal negative erf erfinv gamma "
    "gammaln relu sigmoid softsign hard_sigmoid logical_not _copy BlockGrad Cast amp_cast clip smooth_l1 make_loss "
    "MakeLoss Activation zeros_like ones_like L2Normalization LRN SoftmaxActivation softmin log_softmax reverse "
    "_npi_absolute _npi_sign _npi_floor _npi_ceil _npi_trunc _npi_square _npi_sqrt _npi_exp _npi_expm1 _npi_log "
    "_npi_log2 _npi_log10 _npi_log1p _npi_sin _npi_cos _npi_tan _npi_tanh _npi_sinh _npi_cosh _npi_arctan "
    "_npi_arcsin _npi_arccos _npi_reciprocal _npi_negative _npi_full_like _np_copy _image_normalize "
    "_npi_logical_not _npi_isnan _npi_isinf _npi_isfinite _npi_rint _npi_cbrt _npi_clip _npx_relu _npx_sigmoid "
    "_npi_arcsinh _npi_arccosh _npi_arctanh _npi_degrees _npi_radians"
)  # fmt: skip
_SCALAR = (
    "plus minus rminus mul div rdiv mod rmod power rpower maximum minimum hypot equal not_equal greater greater_equal "
    "lesser lesser_equal logical_and logical_or logical_xor"
)
_NUMPY_SCALAR = (
    "add subtract rsubtract multiply true_divide rtrue_divide power rpower mod rmod equal not_equal greater "
    "greater_equal less less_equal"
)
_ALIKE = (
    "elemwise_add elemwise_sub elemwise_mul elemwise_div add_n _grad_add _mod _power _maximum _minimum _hypot _equal "
    "_not_equal _greater _greater_equal _lesser _lesser_equal _logical_and _logical_or _logical_xor"
)
_TWO = (
    "add sub mul div mod power maximum minimum hypot equal not_equal greater greater_equal lesser lesser_equal "
    "logical_and logical_or logical_xor"
)
_NUMPY_TWO = (
    "add subtract multiply true_divide mod power maximum minimum "
    "equal not_equal greater greater_equal less less_equal"
)


def _same_back(attrs: Mapping[str, Any], shapes: list[MaybeShape], outputs: list[MaybeShape]) -> None:
    shapes[:] = [merged(shape, outputs[0]) for shape in shapes]


def _first_back(attrs: Mapping[str, Any], shapes: list[MaybeShape], outputs: list[MaybeShape]) -> None:
    shapes[0] = merged(shapes[0], outputs[0])


@rule(
    *_UNARY.split(),
    *[f"_{name}_scalar" for name in _SCALAR.split()],
    *[f"_npi_{name}_scalar" for name in _NUMPY_SCALAR.split()],
    needs=0,
    back=_first_back,
)
def unary(attrs: Mapping[str, Any], shapes: list[MaybeShape]) -> list[MaybeShape]:
    return [shapes[0]]


@rule(*_ALIKE.split(), needs=0, back=_same_back)
def alike(attrs: Mapping[str, Any], shapes: list[MaybeShape]) -> list[MaybeShape]:
    """All inputs are shaped as the output."""
    found: MaybeShape = None
    for shape in shapes:
        found = merged(found, shape)
    shapes[:] = [found] * len(shapes)
    return [found]


def broadcast(a: Shape, b: Shape) -> Shape:
    """The shape of two arrays that are broadcast to one another; -1 is unknown.

    >>> broadcast((4, 1), (3,)), broadcast((-1, 3), (2, 1))
    ((4, 3), (2, 3))
    """
    rank = max(len(a), len(b))
    pairs = list(zip((1,) * (rank - len(a)) + a, (1,) * (rank - len(b)) + b))
    if any(x != y and 1 not in (x, y) and -1 not in (x, y) for x, y in pairs):
        raise ValueError(f"{a} and {b} do not broadcast")
    return tuple(x if y == 1 else y if x == 1 else max(x, y) for x, y in pairs)


@rule(
    *[f"broadcast_{name}" for name in _TWO.split()],
    *[f"_npi_{name}" for name in _NUMPY_TWO.split()],
    needs=0,
)
def two(attrs: Mapping[str, Any], shapes: list[MaybeShape]) -> list[MaybeShape]:
    a, b = shapes
    return [None if a is None or b is None else broadcast(a, b)]


@rule("where", "_npi_where", needs=0)
def where(attrs: Mapping[str, Any], shapes: list[MaybeShape]) -> list[MaybeShape]:
    condition, a, b = shapes
    if a is None or b is None:
        return [a or b]
    found = broadcast(a, b)
    of_rows = condition is None or len(condition) == 1 != len(found)
    return [found if of_rows or condition is None else broadcast(condition, found)]


@rule("amp_multicast", needs=0)
def amp_multicast(attrs: Mapping[str, Any], shapes: list[MaybeShape]) -> list[MaybeShape]:
    return list(shapes)


@rule("Dropout", needs=0, back=_first_back)
def dropout(attrs: Mapping[str, Any], shapes: list[MaybeShape]) -> list[MaybeShape]:
    return [shapes[0], shapes[0]]


@rule("softmax", needs=0)
def softmax(attrs: Mapping[str, Any], shapes: list[MaybeShape]) -> list[MaybeShape]:
    x = shapes[0]
    if len(shapes) > 1 and x is not None:
        axis = attrs["axis"] % len(x)
        shapes[1] = merged(shapes[1], x[:axis] + x[axis + 1 :])
    return [x]


def _unless_known(shape: Any) -> MaybeShape:
    """Outside of ``mx.np`` a size of 0 is one that is not known yet: the batch of a begin state."""
    return tuple(n or -1 for n in shape) if shape else None


@rule("_zeros", "_ones", "_full", needs=0)
def filled(attrs: Mapping[str, Any], shapes: list[MaybeShape]) -> list[MaybeShape]:
    return [_unless_known(attrs["shape"])]


@rule("_npi_zeros", "_npi_ones", needs=0)
def np_filled(attrs: Mapping[str, Any], shapes: list[MaybeShape]) -> list[MaybeShape]:
    return [tuple(attrs["shape"])]


@rule("_random_uniform", "_random_normal", needs=0)
def drawn(attrs: Mapping[str, Any], shapes: list[MaybeShape]) -> list[MaybeShape]:
    return [_unless_known(attrs["shape"])]


@rule("_arange", "_npi_arange", needs=0)
def arange(attrs: Mapping[str, Any], shapes: list[MaybeShape]) -> list[MaybeShape]:
    start, stop = attrs["start"], attrs["stop"]
    start, stop = (0.0, start) if stop is None else (start, stop)
    return [(max(0, math.ceil((stop - start) / attrs["step"])) * attrs["repeat"],)]


@rule("_linspace", "_npi_linspace", needs=0)
def linspace(attrs: Mapping[str, Any], shapes: list[MaybeShape]) -> list[MaybeShape]:
    if "num" in attrs:
        return [(int(attrs["num"]),)]
    return list(arange(attrs, shapes))


@rule("_contrib_arange_like")
def arange_like(attrs: Mapping[str, Any], shapes: list[MaybeShape]) -> list[MaybeShape]:
    x = shapes[0] or ()
    return [x if attrs["axis"] is None else (x[attrs["axis"]],)]


@rule("_eye", needs=0)
def eye(attrs: Mapping[str, Any], shapes: list[MaybeShape]) -> list[MaybeShape]:
    return [(attrs["N"], attrs["M"] or attrs["N"])]


@rule("shape_array")
def shape_array(attrs: Mapping[str, Any], shapes: list[MaybeShape]) -> list[MaybeShape]:
    return [(len(shapes[0] or ()),)]


@rule("size_array")
def size_array(attrs: Mapping[str, Any], shapes: list[MaybeShape]) -> list[MaybeShape]:
    return [(1,)]
