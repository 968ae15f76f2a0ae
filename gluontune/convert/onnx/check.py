"""The comparison of an exported model with its net in ONNX Runtime, on real inputs; and the model's cleaning.

MXNet's converter writes constants as inputs, and nodes that ONNX Runtime cannot fuse.
"""

from __future__ import annotations

import hashlib
import importlib
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from gluontune.core.arrays import distance, flat, size
from gluontune.core.errors import GluontuneError, first_line
from gluontune.runtime import mxnet

TOLERANCE = 1e-5  # of the largest output of the net


@dataclass
class Agreement:
    """Two models on the same images.

    Args:
        images: their number. max_abs_error: largest difference of two outputs. largest_output: of the net, by amount.
        relative_error: ``max_abs_error`` ÷ ``largest_output``.
        agree_pct: percent of the images with the same class in both (None for other outputs).
        accuracy, exported_accuracy: top-1 of the net and of the exported model, if labels are known.
        equal: whether ``relative_error`` is within the tolerance.
    """

    images: int
    max_abs_error: float
    largest_output: float
    relative_error: float
    agree_pct: float | None
    accuracy: float | None
    exported_accuracy: float | None
    equal: bool

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def open_session(path: str | Path) -> Any:
    """An ONNX Runtime session on the CPU, with all of its graph optimizations."""
    try:
        runtime = importlib.import_module("onnxruntime")
    except ImportError as error:
        raise GluontuneError(
            f"the check needs ONNX Runtime ({error}): pip install 'onnxruntime<1.20' 'numpy<2'"
        ) from error
    options = runtime.SessionOptions()
    options.log_severity_level = 3
    try:
        return runtime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    except Exception as error:  # onnxruntime's errors have no common base
        raise GluontuneError(f"{path}: ONNX Runtime refuses it: {first_line(error)}") from error


def check_outputs(net: Any, path: str | Path, images: np.ndarray, pixels: np.ndarray | None = None) -> Agreement:
    """Compare all outputs on one batch, and on the first image alone if the file takes any batch.

    Args:
        net: the exported net. images: normalized float32, (N, C, H, W).
        pixels: the file's input if its preprocessing is inside: uint8, (N, H, W, C).
        path: the ONNX file.

    Raises:
        GluontuneError: ONNX Runtime refuses the file or the batch, or the outputs differ in number or shape.

    >>> import tempfile
    >>> from gluontune.runtime import mxnet
    >>> import numpy as np
    >>> from gluontune.export import to_onnx
    >>> nn = mxnet().gluon.nn
    >>> net = nn.HybridSequential()
    >>> net.add(nn.Conv2D(4, 3), nn.Activation("relu"), nn.GlobalAvgPool2D(), nn.Dense(2))
    >>> net.initialize()
    >>> path = Path(tempfile.mkdtemp()) / "net.onnx"
    >>> made = to_onnx(net, path, image_shape=(8, 8, 3))
    >>> images = np.random.default_rng(0).normal(size=(5, 3, 8, 8)).astype("float32")
    >>> check_outputs(net, path, images).equal
    True
    """
    session, given = open_session(path), images if pixels is None else pixels
    fixed = session.get_inputs()[0].shape[0]
    fed = given if isinstance(fixed, str) else given[:fixed]
    worst, largest, agreed = 0.0, 0.0, None
    for part in (fed, fed[:1]) if isinstance(fixed, str) and len(fed) > 1 else (fed,):
        mine, theirs = _net_outputs(net, images[: len(part)]), _run(session, path, part)
        if [a.shape for a in mine] != [b.shape for b in theirs]:
            raise GluontuneError(
                f"{path}: the net gives {[a.shape for a in mine]}, the exported model {[b.shape for b in theirs]}"
            )
        for a, b in zip(mine, theirs):
            largest, worst = max(largest, size(a)), max(worst, distance(a, b))
        if mine[0].ndim == 2:
            agreed = 100 * float((mine[0].argmax(1) == theirs[0].argmax(1)).mean()) if agreed is None else agreed
    return _judge(len(fed), worst, largest, agreed, None, None)


