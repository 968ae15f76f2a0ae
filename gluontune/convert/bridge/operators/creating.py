"""Operators that create arrays."""

from __future__ import annotations

import math
from typing import Any

from gluontune.convert.bridge.registry import operator, operators
from gluontune.runtime import pytorch

torch: Any = pytorch.torch()


def dtype_of(kind: Any, default: Any = None) -> Any:
    """The dtype of MXNet's name; torch's dtypes are returned unchanged."""
    if kind in (None, "None"):
        return default
    return getattr(torch, {"bool_": "bool"}.get(kind, kind)) if isinstance(kind, str) else kind


@operator("amp_multicast", many=True)
def amp_multicast(*arrays: Any, num_outputs: int = 1, cast_narrow: bool = False) -> Any:
    kinds = sorted({a.dtype for a in arrays}, key=lambda d: d.itemsize)
    return tuple(a.to(kinds[0 if cast_narrow else -1]) for a in arrays)


def _filled(number: float, unknown: int) -> Any:
    def fill(shape: Any = (), dtype: Any = "float32", like: Any = None) -> Any:
        # Outside of mx.np a size of 0 is unknown (the batch of a begin state): 1 broadcasts to it.
        shape = tuple(n if n > 0 else unknown for n in shape)
        return torch.full(shape, number, dtype=dtype_of(dtype, torch.float32), device=_device(like))

    return fill


def _device(like: Any) -> Any:
    return like.device if like is not None else None


for _name, _number in {"_zeros": 0, "_ones": 1, "_npi_zeros": 0, "_npi_ones": 1}.items():
    operator(_name, source=True)(_filled(_number, 0 if _name.startswith("_npi") else 1))


@operator("_full", source=True)
def full(shape: Any = (), value: float = 0.0, dtype: Any = "float32", like: Any = None) -> Any:
    return torch.full(tuple(shape), value, dtype=dtype_of(dtype, torch.float32), device=_device(like))


@operator("_arange", "_npi_arange", source=True)
def arange(start: float, stop: float | None = None, step: float = 1.0, repeat: int = 1, dtype: Any = "float32",
           like: Any = None) -> Any:  # fmt: skip
    start, stop = (0.0, start) if stop is None else (start, stop)
    places = torch.arange(max(0, math.ceil((stop - start) / step)), dtype=torch.float64, device=_device(like))
    return (start + places * step).repeat_interleave(repeat).to(dtype_of(dtype, torch.float32))


@operator("_eye", "_npi_eye", source=True)
def eye(N: int, M: Any = 0, k: int = 0, dtype: Any = "float32", like: Any = None) -> Any:
    rows = torch.arange(N, device=_device(like))
    columns = torch.arange(N if M in (None, "None", 0) else int(M), device=rows.device)
    return (columns - rows.unsqueeze(1) == k).to(dtype_of(dtype, torch.float32))


@operator("_npi_identity", source=True)
def np_identity(shape: Any, dtype: Any = "float32", like: Any = None) -> Any:
    return eye(shape[0], shape[1], 0, dtype, like)


@operator("_contrib_arange_like")
def arange_like(x: Any, start: float = 0.0, step: float = 1.0, repeat: int = 1, axis: int | None = None) -> Any:
    count = x.numel() if axis is None else x.shape[axis]
    found = start + step * (torch.arange(count, device=x.device) // repeat).to(x.dtype)
    return found.reshape(x.shape) if axis is None else found


operators(globals(), {
    "zeros_like": lambda x, dtype=None: torch.zeros_like(x, dtype=dtype_of(dtype)),
    "ones_like": lambda x, dtype=None: torch.ones_like(x, dtype=dtype_of(dtype)),
    "_npi_full_like": lambda x, fill_value, dtype=None: torch.full_like(x, fill_value, dtype=dtype_of(dtype)),
    "Cast": lambda x, dtype: x.to(dtype_of(dtype)),
    "amp_cast": lambda x, dtype: x.to(dtype_of(dtype)) if x.is_floating_point() else x,
    "shape_array": lambda x: torch.tensor(tuple(x.shape), dtype=torch.int64, device=x.device),
    "size_array": lambda x: torch.tensor([x.numel()], dtype=torch.int64, device=x.device),
})  # fmt: skip
