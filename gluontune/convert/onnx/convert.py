"""A Gluon net as an ONNX file: MXNet's converter, at the opset of its release, then cleaned."""

from __future__ import annotations

import contextlib
import hashlib
import importlib
import json
import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from gluontune.compute.tracing import traced
from gluontune.core.errors import GluontuneError, UsageError
from gluontune.core.files import atomic_write
from gluontune.runtime import mxnet

OPSET = 13  # MXNet 1.9.1's converter has opsets 12 and 13; onnx has later ones
IR_VERSION = 8
_BATCH = "batch"  # the dimension's name
_LARGEST = 2**31 - 2**20  # bytes: protobuf's limit for one file


class UnsupportedOperator(GluontuneError):
    """The net has operators without an ONNX translation; ``layers`` names them: ``{operator: [layer, …]}``."""

    def __init__(self, layers: Mapping[str, Sequence[str]]):
        self.layers = {name: list(found) for name, found in layers.items()}
        operators = "; ".join(
            f"{name} (layer{'s' if len(found) > 1 else ''} {', '.join(found[:3])}"
            + (f" and {len(found) - 3} more" if len(found) > 3 else "") + ")"
            for name, found in self.layers.items()
        )  # fmt: skip
        super().__init__(f"MXNet has no ONNX translation of: {operators}; build these layers from other operators")


@dataclass
class Exported:
    """The written file.

    Args:
        path: the ONNX file. opset, ir_version: of the file.
        input_shape: (N, C, H, W), or (N, H, W, C) with the preprocessing inside; N is None if any batch fits.
        input_dtype: ``float32``, or ``uint8`` with the preprocessing inside.
        outputs: names of the outputs.
        dynamic_batch: whether any batch size fits; else ``notes`` has the reason.
        nodes, parameters, bytes: size of the graph, of its weights (numbers), and of the file.
        removed: items removed by cleaning, by kind.
    """

    path: str
    opset: int = OPSET
    ir_version: int = IR_VERSION
    input_shape: list[int | None] = field(default_factory=list)
    input_dtype: str = "float32"
    outputs: list[str] = field(default_factory=list)
    dynamic_batch: bool = True
    nodes: int = 0
    parameters: int = 0
    bytes: int = 0
    removed: dict[str, int] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def to_onnx(
    net: Any,
    path: str | Path,
    *,
    image_shape: Sequence[int],
    batch_size: int | None = None,
    mean: Sequence[float] | None = None,
    std: Sequence[float] | None = None,
    preprocess: bool = False,
    classes: Sequence[str] = (),
    metadata: Mapping[str, str] | None = None,
) -> Exported:
    """Write a net as ONNX.

    Args:
        net: an initialized HybridBlock that takes normalized float32 ``(N, C, H, W)``. It is traced, not changed.
        path: the ``.onnx`` file, written atomically.
        image_shape: (H, W, C) of the images.
        batch_size: a fixed one; None: any batch, if the net allows it.
        mean, std: of each channel, of pixels of 0 … 1; written into the metadata, and used by ``preprocess``.
        preprocess: put the normalization into the graph: the file then takes uint8 pixels ``(N, H, W, C)``.
        classes: names, written into the metadata as JSON. metadata: further strings for it.

    Raises:
        UnsupportedOperator: all operators without a translation, each with its layers.
        UsageError: not a HybridBlock; preprocessing without mean and deviation.
        GluontuneError: onnx is missing or too new, the net cannot be traced, the file would pass 2 GiB.

    >>> import tempfile
    >>> nn = mxnet().gluon.nn
    >>> net = nn.HybridSequential()
    >>> net.add(nn.Conv2D(4, 3), nn.BatchNorm(), nn.Activation("relu"), nn.GlobalAvgPool2D(), nn.Dense(2))
    >>> net.initialize()
    >>> made = to_onnx(net, Path(tempfile.mkdtemp()) / "net.onnx", image_shape=(8, 8, 3))
    >>> made.input_shape, made.opset
    ([None, 3, 8, 8], 13)
    """
    mx = mxnet()
    onnx = _onnx()
    if not isinstance(net, mx.gluon.HybridBlock):
        raise UsageError(f"{type(net).__name__} is a plain Block: only a HybridBlock can be exported to ONNX")
    if preprocess and (mean is None or std is None):
        raise UsageError("preprocess=True needs mean and std of each channel")
    height, width, channels = image_shape
    symbol, params = _trace(net, (2, channels, height, width))
    _refuse_unsupported(symbol)
    found = Exported(str(path))
    model: Any = None
    if batch_size is None:
        try:
            model = _convert(symbol, params, (2, channels, height, width), dynamic=True)
        except Exception as error:
            found.notes.append(f"the batch size is fixed at 1: the net cannot be traced for any ({_short(error)})")
            batch_size = 1
    if batch_size is not None:
        model = _convert(symbol, params, (batch_size, channels, height, width), dynamic=False)
    found.dynamic_batch = batch_size is None
    found.removed = tidy(model)
    name_batch(model, batch_size)
    if preprocess:
        assert mean is not None and std is not None
        add_preprocessing(model, image_shape, mean, std, batch_size)
    _describe(model, mean, std, preprocess, classes, metadata or {})
    onnx.checker.check_model(model)
    data = model.SerializeToString() if model.ByteSize() < _LARGEST else b""
    if not data:
        raise GluontuneError(f"{path}: the net has {model.ByteSize() / 2**30:.1f} GiB, but one ONNX file holds 2")
    with atomic_write(path) as stream:
        stream.write(data)
    shape = (height, width, channels) if preprocess else (channels, height, width)
    found.input_shape, found.input_dtype = [batch_size, *shape], "uint8" if preprocess else "float32"
    found.outputs = [output.name for output in model.graph.output]
    found.nodes, found.bytes = len(model.graph.node), len(data)
    found.parameters = sum(int(np.prod(t.dims, dtype=np.int64)) for t in model.graph.initializer)
    return found


