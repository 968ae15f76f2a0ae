"""An exported net in int8 for ONNX Runtime: static quantization with thresholds from real images."""

from __future__ import annotations

import contextlib
import importlib
import logging
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from gluontune.errors import GluontuneError, UsageError

__all__ = ["quantize_onnx"]


def quantize_onnx(
    source: str | Path, target: str | Path, images: np.ndarray, *, batch_size: int = 32
) -> dict[str, int]:
    """Write the int8 twin of an exported model.

    BatchNorms are first folded into the convolutions. Weights become int8 with a scale for each output channel,
    activations uint8 with one scale each, chosen from the smallest and largest values over ``images``. It pays on
    CPUs with VNNI instructions (avx512_vnni, avx_vnni, amx_int8); others must halve the weights' range.

    Args:
        source: the ONNX file. target: the file to write.
        images: for the thresholds, as the model takes them: float32 (N, C, H, W), a few hundred training images.
        batch_size: images at a time; 1 where the model's batch is fixed.

    Returns:
        ``{"quantized", "nodes"}``: convolutions and products in int8, and all nodes.

    Raises:
        UsageError: no images. GluontuneError: onnxruntime is missing, or cannot quantize the model.

    Source: Jacob et al., *Quantization and Training of Neural Networks for Efficient Integer-Arithmetic-Only
    Inference*, CVPR 2018; done by onnxruntime.quantization.
    """
    if len(images) == 0:
        raise UsageError("quantize_onnx: thresholds need images: give some from the training set")
    try:
        runtime = importlib.import_module("onnxruntime")
        tools = importlib.import_module("onnxruntime.quantization")
        onnx = importlib.import_module("onnx")
    except ImportError as error:
        raise GluontuneError(
            f"int8 needs ONNX Runtime ({error}): pip install onnx 'onnxruntime<1.20'"
        ) from error
    with tempfile.TemporaryDirectory() as folder, _quiet():
        folded, made = Path(folder) / "folded.onnx", Path(folder) / "int8.onnx"
        options = runtime.SessionOptions()
        options.log_severity_level = 3
        options.graph_optimization_level = runtime.GraphOptimizationLevel.ORT_ENABLE_BASIC
        options.optimized_model_filepath = str(folded)
        try:
            session = runtime.InferenceSession(str(source), options, providers=["CPUExecutionProvider"])
            tools.quantize_static(
                str(folded),
                str(made),
                _reader(tools, session.get_inputs()[0].name, images, batch_size),
                quant_format=tools.QuantFormat.QDQ,
                per_channel=True,
                activation_type=tools.QuantType.QUInt8,
                weight_type=tools.QuantType.QInt8,
            )
        except Exception as error:  # onnxruntime's errors have no common base
            text = str(error).splitlines()[0][:300] if str(error) else type(error).__name__
            raise GluontuneError(f"{source}: ONNX Runtime cannot make it int8: {text}") from error
        graph = onnx.load(str(made)).graph
        os.replace(_beside(made, Path(target)), target)
    scaled = {name for node in graph.node if node.op_type == "DequantizeLinear" for name in node.output}
    heavy = [n for n in graph.node if n.op_type in ("Conv", "Gemm", "MatMul") and set(n.input[:2]) <= scaled]
    return {"quantized": len(heavy), "nodes": len(graph.node)}


def _beside(made: Path, target: Path) -> Path:
    """A copy in the target's folder, so that renaming is one step."""
    copy = target.with_name(f".{target.name}.tmp")
    copy.write_bytes(made.read_bytes())
    return copy


def _reader(tools: Any, name: str, images: np.ndarray, batch_size: int) -> Any:
    batches = iter([images[i : i + batch_size] for i in range(0, len(images), batch_size)])

    class Reader(tools.CalibrationDataReader):  # type: ignore[misc]
        def get_next(self) -> Any:
            batch = next(batches, None)
            return None if batch is None else {name: np.ascontiguousarray(batch, "float32")}

    return Reader()


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Without the quantizer's advice on pre-processing, which has been done."""
    root = logging.getLogger()
    level = root.level
    root.setLevel(logging.ERROR)
    try:
        yield
    finally:
        root.setLevel(level)
