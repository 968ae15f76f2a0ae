"""An exported net in int8 for ONNX Runtime: static quantization with thresholds from real images."""

from __future__ import annotations

import importlib
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from scipy.stats import binomtest

from gluontune.convert.onnx.check import open_session
from gluontune.convert.onnx.convert import quiet
from gluontune.core.errors import GluontuneError, UsageError, first_line
from gluontune.core.files import atomic_write
from gluontune.runtime.system import System

_THRESHOLDS = 256  # images for thresholds
_TRIED = 64  # images for trials of stretches in float32
_STRETCHES = 8
_HEAVY = ("Conv", "Gemm", "MatMul")


def quantize_onnx(
    source: str | Path,
    target: str | Path,
    images: np.ndarray,
    *,
    batch_size: int = 32,
    agree_pct: float | None = None,
    judged: np.ndarray | None = None,
) -> dict[str, Any]:
    """Write the int8 twin of an exported model.

    BatchNorms are first folded into the convolutions. Weights become int8 with a scale for each output channel,
    activations uint8 with one scale each, from the smallest and largest values over the first 256 of ``images``. The
    layer of the scores stays float32: it costs little and decides. It is faster on CPUs with VNNI instructions
    (avx512_vnni, avx_vnni, amx_int8); others must halve the weights' range.

    Args:
        source: the ONNX file. target: the file to write.
        images: the model's input: float32 (N, C, H, W), from the training set; a few hundred.
        batch_size: images at a time; 1 if the model's batch is fixed.
        agree_pct: the percentage of images with the same class as in ``source``, with 95 % confidence (Wilson's
            bound) from ``judged``: 99 means 99.6 of a thousand, 99.3 of four thousand. Up to three quarters of the
            net stay float32 to reach it, in stretches, first the one whose int8 changes the scores most. None: all
            become int8.
        judged: a thousand and more images of the same kind outside of the training set, whose images are easier; None:
            ``images``.

    Returns:
        ``{"quantized", "float_layers", "nodes", "agree_pct"}``: convolutions and products in int8 and in float32, all
        nodes, and the percentage of ``judged`` in the same class (None without ``agree_pct``).

    Raises:
        UsageError: no images, or no percentage. GluontuneError: onnxruntime is missing, or cannot quantize the model,
            or the classes do not agree with three quarters of the net in float32 (nothing is written).

    Source: Jacob et al., *Quantization and Training of Neural Networks for Efficient Integer-Arithmetic-Only
    Inference*, CVPR 2018; done by onnxruntime.quantization. Mixed precision by measured loss: Wu et al., *Integer
    Quantization for Deep Learning Inference: Principles and Empirical Evaluation*, 2020.

    >>> import tempfile
    >>> from gluontune.runtime import mxnet
    >>> from gluontune.export import to_onnx
    >>> net = mxnet().gluon.nn.Dense(2)
    >>> net.initialize()
    >>> path = Path(tempfile.mkdtemp()) / "net.onnx"
    >>> made = to_onnx(net, path, image_shape=(8, 8, 3))
    >>> images = np.random.default_rng(0).normal(size=(5, 3, 8, 8)).astype("float32")
    >>> quantize_onnx(path, path.with_name("int8.onnx"), images)["quantized"]
    1
    """
    if len(images) == 0:
        raise UsageError("quantize_onnx: thresholds need images: give some from the training set")
    if agree_pct is not None and not 0 < agree_pct <= 100:
        raise UsageError(f"quantize_onnx(agree_pct={agree_pct!r}): give a percentage above 0, up to 100")
    try:
        runtime = importlib.import_module("onnxruntime")
        onnx = importlib.import_module("onnx")
        importlib.import_module("onnxruntime.quantization")
    except ImportError as error:
        raise GluontuneError(f"int8 needs ONNX Runtime ({error}): pip install onnx 'onnxruntime<1.20'") from error
    with tempfile.TemporaryDirectory() as folder, quiet():
        folded, made = Path(folder) / "folded.onnx", Path(folder) / "int8.onnx"
        options = runtime.SessionOptions()
        options.log_severity_level = 3
        options.graph_optimization_level = runtime.GraphOptimizationLevel.ORT_ENABLE_BASIC
        options.optimized_model_filepath = str(folded)
        try:
            runtime.InferenceSession(str(source), options, providers=["CPUExecutionProvider"])
            _name_nodes(folded)
            agreed = _made(folded, made, images, images if judged is None else judged, batch_size, agree_pct)
        except GluontuneError as error:
            raise GluontuneError(f"{source}: {error}") from error
        except Exception as error:  # onnxruntime's errors have no common base
            raise GluontuneError(f"{source}: ONNX Runtime cannot make it int8: {first_line(error)}") from error
        graph = onnx.load(str(made)).graph
        with atomic_write(target) as stream:
            stream.write(made.read_bytes())
    quantized, heavy = _heavy(graph)
    return {"quantized": quantized, "float_layers": heavy - quantized, "nodes": len(graph.node), "agree_pct": agreed}


def _heavy(graph: Any) -> tuple[int, int]:
    """The numbers of convolutions and products with int8 inputs, and of all."""
    scaled = {name for node in graph.node if node.op_type == "DequantizeLinear" for name in node.output}
    heavy = [node for node in graph.node if node.op_type in _HEAVY]
    return sum(set(node.input[:2]) <= scaled for node in heavy), len(heavy)


