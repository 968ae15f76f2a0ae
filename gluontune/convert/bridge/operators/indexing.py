"""Taking, picking, sorting, masking."""

from __future__ import annotations

from typing import Any

from gluontune.convert.bridge.operators.creating import dtype_of
from gluontune.convert.bridge.registry import operator, operators
from gluontune.runtime import pytorch

torch: Any = pytorch.torch()


def _within(index: Any, size: int, mode: str) -> Any:
    index = index.long()
    return index % size if mode == "wrap" else index.clamp(0, size - 1)


@operator("take")
def take(x: Any, indices: Any, axis: int = 0, mode: str = "clip") -> Any:
    axis = axis % x.dim()
    index = _within(indices, x.shape[axis], mode)
    found = x.index_select(axis, index.reshape(-1))
    return found.reshape(*x.shape[:axis], *index.shape, *x.shape[axis + 1 :])


@operator("pick")
def pick(x: Any, index: Any, axis: int | None = -1, keepdims: bool = False, mode: str = "clip") -> Any:
    if axis is None:
        x, axis = x.reshape(-1), 0
    index = _within(index, x.shape[axis], mode)
    index = index.unsqueeze(axis) if index.dim() < x.dim() else index
    found = x.gather(axis, index)
    return found if keepdims else found.squeeze(axis)


@operator("one_hot")
def one_hot(x: Any, depth: int, on_value: float = 1.0, off_value: float = 0.0, dtype: str = "float32") -> Any:
    same = x.long().unsqueeze(-1) == torch.arange(depth, device=x.device)
    kind = dtype_of(dtype)
    return torch.where(
        same, torch.tensor(on_value, dtype=kind, device=x.device), torch.tensor(off_value, dtype=kind, device=x.device)
    )


@operator("where")
def where(condition: Any, x: Any, y: Any) -> Any:
    chosen = condition != 0
    if chosen.dim() == 1 and x.dim() > 1:
        chosen = chosen.reshape([-1] + [1] * (x.dim() - 1))
    return torch.where(chosen, x, y)


operator("_npi_where")(where)


def _arg(best: Any) -> Any:
    def find(x: Any, axis: int | None = None, keepdims: bool = False) -> Any:
        return best(x, axis, keepdim=keepdims).to(x.dtype)

    return find


operator("argmax")(_arg(torch.argmax))
operator("argmin")(_arg(torch.argmin))


@operator("argsort")
def argsort(x: Any, axis: int | None = -1, is_ascend: bool = True, dtype: str = "float32") -> Any:
    x, axis = (x.reshape(-1), 0) if axis is None else (x, axis)
    return torch.sort(x, dim=axis, descending=not is_ascend, stable=True).indices.to(dtype_of(dtype))


@operator("sort")
def sort(x: Any, axis: int | None = -1, is_ascend: bool = True) -> Any:
    x, axis = (x.reshape(-1), 0) if axis is None else (x, axis)
    return torch.sort(x, dim=axis, descending=not is_ascend, stable=True).values


@operator("topk", many=lambda attrs: attrs.get("ret_typ") == "both")
def topk(x: Any, axis: int | None = -1, k: int = 1, ret_typ: str = "indices", is_ascend: bool = False,
         dtype: str = "float32") -> Any:  # fmt: skip
    x, axis = (x.reshape(-1), 0) if axis is None else (x, axis)
    count = x.shape[axis] if k < 1 else k
    values, places = torch.sort(x, dim=axis, descending=not is_ascend, stable=True)
    values, places = values.narrow(axis, 0, count), places.narrow(axis, 0, count)
    if ret_typ == "mask":
        return torch.zeros_like(x).scatter(axis, places, 1.0)
    indices = places.to(dtype_of(dtype))
    return {"value": values, "indices": indices, "both": (values, indices)}[ret_typ]


def _steps(x: Any, length: Any, axis: int) -> Any:
    """Whether each step (``axis``) of each sample (the other of the first two) is within its length."""
    places = torch.arange(x.shape[axis], device=x.device)
    inside = places.unsqueeze(1) < length.unsqueeze(0)
    inside = inside if axis == 0 else inside.transpose(0, 1)
    return inside.reshape(*inside.shape, *[1] * (x.dim() - 2))


@operator("SequenceMask")
def sequence_mask(
    x: Any, length: Any = None, use_sequence_length: bool = False, value: float = 0.0, axis: int = 0
) -> Any:
    if not use_sequence_length:
        return x
    return torch.where(_steps(x, length, axis), x, torch.full_like(x, value))


@operator("SequenceLast")
def sequence_last(x: Any, length: Any = None, use_sequence_length: bool = False, axis: int = 0) -> Any:
    moved = x.movedim(axis, 0)
    if not use_sequence_length:
        return moved[-1]
    return moved[length.long() - 1, torch.arange(moved.shape[1], device=x.device)]


@operator("SequenceReverse")
def sequence_reverse(x: Any, length: Any = None, use_sequence_length: bool = False, axis: int = 0) -> Any:
    if not use_sequence_length:
        return x.flip(axis)
    places = torch.arange(x.shape[0], device=x.device).unsqueeze(1)
    turned = torch.where(places < length.long(), length.long() - 1 - places, places)
    return x.gather(0, turned.reshape(*turned.shape, *[1] * (x.dim() - 2)).expand(x.shape))


operators(globals(), {
    "gather_nd": lambda x, indices: x[tuple(indices.long().unbind(0))],
    "batch_take": lambda x, indices: x.gather(1, indices.long().unsqueeze(1)).squeeze(1),
    "_npi_argmax": lambda x, axis=None, keepdims=False: torch.argmax(x, axis, keepdim=keepdims),
    "scatter_nd": lambda x, indices, shape: x.new_zeros(tuple(shape)).index_put(tuple(indices.long()), x),
    "argmax_channel": lambda x: x.argmax(1).to(x.dtype),
    "_npi_where_scalar2": lambda condition, x=0.0, y=0.0: torch.where(condition != 0, x, y),
})  # fmt: skip
