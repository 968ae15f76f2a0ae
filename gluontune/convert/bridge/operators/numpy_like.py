"""Operators of ``mx.np`` that ``mx.nd`` lacks or defines differently."""

from __future__ import annotations

import ast
from typing import Any

from gluontune.convert.bridge.operators.creating import dtype_of
from gluontune.convert.bridge.operators.reducing import dims
from gluontune.convert.bridge.registry import operator, operators
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


@operator("_npi_var")
def np_var(x: Any, axis: Any = None, ddof: int = 0, keepdims: bool = False, dtype: Any = None) -> Any:
    return torch.var(x.to(dtype_of(dtype, x.dtype)), dims(x, axis), correction=ddof, keepdim=keepdims)


@operator("_npi_norm")
def np_norm(x: Any, axis: Any = None, ord: Any = 2, keepdims: bool = False, flag: Any = -2) -> Any:
    axis = ast.literal_eval(axis) if isinstance(axis, str) else axis
    kind = "nuc" if int(flag) == 2 else {"inf": torch.inf, "-inf": -torch.inf}.get(str(ord), ord)
    over = dims(x, axis)
    if int(flag) in (-2, 1) or len(over) == 1 or kind in ("fro", None):
        power = 2.0 if kind in ("fro", None) else float(kind)
        return torch.linalg.vector_norm(x, power, over, keepdim=str(keepdims) == "True")
    return torch.linalg.matrix_norm(x, kind if kind == "nuc" else float(kind), over, keepdim=str(keepdims) == "True")


@operator("_np_cumsum")
def cumsum(x: Any, axis: int | None = None, dtype: Any = None) -> Any:
    found = x.reshape(-1).cumsum(0) if axis is None else x.cumsum(axis)
    return found.to(dtype_of(dtype, found.dtype))


@operator("_npi_hsplit", many=True)
def hsplit(x: Any, indices: Any = (), axis: int = 1, squeeze_axis: bool = False, sections: int = 0) -> Any:
    return x.chunk(sections, 1) if sections else x.tensor_split(list(indices)[1:], 1)


@operator("_linspace", source=True)
def linspace(start: float, stop: float | None = None, step: float = 1.0, repeat: int = 1, dtype: Any = "float32",
             endpoint: Any = True, num: Any = None, like: Any = None) -> Any:  # fmt: skip
    count = int(num if num is not None else step)
    parts = max(1, count - (str(endpoint) in ("True", "1")))
    places = torch.arange(count, dtype=torch.float64, device=None if like is None else like.device)
    return (start + places * ((stop or 0.0) - start) / parts).to(dtype_of(dtype, torch.float32))


operators(globals(), {
    "_npi_cbrt": lambda x: x.sign() * x.abs().pow(1 / 3),
    "_npi_rint": lambda x: x.round(),
    "_npi_around": lambda x, decimals=0: torch.round(x, decimals=decimals),
    "_np_any": lambda x, axis=None, keepdims=False: (x != 0).sum(dims(x, axis), keepdim=keepdims) > 0,
    "_np_all": lambda x, axis=None, keepdims=False: (x == 0).sum(dims(x, axis), keepdim=keepdims) == 0,
    "_npi_std": lambda x, axis=None, ddof=0, keepdims=False, dtype=None: np_var(x, axis, ddof, keepdims, dtype).sqrt(),
    "_npi_argmin": lambda x, axis=None, keepdims=False: torch.argmin(x, axis, keepdim=keepdims),
    "_np_moveaxis": lambda x, source, destination: x.movedim(tuple(source), tuple(destination)),
    "_np_roll": lambda x, shift, axis=None: torch.roll(x, shift, axis),
    "_npi_flip": lambda x, axis: x.flip(axis),
    "_npi_tril": lambda x, k=0: torch.tril(x, k),
    "_np_trace": lambda x, offset=0, axis1=0, axis2=1: x.diagonal(offset, axis1, axis2).sum(-1),
    "diag _np_diag": lambda x, k=0, axis1=0, axis2=1:
        torch.diag_embed(x, k) if x.dim() == 1 else x.diagonal(k, axis1, axis2),
    "_np_diagonal": lambda x, offset=0, axis1=0, axis2=1: x.diagonal(offset, axis1, axis2),
    "_npi_diff": lambda x, n=1, axis=-1: torch.diff(x, n, axis),
    "_npi_vstack": lambda *arrays: torch.vstack(arrays),
    "_npi_hstack": lambda *arrays: torch.hstack(arrays),
    "_npi_dstack": lambda *arrays: torch.dstack(arrays),
    "_npi_column_stack": lambda *arrays: torch.column_stack(arrays),
    "_npi_where_lscalar": lambda condition, x, scalar=0.0: torch.where(condition != 0, torch.full_like(x, scalar), x),
    "_npi_where_rscalar": lambda condition, x, scalar=0.0: torch.where(condition != 0, x, torch.full_like(x, scalar)),
    "_npi_nan_to_num": lambda x, nan=0.0, posinf=None, neginf=None, copy=True: torch.nan_to_num(x, nan, posinf, neginf),
})  # fmt: skip
