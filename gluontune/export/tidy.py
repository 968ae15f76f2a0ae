"""Tidying what MXNet's converter leaves: so that ONNX Runtime sees constants as constants and can fuse."""

from __future__ import annotations

import hashlib
import importlib
from collections.abc import Sequence
from typing import Any

import numpy as np

__all__ = ["add_preprocessing", "name_batch", "tidy"]

BATCH = "batch"


def tidy(model: Any) -> dict[str, int]:
    """Tidy a model in place.

    The converter lists weights as inputs, too, which forbids ONNX Runtime to fold BatchNorm into a
    convolution; it writes the same small constants again and again, and leaves identities behind.

    Returns:
        how many were removed: ``inputs`` (weights listed as inputs), ``duplicates`` (equal initializers),
        ``identities``, ``unused`` (initializers that nothing reads).
    """
    graph = model.graph
    weights = {tensor.name for tensor in graph.initializer}
    listed = [value for value in graph.input if value.name in weights]
    for value in listed:
        graph.input.remove(value)
    found = {"inputs": len(listed), "identities": _drop_identities(graph), "duplicates": _merge_equal(graph)}
    used = {name for node in graph.node for name in node.input} | {output.name for output in graph.output}
    unused = [tensor for tensor in graph.initializer if tensor.name not in used]
    for tensor in unused:
        graph.initializer.remove(tensor)
    return {**found, "unused": len(unused)}


def _drop_identities(graph: Any) -> int:
    outputs = {output.name for output in graph.output}
    dropped = []
    for node in graph.node:
        if node.op_type == "Identity" and node.output[0] not in outputs:
            _rename(graph, node.output[0], node.input[0])
            dropped.append(node)
    for node in dropped:
        graph.node.remove(node)
    return len(dropped)


def _merge_equal(graph: Any) -> int:
    first: dict[bytes, str] = {}
    outputs, merged = {output.name for output in graph.output}, []
    for tensor in graph.initializer:
        name, tensor.name = tensor.name, ""
        key = hashlib.sha256(tensor.SerializeToString()).digest()
        tensor.name = name
        if key in first and name not in outputs:
            merged.append((tensor, first[key]))
        else:
            first.setdefault(key, name)
    renamed = {tensor.name: other for tensor, other in merged}
    for node in graph.node:
        for place, name in enumerate(node.input):
            if name in renamed:
                node.input[place] = renamed[name]
    for tensor, _ in merged:
        graph.initializer.remove(tensor)
    return len(merged)


def _rename(graph: Any, old: str, new: str) -> None:
    for node in graph.node:
        for place, name in enumerate(node.input):
            if name == old:
                node.input[place] = new


def name_batch(model: Any, batch_size: int | None) -> None:
    """Give the first dimension of inputs and outputs its name, or its number where it is fixed."""
    weights = {tensor.name for tensor in model.graph.initializer}
    for value in [v for v in model.graph.input if v.name not in weights] + list(model.graph.output):
        dims = value.type.tensor_type.shape.dim
        if not dims:
            continue
        dims[0].Clear()
        if batch_size is None:
            dims[0].dim_param = BATCH
        else:
            dims[0].dim_value = batch_size


def add_preprocessing(
    model: Any, image_shape: Sequence[int], mean: Sequence[float], std: Sequence[float], batch_size: int | None
) -> None:
    """Put ``(pixel / 255 - mean) / std`` and the change from (N, H, W, C) to (N, C, H, W) before the net.

    The input is then called ``pixels`` and takes uint8.
    """
    onnx = importlib.import_module("onnx")
    helper, graph = onnx.helper, model.graph
    inside = graph.input[0].name
    scale = np.asarray([1 / (255 * s) for s in std], "float32").reshape(1, -1, 1, 1)
    shift = np.asarray([-m / s for m, s in zip(mean, std)], "float32").reshape(1, -1, 1, 1)
    first = [
        helper.make_node("Cast", ["pixels"], ["pixels_float"], name="pixels_cast", to=onnx.TensorProto.FLOAT),
        helper.make_node("Transpose", ["pixels_float"], ["pixels_nchw"], name="pixels_transpose", perm=[0, 3, 1, 2]),
        helper.make_node("Mul", ["pixels_nchw", "pixels_scale"], ["pixels_scaled"], name="pixels_mul"),
        helper.make_node("Add", ["pixels_scaled", "pixels_shift"], [inside], name="pixels_add"),
    ]
    nodes = [*first, *graph.node]
    del graph.node[:]
    graph.node.extend(nodes)
    for name, values in (("pixels_scale", scale), ("pixels_shift", shift)):
        graph.initializer.append(onnx.numpy_helper.from_array(values, name))
    shape = [BATCH if batch_size is None else batch_size, *image_shape]
    graph.input.remove(graph.input[0])
    graph.input.insert(0, helper.make_tensor_value_info("pixels", onnx.TensorProto.UINT8, shape))
