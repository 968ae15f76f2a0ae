"""Operators that move, cut, join and repeat."""

from __future__ import annotations

from typing import Any

from gluontune.convert.bridge.registry import Draw, Sample, operator
from gluontune.convert.graph.schemas import new_shape, np_new_shape
from gluontune.runtime import pytorch

torch: Any = pytorch.torch()
F = torch.nn.functional


def _reshape_sample(draw: Draw) -> Sample:
    shape = (2, draw.int(1, 3), 4)
    codes = draw.pick(
        [(0, -1), (-1,), (-3, 0), (0, -2), (-2,), (0, 0, -4, 2, -1), (-1, 4), (0, -3), (-4, 1, 2, -2), (-2, 2, 2, -4)]
    )
    turned = codes[-1] == -4
    return Sample(
        [("normal", shape)],
        {"shape": codes, "reverse": turned or draw.pick([False, False, codes in ((0, -1), (-1, 4))])},
    )


@operator("Reshape", sample=_reshape_sample)
def reshape(x: Any, shape: Any = (), reverse: bool = False, target_shape: Any = ()) -> Any:
    return x.reshape(new_shape(x.shape, shape or target_shape, reverse))


def _npx_reshape_sample(draw: Draw) -> Sample:
    codes = [(-2, -1), (-1,), (-5, -2, -2), (-2, -3, -4), (-4,), (-2, -2, -2, -6, 2, -1), (-2, -3, -6, -1, 2, 4)]
    return Sample([("normal", (3, 1, 2, 4))], {"newshape": draw.pick(codes)})


@operator("_npx_reshape", sample=_npx_reshape_sample)
def npx_reshape(x: Any, newshape: Any, reverse: bool = False, order: str = "C") -> Any:
    return x.reshape(np_new_shape(x.shape, newshape, reverse))


@operator("_np_reshape", sample=lambda d: Sample([("normal", (2, 6))], {"newshape": d.pick([(3, 4), (-1, 2), (12,)])}))
def np_reshape(x: Any, newshape: Any, order: str = "C") -> Any:
    return x.reshape(tuple(newshape))


@operator("reshape_like", sample=lambda d: Sample([("normal", (2, 6)), ("normal", (3, 4))], {}))
def reshape_like(x: Any, other: Any, lhs_begin: Any = None, lhs_end: Any = None, rhs_begin: Any = None,
                 rhs_end: Any = None) -> Any:  # fmt: skip
    a = slice(lhs_begin, lhs_end).indices(x.dim())
    b = slice(rhs_begin, rhs_end).indices(other.dim())
    return x.reshape(*x.shape[: a[0]], *other.shape[b[0] : b[1]], *x.shape[a[1] :])


@operator("Flatten", sample=lambda d: Sample([("normal", d.shape(2, 4))], {}))
def flatten(x: Any) -> Any:
    return x.flatten(1) if x.dim() > 1 else x.reshape(-1, 1)


def _transpose_sample(draw: Draw) -> Sample:
    return Sample([("normal", (2, 3, 4))], {"axes": draw.pick([(), (0, 2, 1), (2, 0, 1), (1, 0, 2)])})


@operator("transpose", sample=_transpose_sample)
def transpose(x: Any, axes: Any = ()) -> Any:
    return x.permute(tuple(axes) if axes else tuple(reversed(range(x.dim()))))


operator("_np_transpose", sample=lambda d: Sample([("normal", (2, 3, 4))], {"axes": d.pick([(0, 2, 1), (2, 0, 1)])}))(
    transpose
)


@operator("SwapAxis", sample=lambda d: Sample([("normal", (2, 3, 4))], {"dim1": d.int(0, 2), "dim2": d.int(0, 2)}))
def swap_axis(x: Any, dim1: int = 0, dim2: int = 0) -> Any:
    return x.transpose(dim1, dim2)


@operator("expand_dims", sample=lambda d: Sample([("normal", (2, 3))], {"axis": d.int(-3, 2)}))
def expand_dims(x: Any, axis: int) -> Any:
    return x.unsqueeze(axis)


@operator(
    "squeeze",
    "_np_squeeze",
    sample=lambda d: Sample([("normal", (2, 1, 3, 1))], {"axis": d.pick([None, (1,), (1, 3), (-1,)])}),
)
def squeeze(x: Any, axis: Any = None) -> Any:
    return x.squeeze() if axis is None or axis == () else x.squeeze((axis,) if isinstance(axis, int) else tuple(axis))