def agreement(net: Any, path: str | Path, batches: Iterable[tuple[Any, Any]], stage: Any = None) -> Agreement:
    """Compare class scores over a whole data set.

    Args:
        batches: ``(images, labels)``: images uint8 (N, H, W, C) with a ``stage``, else float32 (N, C, H, W).
        stage: converts the images to the input of ``net``; the file gets pixels or normalized images, by its input.
        net: the exported Gluon net. path: the ONNX file.

    Raises:
        GluontuneError: no image, or ONNX Runtime refuses the file.

    >>> import tempfile
    >>> from gluontune.runtime import mxnet
    >>> import numpy as np
    >>> from gluontune.export import to_onnx
    >>> nn = mxnet().gluon.nn
    >>> net = nn.HybridSequential()
    >>> net.add(nn.Conv2D(4, 3), nn.Activation("relu"), nn.GlobalAvgPool2D(), nn.Dense(2))
    >>> net.initialize()
    >>> path = Path(tempfile.mkdtemp()) / "net.onnx"
    >>> made = to_onnx(net, path, image_shape=(8, 8, 3))
    >>> images = np.random.default_rng(0).normal(size=(5, 3, 8, 8)).astype("float32")
    >>> found = agreement(net, path, [(images, np.zeros(5))])
    >>> found.equal, found.images
    (True, 5)
    """
    session = open_session(path)
    takes_pixels = session.get_inputs()[0].type == "tensor(uint8)"
    fixed = session.get_inputs()[0].shape[0]
    count = same = mine_right = theirs_right = 0
    worst, largest = 0.0, 0.0
    nd = mxnet().nd
    for images, labels in batches:
        raw, labels = np.asarray(images), np.asarray(labels)
        staged = stage(nd.array(raw, dtype="uint8")).asnumpy() if stage is not None else raw
        mine = _net_outputs(net, staged)[0]
        fed = raw if takes_pixels else staged
        each = len(fed) if isinstance(fixed, str) else fixed
        whole = len(fed) - len(fed) % each
        parts = [_run(session, path, fed[i : i + each])[0] for i in range(0, whole, each)]
        theirs = np.concatenate(parts) if parts else mine[:0]
        mine, labels = mine[: len(theirs)], labels[: len(theirs)]
        a, b = mine.argmax(1), theirs.argmax(1)
        count, same = count + len(a), same + int((a == b).sum())
        mine_right += int((a == labels).sum())
        theirs_right += int((b == labels).sum())
        largest, worst = max(largest, size(mine)), max(worst, distance(mine, theirs))
    if not count:
        raise GluontuneError(f"{path}: no image to compare on")
    return _judge(count, worst, largest, 100 * same / count, mine_right / count, theirs_right / count)


def _judge(
    images: int, worst: float, largest: float, agreed: float | None, mine: float | None, theirs: float | None
) -> Agreement:
    relative = worst / max(largest, 1e-30)
    return Agreement(images, worst, largest, relative, agreed, mine, theirs, bool(relative <= TOLERANCE))


def _net_outputs(net: Any, images: np.ndarray) -> list[np.ndarray]:
    return [output.astype("float32").asnumpy() for output in flat(net(mxnet().nd.array(images)))]


def _run(session: Any, path: str | Path, images: np.ndarray) -> list[np.ndarray]:
    try:
        found = session.run(None, {session.get_inputs()[0].name: np.ascontiguousarray(images)})
    except Exception as error:
        raise GluontuneError(f"{path}: ONNX Runtime fails on it: {first_line(error)}") from error
    return [np.asarray(value, "float32") for value in found]


BATCH = "batch"


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
    """Set the first dimension of inputs and outputs to its name, or to a fixed number."""
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
    shape = [BATCH if batch_size is None else batch_size, *image_shape]
    graph.input.remove(graph.input[0])
    graph.input.insert(0, helper.make_tensor_value_info("pixels", onnx.TensorProto.UINT8, shape))
