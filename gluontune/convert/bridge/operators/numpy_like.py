"""Operators of ``mx.np`` that ``mx.nd`` lacks or defines differently."""

from __future__ import annotations

import ast
from typing import Any

from gluontune.convert.bridge.operators.creating import dtype_of
from gluontune.convert.bridge.operators.reducing import dims
from gluontune.convert.bridge.registry import Draw, Sample, operator
from gluontune.runtime import pytorch

torch: Any = pytorch.torch()


_ROUNDED = ("_npi_degrees", "_npi_radians")


def _one(draw: Draw) -> Sample:
    return Sample([("normal", draw.shape(2, 3))], {})


def _two(draw: Draw) -> Sample:
    shape = draw.shape()
    return Sample([("positive", shape), ("positive", shape)], {})


for _name, _run, _kind in (
    ("_npx_relu", torch.relu, "normal"), ("_npx_sigmoid", torch.sigmoid, "normal"),
    ("_npi_arcsinh", torch.arcsinh, "normal"), ("_npi_arctanh", torch.arctanh, "unit"),
    ("_npi_degrees", torch.rad2deg, "normal"), ("_npi_radians", torch.deg2rad, "normal"),
    ("_npi_fix", torch.trunc, "normal"),
):  # fmt: skip
    operator(_name, sample=lambda draw, kind=_kind: Sample([(kind, draw.shape())], {}), rounded=_name in _ROUNDED)(_run)
for _name, _run in {"_npi_logical_not": torch.logical_not, "_npi_isnan": torch.isnan, "_npi_isinf": torch.isinf,
                    "_npi_isfinite": torch.isfinite}.items():  # fmt: skip
    operator(_name, sample=lambda d: Sample([("whole", d.shape())], {}, grads=False))(_run)
operator("_npi_arctan2", sample=_two)(torch.arctan2)
operator("_npi_hypot", sample=_two)(torch.hypot)


@operator("_npi_cbrt", sample=lambda d: Sample([("positive", d.shape())], {}))
def np_cbrt(x: Any) -> Any:
    return x.sign() * x.abs().pow(1 / 3)


@operator("_npi_rint", sample=_one)
def np_rint(x: Any) -> Any:
    return x.round()


@operator("_npi_around", sample=lambda d: Sample([("normal", d.shape())], {"decimals": d.int(0, 2)}, grads=False))
def around(x: Any, decimals: int = 0) -> Any:
    return torch.round(x, decimals=decimals)


def _some_sample(draw: Draw) -> Sample:
    attrs = {"axis": draw.pick([0, -1, (0, 1)]), "keepdims": draw.pick([True, False])}
    return Sample([("index", (2, 3, 2), 2)], attrs, grads=False)


@operator("_np_any", sample=_some_sample)
def np_any(x: Any, axis: Any = None, keepdims: bool = False) -> Any:
    return (x != 0).sum(dims(x, axis), keepdim=keepdims) > 0


@operator("_np_all", sample=_some_sample)
def np_all(x: Any, axis: Any = None, keepdims: bool = False) -> Any:
    return (x == 0).sum(dims(x, axis), keepdim=keepdims) == 0


def _moment_sample(draw: Draw) -> Sample:
    attrs = {"axis": draw.pick([0, -1, (0, 1)]), "ddof": draw.int(0, 1), "keepdims": draw.pick([True, False])}
    return Sample([("normal", (3, 4))], attrs, grads=False)


@operator("_npi_var", sample=_moment_sample)
def np_var(x: Any, axis: Any = None, ddof: int = 0, keepdims: bool = False, dtype: Any = None) -> Any:
    return torch.var(x.to(dtype_of(dtype, x.dtype)), dims(x, axis), correction=ddof, keepdim=keepdims)


@operator("_npi_std", sample=_moment_sample)
def np_std(x: Any, axis: Any = None, ddof: int = 0, keepdims: bool = False, dtype: Any = None) -> Any:
    return np_var(x, axis, ddof, keepdims, dtype).sqrt()