def _slice_sample(draw: Draw) -> Sample:
    begin, end = (
        (draw.pick([None, 0, 1, -3]), draw.pick([None, 0, 1])),
        (draw.pick([None, 3, -1]), draw.pick([None, 4])),
    )
    return Sample([("normal", (4, 5, 2))], {"begin": begin, "end": end, "step": draw.pick([(), (1, 2)])})


@operator("slice", sample=_slice_sample)
def slice_(x: Any, begin: Any, end: Any, step: Any = ()) -> Any:
    for axis, (low, high) in enumerate(zip(begin, end)):
        by = (step[axis] if axis < len(step) else None) or 1
        if by < 0:
            index = range(x.shape[axis])[slice(low, high, by)]
            x = x.index_select(axis, torch.tensor(list(index), device=x.device))
        else:
            x = x[(slice(None),) * axis + (slice(low, high, by),)]
    return x


@operator(
    "slice_axis",
    sample=lambda d: Sample(
        [("normal", (4, 5))], {"axis": d.pick([0, -1]), "begin": d.int(0, 2), "end": d.pick([None, 4, -1])}
    ),
)
def slice_axis(x: Any, axis: int, begin: int, end: int | None) -> Any:
    return x[(slice(None),) * (axis % x.dim()) + (slice(begin, end),)]


@operator(
    "slice_like",
    sample=lambda d: Sample([("normal", (4, 5)), ("normal", (2, 3))], {"axes": d.pick([(), (0,), (-1,), (0, 1)])}),
)
def slice_like(x: Any, other: Any, axes: Any = ()) -> Any:
    for axis in axes or range(other.dim()):
        x = x.narrow(axis, 0, other.shape[axis])
    return x


@operator("SliceChannel", many=True, sample=lambda d: Sample([("normal", (2, 4, 4))], {
    "num_outputs": d.pick([2, 4]), "axis": d.pick([1, 2, -1]), "squeeze_axis": False}))  # fmt: skip
def slice_channel(x: Any, num_outputs: int, axis: int = 1, squeeze_axis: bool = False) -> Any:
    parts = x.chunk(num_outputs, axis)
    return tuple(p.squeeze(axis) for p in parts) if squeeze_axis else parts


def _split_sample(draw: Draw) -> Sample:
    how: dict[str, Any] = {"indices": (), "sections": 2} if draw.int(0, 1) else {"indices": (0, 1, 3)}
    return Sample([("normal", (2, 4, 4))], {**how, "axis": draw.pick([1, 2])})


@operator("_split_v2", many=True, sample=_split_sample)
def split_v2(x: Any, indices: Any = (), axis: int = 1, squeeze_axis: bool = False, sections: int = 0) -> Any:
    parts = x.chunk(sections, axis) if sections else x.tensor_split(list(indices)[1:], axis)
    return tuple(p.squeeze(axis) for p in parts) if squeeze_axis else tuple(parts)


@operator(
    "Concat", sample=lambda d: Sample([("normal", (2, n + 1)) for n in range(d.int(1, 3))], {"dim": 1, "num_args": "?"})
)
def concat(*arrays: Any, dim: int = 1) -> Any:
    return torch.cat(arrays, dim)


def _joined(draw: Draw) -> Sample:
    return Sample(
        [("normal", (2, n + 1)) for n in range(draw.int(1, 3))], {"axis": draw.pick([1, -1]), "num_args": "?"}
    )


@operator("_npi_concatenate", sample=_joined)
def np_concatenate(*arrays: Any, axis: Any = 0, dim: int = 1) -> Any:
    flat = axis in (None, "None")  # missing in MXNet's table of attributes, hence text
    return torch.cat([a.reshape(-1) for a in arrays]) if flat else torch.cat(arrays, int(axis))


@operator(
    "stack",
    "_npi_stack",
    sample=lambda d: Sample([("normal", (2, 3))] * d.int(1, 3), {"axis": d.int(-1, 2), "num_args": "?"}),
)
def stack(*arrays: Any, axis: int = 0) -> Any:
    return torch.stack(arrays, axis)


