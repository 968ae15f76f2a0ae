"""Operators that move, cut, join and repeat, take, pick, sort and mask."""

from __future__ import annotations

from typing import Any

from gluontune.convert.bridge.operators.creating import dtype_of
from gluontune.convert.bridge.registry import operator, operators
from gluontune.convert.graph.schemas import new_shape, np_new_shape
from gluontune.runtime import pytorch

torch: Any = pytorch.torch()
F = torch.nn.functional


@operator("reshape_like")
def reshape_like(x: Any, other: Any, lhs_begin: Any = None, lhs_end: Any = None, rhs_begin: Any = None,
                 rhs_end: Any = None) -> Any:  # fmt: skip
    a = slice(lhs_begin, lhs_end).indices(x.dim())
    b = slice(rhs_begin, rhs_end).indices(other.dim())
    return x.reshape(*x.shape[: a[0]], *other.shape[b[0] : b[1]], *x.shape[a[1] :])


@operator("slice")
def slice_(x: Any, begin: Any, end: Any, step: Any = ()) -> Any:
    for axis, (low, high) in enumerate(zip(begin, end)):
        by = (step[axis] if axis < len(step) else None) or 1
        if by < 0:
            index = range(x.shape[axis])[slice(low, high, by)]
            x = x.index_select(axis, torch.tensor(list(index), device=x.device))
        else:
            x = x[(slice(None),) * axis + (slice(low, high, by),)]
    return x


@operator("slice_like")
def slice_like(x: Any, other: Any, axes: Any = ()) -> Any:
    for axis in axes or range(other.dim()):
        x = x.narrow(axis, 0, other.shape[axis])
    return x


@operator("SliceChannel", many=True)
def slice_channel(x: Any, num_outputs: int, axis: int = 1, squeeze_axis: bool = False) -> Any:
    parts = x.chunk(num_outputs, axis)
    return tuple(p.squeeze(axis) for p in parts) if squeeze_axis else parts


@operator("_split_v2", many=True)
def split_v2(x: Any, indices: Any = (), axis: int = 1, squeeze_axis: bool = False, sections: int = 0) -> Any:
    parts = x.chunk(sections, axis) if sections else x.tensor_split(list(indices)[1:], axis)
    return tuple(p.squeeze(axis) for p in parts) if squeeze_axis else tuple(parts)


@operator("_npi_concatenate")
def np_concatenate(*arrays: Any, axis: Any = 0, dim: int = 1) -> Any:
    flat = axis in (None, "None")  # missing in MXNet's table of attributes, hence text
    return torch.cat([a.reshape(-1) for a in arrays]) if flat else torch.cat(arrays, int(axis))


@operator("broadcast_axis")
def broadcast_axis(x: Any, axis: Any = (), size: Any = ()) -> Any:
    shape = list(x.shape)
    for a, n in zip(axis, size):
        shape[a] = n
    return x.expand(shape)


@operator("broadcast_to", "_npi_broadcast_to")
def broadcast_to(x: Any, shape: Any = ()) -> Any:
    new = len(shape) - x.dim()
    return x.expand([*shape[:new], *(n or old for n, old in zip(shape[new:], x.shape))])


@operator("broadcast_like")
def broadcast_like(x: Any, other: Any, lhs_axes: Any = None, rhs_axes: Any = None) -> Any:
    shape = list(x.shape if lhs_axes else other.shape)
    for a, b in zip(lhs_axes or (), rhs_axes or ()):
        shape[a] = other.shape[b]
    return x.expand(shape)


@operator("Pad")
def pad(x: Any, mode: str, pad_width: Any, constant_value: float = 0.0) -> Any:
    pairs = [n for i in range(len(pad_width) - 2, -1, -2) for n in pad_width[i : i + 2]]
    if mode == "constant":
        return F.pad(x, pairs, value=constant_value)
    return F.pad(x, pairs[: 2 * (x.dim() - 2)], {"edge": "replicate"}.get(mode, mode))


@operator("_npi_pad")
def np_pad(x: Any, pad_width: Any, mode: str = "constant", constant_value: float = 0.0) -> Any:
    if mode == "constant":
        return F.pad(x, [n for pair in reversed(pad_width) for n in pair], value=constant_value)
    for axis, (before, after) in enumerate(pad_width):
        size = x.shape[axis]
        places = torch.arange(-before, size + after, device=x.device)
        if mode in ("maximum", "minimum"):
            most = x.amax(axis, True) if mode == "maximum" else x.amin(axis, True)
            x = torch.cat([most] * before + [x] + [most] * after, axis)
            continue
        if mode == "edge":
            places = places.clamp(0, size - 1)
        else:  # there and back again, each edge once or twice
            way = 2 * size - (2 if mode == "reflect" else 0)
            places = places % max(1, way)
            places = torch.minimum(places, way - places - int(mode == "symmetric"))
        x = x.index_select(axis, places)
    return x