def _norm_sample(draw: Draw) -> Sample:
    axis, flag = draw.pick([((1,), 1), ((2,), 1), ((0, 2), 1), ((1, 2), 2), (None, -2)])
    return Sample([("normal", (2, 3, 4))], {"ord": 2, "flag": flag, "axis": axis, "keepdims": draw.pick([True, False])})


@operator("_npi_norm", sample=_norm_sample)
def np_norm(x: Any, axis: Any = None, ord: Any = 2, keepdims: bool = False, flag: Any = -2) -> Any:
    axis = ast.literal_eval(axis) if isinstance(axis, str) else axis
    kind = "nuc" if int(flag) == 2 else {"inf": torch.inf, "-inf": -torch.inf}.get(str(ord), ord)
    over = dims(x, axis)
    if int(flag) in (-2, 1) or len(over) == 1 or kind in ("fro", None):
        power = 2.0 if kind in ("fro", None) else float(kind)
        return torch.linalg.vector_norm(x, power, over, keepdim=str(keepdims) == "True")
    return torch.linalg.matrix_norm(x, kind if kind == "nuc" else float(kind), over, keepdim=str(keepdims) == "True")


@operator(
    "_npi_argmin", sample=lambda d: Sample([("distinct", d.shape(2, 3))], {"axis": d.pick([0, 1, -1])}, grads=False)
)
def np_argmin(x: Any, axis: int | None = None, keepdims: bool = False) -> Any:
    return torch.argmin(x, axis, keepdim=keepdims)


@operator("_np_cumsum", sample=lambda d: Sample([("normal", (3, 4))], {"axis": d.pick([None, 0, 1])}))
def cumsum(x: Any, axis: int | None = None, dtype: Any = None) -> Any:
    found = x.reshape(-1).cumsum(0) if axis is None else x.cumsum(axis)
    return found.to(dtype_of(dtype, found.dtype))


@operator(
    "_np_moveaxis", sample=lambda d: Sample([("normal", (2, 3, 4))], {"source": (0,), "destination": (d.int(-2, 2),)})
)
def moveaxis(x: Any, source: Any, destination: Any) -> Any:
    return x.movedim(tuple(source), tuple(destination))


@operator("_np_roll", sample=lambda d: Sample([("normal", (3, 4))], {"shift": (d.int(-2, 2),), "axis": (d.int(0, 1),)}))
def roll(x: Any, shift: Any, axis: Any = None) -> Any:
    return torch.roll(x, shift, axis)


@operator("_npi_flip", sample=lambda d: Sample([("normal", (3, 4))], {"axis": (d.int(0, 1),)}))
def np_flip(x: Any, axis: Any) -> Any:
    return x.flip(axis)


@operator("_npi_tril", sample=lambda d: Sample([("normal", (3, 4))], {"k": d.int(-1, 1)}))
def tril(x: Any, k: int = 0) -> Any:
    return torch.tril(x, k)


@operator("_np_trace", sample=lambda d: Sample([("normal", (3, 4, 2))], {"offset": d.int(-1, 1)}))
def trace(x: Any, offset: int = 0, axis1: int = 0, axis2: int = 1) -> Any:
    return x.diagonal(offset, axis1, axis2).sum(-1)


@operator("diag", "_np_diag", sample=lambda d: Sample([("normal", d.pick([(3,), (3, 4)]))], {"k": d.int(-1, 1)}))
def diag(x: Any, k: int = 0, axis1: int = 0, axis2: int = 1) -> Any:
    return torch.diag_embed(x, k) if x.dim() == 1 else x.diagonal(k, axis1, axis2)


@operator("_np_diagonal", sample=lambda d: Sample([("normal", (3, 4, 2))], {"offset": d.int(-1, 1)}))
def diagonal(x: Any, offset: int = 0, axis1: int = 0, axis2: int = 1) -> Any:
    return x.diagonal(offset, axis1, axis2)


@operator("_npi_diff", sample=lambda d: Sample([("normal", (3, 4))], {"n": d.int(1, 2), "axis": d.pick([-1, 0])}))
def diff(x: Any, n: int = 1, axis: int = -1) -> Any:
    return torch.diff(x, n, axis)