def _made(
    folded: Path, made: Path, images: np.ndarray, judged: np.ndarray, batch_size: int, wanted: float | None
) -> float | None:
    """Quantize ``folded`` into ``made`` with as much in int8 as agrees; returns the percentage."""
    truth, best = None, 0.0
    for kept in _ever_more(folded, made, images[:_TRIED], batch_size):
        _quantize(folded, made, images[:_THRESHOLDS], batch_size, kept)
        if wanted is None:
            return None
        if truth is None:
            truth = _scores(folded, judged, batch_size).argmax(1)
        agreed = 100 * float((_scores(made, judged, batch_size).argmax(1) == truth).mean())
        if _sure(agreed, len(judged)) >= wanted:
            return agreed
        best = max(best, agreed)
    raise GluontuneError(
        f"in int8 at most {best:.2f} % of {len(judged)} images stay in their class with three quarters of the net in "
        f"float32, {wanted:g} % were asked for with 95 % confidence: is the net trained? Else leave it in float32, ask "
        "for less, or judge on more images"
    )


def _ever_more(folded: Path, made: Path, images: np.ndarray, batch_size: int) -> Iterator[list[str]]:
    """Names of the nodes that stay float32: those of the scores, then more and more stretches of the net."""
    last = _last(folded)
    yield last
    stretches = _by_need(folded, made, images, batch_size, last)
    for count in range(1, 3 * len(stretches) // 4 + 1):
        yield [*last, *(name for stretch in stretches[:count] for name in stretch)]


def _sure(agreed: float, images: int) -> float:
    """The lower bound (95 %) of a percentage measured as ``agreed`` on a number of images.

    >>> round(_sure(99.6, 1000), 2), round(_sure(99.6, 100_000), 2)
    (99.11, 99.57)
    """
    same = round(agreed / 100 * images)
    return 100 * float(binomtest(same, images).proportion_ci(0.9, "wilson").low)


def _by_need(folded: Path, made: Path, images: np.ndarray, batch_size: int, last: list[str]) -> list[list[str]]:
    """The net in stretches of neighbouring nodes, first the one with the smallest error in float32."""
    stretches = _stretches(importlib.import_module("onnx").load(str(folded)).graph)
    truth, errors = _scores(folded, images, batch_size), []
    for stretch in stretches:
        _quantize(folded, made, images, batch_size, [*last, *stretch])
        errors.append(float(np.square(_scores(made, images, batch_size) - truth).sum()))
    return [stretches[place] for place in np.argsort(errors)]


def _name_nodes(path: Path) -> None:
    onnx = importlib.import_module("onnx")
    model = onnx.load(str(path))
    for place, node in enumerate(model.graph.node):
        node.name = node.name or f"{node.op_type}_{place}"
    onnx.save(model, str(path))


def _last(path: Path) -> list[str]:
    """The last convolution or product and all nodes after it; empty if it is the only one."""
    nodes = importlib.import_module("onnx").load(str(path)).graph.node
    heavy = [place for place, node in enumerate(nodes) if node.op_type in _HEAVY]
    return [node.name for node in nodes[heavy[-1] :]] if len(heavy) > 1 else []


def _stretches(graph: Any) -> list[list[str]]:
    """Names of the nodes, in at most eight runs with two or more convolutions or products each."""
    heavy = [place for place, node in enumerate(graph.node) if node.op_type in _HEAVY]
    parts = np.array_split(heavy, max(1, min(_STRETCHES, len(heavy) // 2)))
    starts = [0, *(int(part[0]) for part in parts[1:]), len(graph.node)]
    return [[node.name for node in graph.node[start:end]] for start, end in zip(starts, starts[1:])]


def _quantize(source: Path, target: Path, images: np.ndarray, batch_size: int, kept: list[str]) -> None:
    tools = importlib.import_module("onnxruntime.quantization")
    # Without VNNI, products of uint8 and int8 are added in 16 bits and saturate; with 7 bits of weight they do not.
    tools.quantize_static(
        str(source), str(target), _reader(tools, source, images, batch_size),
        quant_format=tools.QuantFormat.QDQ, per_channel=True, activation_type=tools.QuantType.QUInt8,
        weight_type=tools.QuantType.QInt8, reduce_range="avx512_vnni" not in System().flags(), nodes_to_exclude=kept,
    )  # fmt: skip


def _fed(session: Any, images: np.ndarray, batch_size: int) -> Iterator[dict[str, np.ndarray]]:
    name = session.get_inputs()[0].name
    for start in range(0, len(images), batch_size):
        yield {name: np.ascontiguousarray(images[start : start + batch_size], "float32")}


def _scores(path: Path, images: np.ndarray, batch_size: int) -> np.ndarray:
    session = open_session(path)
    return np.concatenate([session.run(None, fed)[0] for fed in _fed(session, images, batch_size)])


def _reader(tools: Any, source: Path, images: np.ndarray, batch_size: int) -> Any:
    batches = _fed(open_session(source), images, batch_size)

    class Reader(tools.CalibrationDataReader):  # type: ignore[misc]
        def get_next(self) -> Any:
            return next(batches, None)

    return Reader()
