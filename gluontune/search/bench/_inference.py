"""Inference in one mode: the work of a process of ``gluontune bench inference``."""

from __future__ import annotations

import tempfile
import time
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

AGREE_PCT = 99.0  # least share of images in the same class as the reference's, for a valid rung

_CALIBRATION = 256  # training images for int8
_JUDGED = 4096  # images on which int8 must agree


class Predictor:
    def __init__(self, mode: str, recipe: dict[str, Any], source: str | None, batch_size: int, val_images: int):
        from gluontune import compute
        from gluontune.job.trained import trained
        from gluontune.recipe import Recipe
        from gluontune.runtime import mxnet

        mx = self.mx = mxnet()
        dtype, build = MODES[mode]
        compute.start_process(dtype, "cpu")
        self.batch_size = batch_size
        self.found = trained(Recipe.from_dict(recipe), source)
        self.images, self.labels = _decoded(self.found, "test", val_images)
        self.batch = np.resize(self.images, (batch_size, *self.images.shape[1:]))
        # Random weights give almost equal scores: agreement is not required.
        self.wanted_pct = None if source is None else AGREE_PCT
        self.int8: dict[str, Any] = {}  # the report of ONNX Runtime's quantization
        self.net = build(self)  # takes NDArrays; an ONNX Runtime session takes numpy arrays
        self.takes_numpy = mode in OWN_THREADS
        self._given = self.batch if self.takes_numpy else mx.nd.array(self.batch)
        self.step()
        self.sync()
        self.info: dict[str, Any] = {"versions": {"mxnet": mx.__version__}, **self.int8}

    def step(self) -> int:
        """Predict one batch, asynchronously if the mode is; returns its images."""
        self.net(self._given)
        return self.batch_size

    def sync(self) -> None:
        self.mx.nd.waitall()

    def latency(self, count: int) -> list[float]:
        """Milliseconds of ``count`` predictions of one image, from the pixels in numpy to the scores in numpy."""
        times = []
        for number in range(count + 10):  # the first ten warm up
            image = self.images[number % len(self.images)][None]
            start = time.perf_counter()
            self.scores(image)
            times.append(1e3 * (time.perf_counter() - start))
        return times[10:]

    def scores(self, images: np.ndarray) -> np.ndarray:
        """Class scores, float32 (N, classes)."""
        if self.takes_numpy:
            return self.net(images)
        return self.net(self.mx.nd.array(images)).astype("float32").asnumpy()

    def predict_all(self) -> dict[str, Any]:
        """All validation images in batches: ``{"scores", "accuracy"}``."""
        size = self.batch_size
        whole = np.concatenate([self.images, self.images[:1].repeat(-len(self.images) % size, axis=0)])
        found = [self.scores(whole[i : i + size]) for i in range(0, len(whole), size)]
        scores = np.concatenate(found)[: len(self.images)]
        accuracy = float((scores.argmax(1) == self.labels).mean())
        return {"scores": scores.round(7).tolist(), "accuracy": accuracy}


def _decoded(found: Any, part: str, count: int, skip: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """``count`` images of a seeded shuffle from ``skip`` on, normalized float32 (N, C, H, W), and their labels."""
    from gluontune import loading

    split = getattr(found.data, part)
    order = np.sort(np.random.default_rng(0).permutation(len(split))[skip : skip + count])
    build = {"batch_size": 64, "image_shape": found.image_shape, "last_batch": "keep"}
    with loading.build("threaded", split.subset(order), **build) as loader:
        pairs = [(np.array(images), np.array(labels)) for images, labels in loader.epoch(0)]
    pixels = np.concatenate([images for images, _ in pairs]).astype("float32") / 255
    scaled = (pixels - np.asarray(found.data.mean, "float32")) / np.asarray(found.data.std, "float32")
    return np.ascontiguousarray(scaled.transpose(0, 3, 1, 2)), np.concatenate([labels for _, labels in pairs])


_STATIC: dict[str, Any] = {"static_alloc": True, "static_shape": True}


def _hybridized(self: Predictor, **how: Any) -> Any:
    self.found.net.hybridize(**how)
    return self.found.net


def _fused(self: Predictor) -> Any:
    """oneDNN's subgraphs: convolution, BatchNorm, sum and activation as one operator."""
    net = self.found.net
    net.hybridize()
    net.optimize_for(self.mx.nd.array(self.batch[:1]), backend="MKLDNN", **_STATIC)
    return net


def _int8(self: Predictor) -> Any:
    """MXNet's quantization of the fused graph, thresholds from training images."""
    import importlib

    tools = importlib.import_module("mxnet.contrib.quantization")
    images, labels = _decoded(self.found, "train", _CALIBRATION)
    data = self.mx.io.NDArrayIter(images, labels.astype("float32"), batch_size=32)
    self.found.net.hybridize()
    net = tools.quantize_net_v2(
        self.found.net, quantized_dtype="auto", quantize_mode="smart", calib_data=data, calib_mode="naive",
        num_calib_examples=_CALIBRATION, ctx=self.mx.cpu(),
    )  # fmt: skip
    net.hybridize(**_STATIC)
    return net


def _onnxruntime(self: Predictor, int8: bool = False) -> Any:
    """The exported net; ``int8``: ONNX Runtime's quantization of as many layers as keep the images' classes.

    The classes are compared on validation images that are not measured, if enough are left; else on training images.
    """
    from gluontune import export
    from gluontune.convert.onnx.check import open_session

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "net.onnx"
        made = export.to_onnx(self.found.net, path, image_shape=self.found.image_shape)
        if int8:
            images, _ = _decoded(self.found, "train", _CALIBRATION)
            unseen = len(self.found.data.test) - len(self.images) >= _CALIBRATION
            judged, _ = _decoded(self.found, *(("test", _JUDGED, len(self.images)) if unseen else ("train", _JUDGED)))
            whole, path, size = path, Path(folder) / "int8.onnx", 32 if made.dynamic_batch else 1
            self.int8 = export.quantize_onnx(
                whole, path, images, batch_size=size, agree_pct=self.wanted_pct, judged=judged
            )
        session = open_session(path)
    name = session.get_inputs()[0].name
    return lambda images: session.run(None, {name: images})[0]


# mode: (data type of the process, function that makes a call from images as NDArray to scores)
MODES: dict[str, tuple[str, Any]] = {
    "imperative": ("float32", lambda self: self.found.net),
    "hybridized": ("float32", _hybridized),
    "static": ("float32", partial(_hybridized, **_STATIC)),
    "fused": ("float32", _fused),
    "bfloat16": ("bfloat16", partial(_hybridized, **_STATIC)),
    "int8": ("float32", _int8),
    "onnxruntime": ("float32", _onnxruntime),
    "onnxruntime-int8": ("float32", partial(_onnxruntime, int8=True)),
}

#: Modes without OpenMP's threads: theirs spin between operators, and a single thread gains nothing.
OWN_THREADS = ("onnxruntime", "onnxruntime-int8")