def _joined(draw: Draw) -> Sample:
    return Sample([("normal", (2, 3)), ("normal", (2, 3))], {"num_args": 2})


@operator("_npi_vstack", sample=_joined)
def vstack(*arrays: Any) -> Any:
    return torch.vstack(arrays)


@operator("_npi_hstack", sample=_joined)
def hstack(*arrays: Any) -> Any:
    return torch.hstack(arrays)


@operator("_npi_dstack", sample=_joined)
def dstack(*arrays: Any) -> Any:
    return torch.dstack(arrays)


@operator("_npi_column_stack", sample=_joined)
def column_stack(*arrays: Any) -> Any:
    return torch.column_stack(arrays)


@operator("_npi_hsplit", many=True, sample=lambda d: Sample([("normal", (2, 4, 3))], {"indices": (), "sections": 2}))
def hsplit(x: Any, indices: Any = (), axis: int = 1, squeeze_axis: bool = False, sections: int = 0) -> Any:
    return x.chunk(sections, 1) if sections else x.tensor_split(list(indices)[1:], 1)


def _chosen(draw: Draw) -> Sample:
    """MXNet returns the other side's gradient (``references.FAULTS``)."""
    shape = draw.pick([(3, 4), (2, 3, 4)])
    return Sample([("index", (3, 4), 2), ("normal", shape)], {"scalar": draw.pick([0.0, -1e4, 0.7])}, grads=False)


@operator("_npi_where_lscalar", sample=_chosen)
def where_lscalar(condition: Any, x: Any, scalar: float = 0.0) -> Any:
    return torch.where(condition != 0, torch.full_like(x, scalar), x)


@operator("_npi_where_rscalar", sample=_chosen)
def where_rscalar(condition: Any, x: Any, scalar: float = 0.0) -> Any:
    return torch.where(condition != 0, x, torch.full_like(x, scalar))


@operator("_npi_nan_to_num", sample=lambda d: Sample([("normal", d.shape())], {"nan": 1.5}))
def nan_to_num(
    x: Any, nan: float = 0.0, posinf: float | None = None, neginf: float | None = None, copy: bool = True
) -> Any:
    return torch.nan_to_num(x, nan, posinf, neginf)


@operator(
    "_npi_eye",
    source=True,
    sample=lambda d: Sample([], {"N": 3, "M": d.pick([None, 4]), "k": d.int(-1, 1)}, grads=False),
)
def np_eye(N: int, M: Any = None, k: int = 0, dtype: Any = "float32", like: Any = None) -> Any:
    rows = torch.arange(N, device=None if like is None else like.device)
    columns = torch.arange(N if M in (None, "None") else int(M), device=rows.device)
    return (columns - rows.unsqueeze(1) == k).to(dtype_of(dtype, torch.float32))


@operator("_npi_identity", source=True, sample=lambda d: Sample([], {"shape": (3, 3)}, grads=False))
def np_identity(shape: Any, dtype: Any = "float32", like: Any = None) -> Any:
    return np_eye(shape[0], shape[1], 0, dtype, like)


def _linspace_sample(draw: Draw) -> Sample:
    attrs = {"start": draw.pick([0.0, -1.0]), "stop": 2.0, "num": draw.int(1, 5), "dtype": "float32"}
    return Sample([], {**attrs, "endpoint": draw.pick([True, False])}, grads=False)


@operator("_linspace", source=True, sample=_linspace_sample)
def linspace(start: float, stop: float | None = None, step: float = 1.0, repeat: int = 1, dtype: Any = "float32",
             endpoint: Any = True, num: Any = None, like: Any = None) -> Any:  # fmt: skip
    count = int(num if num is not None else step)
    parts = max(1, count - (str(endpoint) in ("True", "1")))
    places = torch.arange(count, dtype=torch.float64, device=None if like is None else like.device)
    return (start + places * ((stop or 0.0) - start) / parts).to(dtype_of(dtype, torch.float32))