@operator("tile", sample=lambda d: Sample([("normal", (2, 3))], {"reps": d.pick([(2,), (2, 1), (1, 2, 2)])}))
def tile(x: Any, reps: Any) -> Any:
    return x.tile(tuple(reps))


@operator(
    "repeat", sample=lambda d: Sample([("normal", (2, 3))], {"repeats": d.int(1, 3), "axis": d.pick([None, 0, -1])})
)
def repeat(x: Any, repeats: int, axis: int | None = None) -> Any:
    return x.repeat_interleave(repeats, axis)


@operator("reverse", sample=lambda d: Sample([("normal", (2, 3))], {"axis": d.pick([(0,), (1,), (0, 1)])}))
def reverse(x: Any, axis: Any) -> Any:
    return x.flip(axis)


@operator(
    "broadcast_axis", sample=lambda d: Sample([("normal", (1, 3, 1))], {"axis": d.pick([(0,), (2,)]), "size": (4,)})
)
def broadcast_axis(x: Any, axis: Any = (), size: Any = ()) -> Any:
    shape = list(x.shape)
    for a, n in zip(axis, size):
        shape[a] = n
    return x.expand(shape)


@operator(
    "broadcast_to", "_npi_broadcast_to", sample=lambda d: Sample([("normal", (1, 3))], {"shape": (d.int(1, 4), 3)})
)
def broadcast_to(x: Any, shape: Any = ()) -> Any:
    shape = tuple(shape)
    whole = (
        *shape[: len(shape) - x.dim()],
        *[o if n == 0 else n for o, n in zip(x.shape, shape[len(shape) - x.dim() :])],
    )
    return x.expand(whole)


@operator("broadcast_like", sample=lambda d: Sample([("normal", (1, 3)), ("normal", (4, 3))], {}))
def broadcast_like(x: Any, other: Any, lhs_axes: Any = None, rhs_axes: Any = None) -> Any:
    shape = list(x.shape if lhs_axes else other.shape)
    for a, b in zip(lhs_axes or (), rhs_axes or ()):
        shape[a] = other.shape[b]
    return x.expand(shape)


@operator("Pad", sample=lambda d: Sample([("normal", (1, 2, 4, 4))], {
    "mode": d.pick(["constant", "edge", "reflect"]), "pad_width": (0, 0, 0, 0, 1, 2, 2, 1)}))  # fmt: skip
def pad(x: Any, mode: str, pad_width: Any, constant_value: float = 0.0) -> Any:
    pairs = [n for i in range(len(pad_width) - 2, -1, -2) for n in pad_width[i : i + 2]]
    if mode == "constant":
        return F.pad(x, pairs, value=constant_value)
    return F.pad(x, pairs[: 2 * (x.dim() - 2)], {"edge": "replicate"}.get(mode, mode))


def _np_pad_sample(draw: Draw) -> Sample:
    mode = draw.pick(["constant", "edge", "reflect", "symmetric", "maximum", "minimum"])
    grads = mode == "constant"  # MXNet lacks the other gradients
    attrs = {"mode": mode, "pad_width": ((0, 0), (draw.int(0, 2), 1), (2, draw.int(0, 2)))}
    more = {"constant_value": draw.pick([0.0, 0.5])} if mode == "constant" else {}
    return Sample([("normal", (2, 3, 4))], {**attrs, **more}, grads=grads)


@operator("_npi_pad", sample=_np_pad_sample)
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


def _blocks(draw: Draw, shape: tuple[int, ...]) -> Sample:
    return Sample([("normal", shape)], {"block_size": 2})


@operator("depth_to_space", sample=lambda d: _blocks(d, (1, 4 * d.int(1, 2), 2, 3)))
def depth_to_space(x: Any, block_size: int) -> Any:
    n, c, h, w = x.shape
    x = x.reshape(n, block_size, block_size, c // block_size**2, h, w).permute(0, 3, 4, 1, 5, 2)
    return x.reshape(n, c // block_size**2, h * block_size, w * block_size)


@operator("space_to_depth", sample=lambda d: _blocks(d, (1, d.int(1, 2), 2, 4)))
def space_to_depth(x: Any, block_size: int) -> Any:
    n, c, h, w = x.shape
    x = x.reshape(n, c, h // block_size, block_size, w // block_size, block_size).permute(0, 3, 5, 1, 2, 4)
    return x.reshape(n, c * block_size**2, h // block_size, w // block_size)