def _onnx() -> Any:
    mxnet()
    try:
        onnx = importlib.import_module("onnx")
        importlib.import_module("onnx.mapping")
    except ImportError as error:
        raise GluontuneError(
            f"ONNX export needs onnx 1.16.2 or 1.17.0 ({error}): pip install 'onnx>=1.16.2,<1.18' 'protobuf<6'"
        ) from error
    return onnx


def _trace(net: Any, shape: tuple[int, ...]) -> tuple[Any, dict[str, Any]]:
    mx = mxnet()
    net(mx.nd.zeros(shape))  # completes the shapes
    symbol = traced(net).predict
    wanted = {*symbol.list_arguments(), *symbol.list_auxiliary_states()} - {"data"}
    parameters = net.collect_params()
    unknown = sorted(wanted - set(parameters))
    if unknown:
        raise GluontuneError(f"the net has inputs beside the images: {', '.join(unknown[:5])}")
    params = {name: p.data(p.list_ctx()[0]).astype("float32") for name, p in parameters.items() if name in wanted}
    return symbol, params


def _refuse_unsupported(symbol: Any) -> None:
    graph = importlib.import_module("mxnet.onnx.mx2onnx._export_onnx").MXNetGraph
    importlib.import_module("mxnet.onnx")  # fills the registry
    known = {name for version in range(12, OPSET + 1) for name in graph.registry_.get(version, ())}
    missing: dict[str, list[str]] = {}
    for node in json.loads(symbol.tojson())["nodes"]:
        if node["op"] != "null" and node["op"] not in known:
            missing.setdefault(node["op"], []).append(node["name"])
    if missing:
        raise UnsupportedOperator(missing)


