"""Operators of ``mx.np`` that ``mx.nd`` lacks or defines differently."""

from __future__ import annotations

import ast
from typing import Any

from gluontune.convert.bridge.operators.creating import dtype_of
from gluontune.convert.bridge.operators.reducing import dims
from gluontune.convert.bridge.registry import operator
from gluontune.runtime import pytorch

torch: Any = pytorch.torch()


for _name, _run in {
    "_npx_relu": torch.relu, "_npx_sigmoid": torch.sigmoid, "_npi_arcsinh": torch.arcsinh, "_npi_fix": torch.trunc,
    "_npi_arctanh": torch.arctanh, "_npi_arccosh": torch.arccosh, "_npi_degrees": torch.rad2deg,
    "_npi_radians": torch.deg2rad, "_npi_logical_not": torch.logical_not, "_npi_isnan": torch.isnan,
    "_npi_isinf": torch.isinf, "_npi_isfinite": torch.isfinite, "_npi_arctan2": torch.arctan2,
    "_npi_hypot": torch.hypot,
}.items():  # fmt: skip
    operator(_name, rounded=_name in ("_npi_degrees", "_npi_radians"))(_run)


@operator("_npi_cbrt")
def np_cbrt(x: Any) -> Any:
    return x.sign() * x.abs().pow(1 / 3)


@operator("_npi_rint")
def np_rint(x: Any) -> Any:
    return x.round()


@operator("_npi_around")
def around(x: Any, decimals: int = 0) -> Any:
    return torch.round(x, decimals=decimals)


@operator("_np_any")
def np_any(x: Any, axis: Any = None, keepdims: bool = False) -> Any:
    return (x != 0).sum(dims(x, axis), keepdim=keepdims) > 0


@operator("_np_all")
def np_all(x: Any, axis: Any = None, keepdims: bool = False) -> Any:
    return (x == 0).sum(dims(x, axis), keepdim=keepdims) == 0


@operator("_npi_var")
def np_var(x: Any, axis: Any = None, ddof: int = 0, keepdims: bool = False, dtype: Any = None) -> Any:
    return torch.var(x.to(dtype_of(dtype, x.dtype)), dims(x, axis), correction=ddof, keepdim=keepdims)


@operator("_npi_std")
def np_std(x: Any, axis: Any = None, ddof: int = 0, keepdims: bool = False, dtype: Any = None) -> Any:
    return np_var(x, axis, ddof, keepdims, dtype).sqrt()


@operator("_npi_norm")
def np_norm(x: Any, axis: Any = None, ord: Any = 2, keepdims: bool = False, flag: Any = -2) -> Any:
    axis = ast.literal_eval(axis) if isinstance(axis, str) else axis
    kind = "nuc" if int(flag) == 2 else {"inf": torch.inf, "-inf": -torch.inf}.get(str(ord), ord)
    over = dims(x, axis)
    if int(flag) in (-2, 1) or len(over) == 1 or kind in ("fro", None):
        power = 2.0 if kind in ("fro", None) else float(kind)
        return torch.linalg.vector_norm(x, power, over, keepdim=str(keepdims) == "True")
    return torch.linalg.matrix_norm(x, kind if kind == "nuc" else float(kind), over, keepdim=str(keepdims) == "True")


@operator("_npi_argmin")
def np_argmin(x: Any, axis: int | None = None, keepdims: bool = False) -> Any:
    return torch.argmin(x, axis, keepdim=keepdims)


@operator("_np_cumsum")
def cumsum(x: Any, axis: int | None = None, dtype: Any = None) -> Any:
    found = x.reshape(-1).cumsum(0) if axis is None else x.cumsum(axis)
    return found.to(dtype_of(dtype, found.dtype))


@operator("_np_moveaxis")
def moveaxis(x: Any, source: Any, destination: Any) -> Any:
    return x.movedim(tuple(source), tuple(destination))


@operator("_np_roll")
def roll(x: Any, shift: Any, axis: Any = None) -> Any:
    return torch.roll(x, shift, axis)


@operator("_npi_flip")
def np_flip(x: Any, axis: Any) -> Any:
    return x.flip(axis)


@operator("_npi_tril")
def tril(x: Any, k: int = 0) -> Any:
    return torch.tril(x, k)


@operator("_np_trace")
def trace(x: Any, offset: int = 0, axis1: int = 0, axis2: int = 1) -> Any:
    return x.diagonal(offset, axis1, axis2).sum(-1)


@operator("diag", "_np_diag")
def diag(x: Any, k: int = 0, axis1: int = 0, axis2: int = 1) -> Any:
    return torch.diag_embed(x, k) if x.dim() == 1 else x.diagonal(k, axis1, axis2)


@operator("_np_diagonal")
def diagonal(x: Any, offset: int = 0, axis1: int = 0, axis2: int = 1) -> Any:
    return x.diagonal(offset, axis1, axis2)


@operator("_npi_diff")
def diff(x: Any, n: int = 1, axis: int = -1) -> Any:
    return torch.diff(x, n, axis)


@operator("_npi_vstack")
def vstack(*arrays: Any) -> Any:
    return torch.vstack(arrays)


@operator("_npi_hstack")
def hstack(*arrays: Any) -> Any:
    return torch.hstack(arrays)


@operator("_npi_dstack")
def dstack(*arrays: Any) -> Any:
    return torch.dstack(arrays)


@operator("_npi_column_stack")
def column_stack(*arrays: Any) -> Any:
    return torch.column_stack(arrays)


@operator("_npi_hsplit", many=True)
def hsplit(x: Any, indices: Any = (), axis: int = 1, squeeze_axis: bool = False, sections: int = 0) -> Any:
    return x.chunk(sections, 1) if sections else x.tensor_split(list(indices)[1:], 1)


@operator("_npi_where_lscalar")
def where_lscalar(condition: Any, x: Any, scalar: float = 0.0) -> Any:
    return torch.where(condition != 0, torch.full_like(x, scalar), x)


@operator("_npi_where_rscalar")
def where_rscalar(condition: Any, x: Any, scalar: float = 0.0) -> Any:
    return torch.where(condition != 0, x, torch.full_like(x, scalar))


@operator("_npi_nan_to_num")
def nan_to_num(
    x: Any, nan: float = 0.0, posinf: float | None = None, neginf: float | None = None, copy: bool = True
) -> Any:
    return torch.nan_to_num(x, nan, posinf, neginf)


@operator("_npi_eye", source=True)
def np_eye(N: int, M: Any = None, k: int = 0, dtype: Any = "float32", like: Any = None) -> Any:
    rows = torch.arange(N, device=None if like is None else like.device)
    columns = torch.arange(N if M in (None, "None") else int(M), device=rows.device)
    return (columns - rows.unsqueeze(1) == k).to(dtype_of(dtype, torch.float32))


@operator("_npi_identity", source=True)
def np_identity(shape: Any, dtype: Any = "float32", like: Any = None) -> Any:
    return np_eye(shape[0], shape[1], 0, dtype, like)


@operator("_linspace", source=True)
def linspace(start: float, stop: float | None = None, step: float = 1.0, repeat: int = 1, dtype: Any = "float32",
             endpoint: Any = True, num: Any = None, like: Any = None) -> Any:  # fmt: skip
    count = int(num if num is not None else step)
    parts = max(1, count - (str(endpoint) in ("True", "1")))
    places = torch.arange(count, dtype=torch.float64, device=None if like is None else like.device)
    return (start + places * ((stop or 0.0) - start) / parts).to(dtype_of(dtype, torch.float32))
