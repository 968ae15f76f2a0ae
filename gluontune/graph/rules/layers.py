"""Layers: their parameters' shapes follow from their input."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from gluontune.graph.rules.reducing import reduced
from gluontune.graph.shapes import MaybeShape, Shape, merged, rule

_GATES = {"lstm": 4, "gru": 3, "rnn_relu": 1, "rnn_tanh": 1}


def _set(shapes: list[MaybeShape], place: int, shape: Shape) -> None:
    if place < len(shapes):
        shapes[place] = merged(shapes[place], shape)


def _first(x: Shape, layout: str | None) -> tuple[Shape, bool]:
    """The shape with its channels in second place, and whether they stand last."""
    last = bool(layout) and str(layout).endswith("C")
    return ((x[0], x[-1], *x[1:-1]) if last else x), last


def _back(x: Shape, last: bool) -> Shape:
    return (x[0], *x[2:], x[1]) if last else x


def _whole(value: Any, count: int, usual: int) -> tuple[int, ...]:
    return tuple(value) if value else (usual,) * count


def _rank(x: Shape, kernel: Any) -> None:
    if len(x) != len(kernel) + 2:
        raise ValueError(f"a kernel of {len(kernel)} sides takes {len(kernel) + 2} axes")


@rule("Convolution")
def convolution(attrs: Mapping[str, Any], shapes: list[MaybeShape]) -> list[MaybeShape]:
    x, last = _first(shapes[0] or (), attrs["layout"])
    kernel, n = attrs["kernel"], len(attrs["kernel"])
    _rank(x, kernel)
    filters, groups = attrs["num_filter"], attrs["num_group"]
    if x[1] % groups or filters % groups:
        raise ValueError(f"{x[1]} channels in {groups} groups")
    _set(shapes, 1, _back((filters, x[1] // groups, *kernel), last))
    _set(shapes, 2, (filters,))
    sides = zip(
        x[2:],
        kernel,
        _whole(attrs["stride"], n, 1),
        _whole(attrs["dilate"], n, 1),
        _whole(attrs["pad"], n, 0),
    )
    out = tuple((i + 2 * p - d * (k - 1) - 1) // s + 1 for i, k, s, d, p in sides)
    if min(out) < 1:
        raise ValueError(f"a kernel of {kernel} is larger than the image")
    return [_back((x[0], filters, *out), last)]


@rule("Deconvolution")
def deconvolution(attrs: Mapping[str, Any], shapes: list[MaybeShape]) -> list[MaybeShape]:
    x, last = _first(shapes[0] or (), attrs["layout"])
    kernel, n = attrs["kernel"], len(attrs["kernel"])
    _rank(x, kernel)
    filters, groups = attrs["num_filter"], attrs["num_group"]
    _set(shapes, 1, _back((x[1], filters // groups, *kernel), last))
    _set(shapes, 2, (filters,))
    stride, dilate = _whole(attrs["stride"], n, 1), _whole(attrs["dilate"], n, 1)
    if attrs["target_shape"] and any(attrs["target_shape"]):
        out = tuple(attrs["target_shape"])
    else:
        pad, adj = _whole(attrs["pad"], n, 0), _whole(attrs["adj"], n, 0)
        sides = zip(x[2:], kernel, stride, dilate, pad, adj)
        out = tuple(s * (i - 1) + d * (k - 1) + 1 - 2 * p + a for i, k, s, d, p, a in sides)
    return [_back((x[0], filters, *out), last)]


def _dense_back(attrs: Mapping[str, Any], shapes: list[MaybeShape], outputs: list[MaybeShape]) -> None:
    """The batch of a begin state is known from what its product is added to."""
    x, out = shapes[0], outputs[0]
    if x is not None and out is not None:
        shapes[0] = (out[0], *x[1:]) if attrs["flatten"] else merged(x, (*out[:-1], -1))


@rule("FullyConnected", needs=0, back=_dense_back)
def fully_connected(attrs: Mapping[str, Any], shapes: list[MaybeShape]) -> list[MaybeShape]:
    x, hidden = shapes[0], attrs["num_hidden"]
    _set(shapes, 2, (hidden,))
    if x is None:
        return [None]
    inner = x[1:] if attrs["flatten"] else x[-1:]
    _set(shapes, 1, (hidden, -1 if -1 in inner else math.prod(inner)))
    return [((x[0],) if attrs["flatten"] else x[:-1]) + (hidden,)]


@rule("Embedding")
def embedding(attrs: Mapping[str, Any], shapes: list[MaybeShape]) -> list[MaybeShape]:
    _set(shapes, 1, (attrs["input_dim"], attrs["output_dim"]))
    return [(*(shapes[0] or ()), attrs["output_dim"])]


@rule("BatchNorm", "_contrib_SyncBatchNorm", "_contrib_BatchNormWithReLU")
def batch_norm(attrs: Mapping[str, Any], shapes: list[MaybeShape]) -> list[MaybeShape]:
    x = shapes[0] or ()
    channels = (x[attrs.get("axis", 1)],)
    for place in range(1, len(shapes)):
        _set(shapes, place, channels)
    return [x, channels, channels]


@rule("LayerNorm")
def layer_norm(attrs: Mapping[str, Any], shapes: list[MaybeShape]) -> list[MaybeShape]:
    x = shapes[0] or ()
    axis = attrs["axis"] % len(x)
    _set(shapes, 1, (x[axis],))
    _set(shapes, 2, (x[axis],))
    moments = reduced(x, (axis,), True)
    return [x, moments, moments]


@rule("GroupNorm")
def group_norm(attrs: Mapping[str, Any], shapes: list[MaybeShape]) -> list[MaybeShape]:
    x, groups = shapes[0] or (), attrs["num_groups"]
    if x[1] % groups:
        raise ValueError(f"{x[1]} channels in {groups} groups")
    _set(shapes, 1, (groups,))
    _set(shapes, 2, (groups,))
    return [x, (x[0], groups), (x[0], groups)]


@rule("InstanceNorm")
def instance_norm(attrs: Mapping[str, Any], shapes: list[MaybeShape]) -> list[MaybeShape]:
    x = shapes[0] or ()
    _set(shapes, 1, x[1:2])
    _set(shapes, 2, x[1:2])
    return [x]


@rule("LeakyReLU")
def leaky_relu(attrs: Mapping[str, Any], shapes: list[MaybeShape]) -> list[MaybeShape]:
    x = shapes[0] or ()
    if attrs["act_type"] == "prelu" and shapes[1] is None:
        shapes[1] = x[1:2] if len(x) > 1 else x
    return [x]


@rule("Pooling", "Pooling_v1")
def pooling(attrs: Mapping[str, Any], shapes: list[MaybeShape]) -> list[MaybeShape]:
    x, last = _first(shapes[0] or (), attrs.get("layout"))
    if attrs["global_pool"]:
        return [_back((*x[:2], *[1] * (len(x) - 2)), last)]
    kernel, n = attrs["kernel"], len(attrs["kernel"])
    _rank(x, kernel)
    out = []
    for i, k, s, p in zip(x[2:], kernel, _whole(attrs["stride"], n, 1), _whole(attrs["pad"], n, 0)):
        if k > i + 2 * p:
            raise ValueError(f"a kernel of {kernel} is larger than the image")
        whole = {"valid": (i + 2 * p - k) // s, "full": -((k - i - 2 * p) // s)}
        out.append(whole.get(attrs["pooling_convention"], -(-(i + 2 * p) // s) - 1) + 1)
    return [_back((*x[:2], *out), last)]


@rule("RNN")
def rnn(attrs: Mapping[str, Any], shapes: list[MaybeShape]) -> list[MaybeShape]:
    steps, batch, width = shapes[0] or ()
    hidden, layers, ways = attrs["state_size"], attrs["num_layers"], 2 if attrs["bidirectional"] else 1
    gates, size = _GATES[attrs["mode"]], 0
    if layers > 1000:
        raise ValueError(f"it has {layers} layers")
    out = attrs["projection_size"] or hidden
    for layer in range(layers):
        inner = width if layer == 0 else out * ways
        size += ways * gates * hidden * (inner + out + 2)
        size += ways * hidden * out if attrs["projection_size"] else 0
    state, cell = (layers * ways, batch, out), (layers * ways, batch, hidden)
    _set(shapes, 1, (size,))
    _set(shapes, 2, state)
    if attrs["mode"] == "lstm":
        _set(shapes, 3, cell)
    return [(steps, batch, out * ways), state, *([cell] if attrs["mode"] == "lstm" else [])]


def _params_back(attrs: Mapping[str, Any], shapes: list[MaybeShape], outputs: list[MaybeShape]) -> None:
    """The first layer's weights, one for each direction and alike, follow from the number of all parameters."""
    total = (outputs[0] or (-1,))[0]
    open_ones = [place for place, shape in enumerate(shapes) if shape is None or -1 in shape]
    if total < 0 or not open_ones:
        return
    left = total - sum(math.prod(s) for s in shapes if s is not None and -1 not in s)
    for place in open_ones:
        shapes[place] = merged(shapes[place], (left // len(open_ones),))


@rule("_rnn_param_concat", needs=-1, back=_params_back)
def rnn_param_concat(attrs: Mapping[str, Any], shapes: list[MaybeShape]) -> list[MaybeShape]:
    return [(sum(math.prod(shape or ()) for shape in shapes),)]