def _convert(symbol: Any, params: Mapping[str, Any], shape: tuple[int, ...], dynamic: bool) -> Any:
    onnx = _onnx()
    converter = importlib.import_module("mxnet.onnx.mx2onnx._export_onnx").MXNetGraph()
    loose = [(None, *shape[1:])] if dynamic else None
    with _held_to_opset(onnx), quiet(), np.errstate(all="ignore"):
        try:
            graph = converter.create_onnx_graph_proto(
                symbol, dict(params), [shape], [onnx.TensorProto.FLOAT], opset_version=OPSET, dynamic=dynamic,
                dynamic_input_shapes=loose,
            )  # fmt: skip
        except AttributeError as error:
            raise GluontuneError(f"MXNet's converter gave up: {_short(error)}") from error
    opsets = [onnx.helper.make_opsetid("", OPSET)]
    return onnx.helper.make_model(graph, producer_name="gluontune", opset_imports=opsets, ir_version=IR_VERSION)


@contextlib.contextmanager
def _held_to_opset(onnx: Any) -> Iterator[None]:
    """MXNet uses onnx's newest opset and rules, which its converter does not support."""
    newest, check = onnx.defs.onnx_opset_version, onnx.checker.check_graph
    onnx.defs.onnx_opset_version = lambda: OPSET
    onnx.checker.check_graph = lambda graph: None  # the whole model is checked at the end
    try:
        yield
    finally:
        onnx.defs.onnx_opset_version, onnx.checker.check_graph = newest, check


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        yield
    finally:
        logging.disable(before)


def _describe(
    model: Any, mean: Sequence[float] | None, std: Sequence[float] | None, preprocess: bool,
    classes: Sequence[str], metadata: Mapping[str, str],
) -> None:  # fmt: skip
    taken = "uint8 pixels (N, H, W, C)" if preprocess else "normalized float32 (N, C, H, W): (pixel / 255 - mean) / std"
    texts = {"input": taken, **metadata}
    if mean is not None and std is not None:
        texts.update(mean=json.dumps(list(mean)), std=json.dumps(list(std)))
    if classes:
        texts["classes"] = json.dumps(list(classes))
    for key, value in texts.items():
        entry = model.metadata_props.add()
        entry.key, entry.value = key, value


def _short(error: BaseException) -> str:
    lines = [line.strip() for line in str(error).split("Stack trace:")[0].splitlines() if line.strip()]
    return " ".join(lines)[:300] or type(error).__name__


def tidy(model: Any) -> dict[str, int]:
    """Clean a model in place.

    The converter lists weights as inputs, too, which keeps ONNX Runtime from folding BatchNorm into a convolution; it
    writes equal small constants many times, and leaves identities.

    Returns:
        the numbers of removed items: ``inputs`` (weights listed as inputs), ``duplicates`` (equal initializers),
        ``identities``, ``unused`` (initializers).
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
    dropped = [node for node in graph.node if node.op_type == "Identity" and node.output[0] not in outputs]
    for node in dropped:
        _rename(graph, {node.output[0]: node.input[0]})
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
    _rename(graph, {tensor.name: other for tensor, other in merged})
    for tensor, _ in merged:
        graph.initializer.remove(tensor)
    return len(merged)


def _rename(graph: Any, names: Mapping[str, str]) -> None:
    for node in graph.node:
        for place, name in enumerate(node.input):
            node.input[place] = names.get(name, name)


def name_batch(model: Any, batch_size: int | None) -> None:
    """Set the first dimension of inputs and outputs to its name, or to a fixed number."""
    for value in (*model.graph.input, *model.graph.output):
        dims = value.type.tensor_type.shape.dim
        if dims and batch_size is None:
            dims[0].dim_param = _BATCH  # instead of its number
        elif dims:
            dims[0].dim_value = batch_size


def add_preprocessing(
    model: Any, image_shape: Sequence[int], mean: Sequence[float], std: Sequence[float], batch_size: int | None
) -> None:
    """Put ``(pixel / 255 - mean) / std`` and the change from (N, H, W, C) to (N, C, H, W) before the net.

    The input is then ``pixels``, uint8.
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
    shape = [_BATCH if batch_size is None else batch_size, *image_shape]
    graph.input.remove(graph.input[0])
    graph.input.insert(0, helper.make_tensor_value_info("pixels", onnx.TensorProto.UINT8, shape))