@operator("depth_to_space")
def depth_to_space(x: Any, block_size: int) -> Any:
    n, c, h, w = x.shape
    x = x.reshape(n, block_size, block_size, c // block_size**2, h, w).permute(0, 3, 4, 1, 5, 2)
    return x.reshape(n, c // block_size**2, h * block_size, w * block_size)


@operator("space_to_depth")
def space_to_depth(x: Any, block_size: int) -> Any:
    n, c, h, w = x.shape
    x = x.reshape(n, c, h // block_size, block_size, w // block_size, block_size).permute(0, 3, 5, 1, 2, 4)
    return x.reshape(n, c * block_size**2, h // block_size, w // block_size)


@operator("Crop")
def crop(x: Any, like: Any = None, offset: Any = (0, 0), h_w: Any = (0, 0), center_crop: bool = False) -> Any:
    height, width = h_w if like is None else like.shape[2:]
    top, left = ((x.shape[2] - height) // 2, (x.shape[3] - width) // 2) if center_crop else offset
    return x[:, :, top : top + height, left : left + width]


operators(globals(), {
    "Reshape": lambda x, shape=(), reverse=False, target_shape=():
        x.reshape(new_shape(x.shape, shape or target_shape, reverse)),
    "_npx_reshape": lambda x, newshape, reverse=False, order="C": x.reshape(np_new_shape(x.shape, newshape, reverse)),
    "_np_reshape": lambda x, newshape, order="C": x.reshape(tuple(newshape)),
    "Flatten": lambda x: x.flatten(1) if x.dim() > 1 else x.reshape(-1, 1),
    "SwapAxis": lambda x, dim1=0, dim2=0: x.transpose(dim1, dim2),
    "transpose _np_transpose": lambda x, axes=(): x.permute(tuple(axes or reversed(range(x.dim())))),
    "expand_dims": lambda x, axis: x.unsqueeze(axis),
    "squeeze _np_squeeze": lambda x, axis=None:
        x.squeeze() if axis is None or axis == () else x.squeeze((axis,) if isinstance(axis, int) else tuple(axis)),
    "slice_axis": lambda x, axis, begin, end: x[(slice(None),) * (axis % x.dim()) + (slice(begin, end),)],
    "Concat": lambda *arrays, dim=1: torch.cat(arrays, dim),
    "stack _npi_stack": lambda *arrays, axis=0: torch.stack(arrays, axis),
    "tile": lambda x, reps: x.tile(tuple(reps)),
    "repeat": lambda x, repeats, axis=None: x.repeat_interleave(repeats, axis),
    "reverse": lambda x, axis: x.flip(axis),
    "im2col": lambda x, kernel, stride=(), dilate=(), pad=(): F.unfold(x, kernel, dilate or 1, pad or 0, stride or 1),
    "col2im": lambda x, output_size, kernel, stride=(), dilate=(), pad=():
        F.fold(x, output_size, kernel, dilate or 1, pad or 0, stride or 1),
})  # fmt: skip


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
    values = (torch.tensor(value, dtype=dtype_of(dtype), device=x.device) for value in (on_value, off_value))
    return torch.where(same, *values)


@operator("where", "_npi_where")
def where(condition: Any, x: Any, y: Any) -> Any:
    chosen = condition != 0
    if chosen.dim() == 1 and x.dim() > 1:
        chosen = chosen.reshape([-1] + [1] * (x.dim() - 1))
    return torch.where(chosen, x, y)


def _arg(best: Any) -> Any:
    def find(x: Any, axis: int | None = None, keepdims: bool = False) -> Any:
        return best(x, axis, keepdim=keepdims).to(x.dtype)

    return find


operator("argmax")(_arg(torch.argmax))
operator("argmin")(_arg(torch.argmin))


def _in_order(x: Any, axis: int | None, is_ascend: bool) -> Any:
    """Values and their places; of the whole array for ``axis`` None."""
    x, axis = (x.reshape(-1), 0) if axis is None else (x, axis)
    return torch.sort(x, dim=axis, descending=not is_ascend, stable=True)


@operator("topk", many=lambda attrs: attrs.get("ret_typ") == "both")
def topk(x: Any, axis: int | None = -1, k: int = 1, ret_typ: str = "indices", is_ascend: bool = False,
         dtype: str = "float32") -> Any:  # fmt: skip
    x, axis = (x.reshape(-1), 0) if axis is None else (x, axis)
    count = x.shape[axis] if k < 1 else k
    values, places = (each.narrow(axis, 0, count) for each in _in_order(x, axis, is_ascend))
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
    "argsort": lambda x, axis=-1, is_ascend=True, dtype="float32":
        _in_order(x, axis, is_ascend).indices.to(dtype_of(dtype)),
    "sort": lambda x, axis=-1, is_ascend=True: _in_order(x, axis, is_ascend).values,
    "gather_nd": lambda x, indices: x[tuple(indices.long().unbind(0))],
    "batch_take": lambda x, indices: x.gather(1, indices.long().unsqueeze(1)).squeeze(1),
    "_npi_argmax": lambda x, axis=None, keepdims=False: torch.argmax(x, axis, keepdim=keepdims),
    "scatter_nd": lambda x, indices, shape: x.new_zeros(tuple(shape)).index_put(tuple(indices.long()), x),
    "argmax_channel": lambda x: x.argmax(1).to(x.dtype),
    "_npi_where_scalar2": lambda condition, x=0.0, y=0.0: torch.where(condition != 0, x, y),
})  # fmt: skip
