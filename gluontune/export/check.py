"""Does the exported model compute what the net computes? Asked of ONNX Runtime, with real inputs."""

from __future__ import annotations

import importlib
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from gluontune.errors import GluontuneError
from gluontune.gaps import distance, size
from gluontune.runtime import mxnet

__all__ = ["TOLERANCE", "Agreement", "agreement", "check_outputs", "open_session"]

TOLERANCE = 1e-5  # of the largest output of the net


@dataclass
class Agreement:
    """Two models on the same images.

    Args:
        images: how many. max_abs_error: largest difference of two outputs. largest_output: of the net, by amount.
        relative_error: ``max_abs_error`` ÷ ``largest_output``.
        agree_pct: percent of the images that both put into the same class (None for other outputs).
        accuracy, exported_accuracy: top-1 of the net and of the exported model, where labels are known.
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
    """An ONNX Runtime session on the CPU, with all of its graph optimizations.

    Raises:
        GluontuneError: onnxruntime is missing, or refuses the file.
    """
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
        raise GluontuneError(f"{path}: ONNX Runtime refuses it: {str(error).splitlines()[0][:300]}") from error


def check_outputs(net: Any, path: str | Path, images: np.ndarray, pixels: np.ndarray | None = None) -> Agreement:
    """Compare all outputs on one batch, and the first image alone where the file takes any batch.

    Args:
        net: the net that was exported. images: normalized float32, (N, C, H, W).
        pixels: what the file takes where its preprocessing is inside: uint8, (N, H, W, C).
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
        stage: turns the images into what ``net`` takes; the file is given pixels or normalized images,
            whichever it takes.
        net: the Gluon net that was exported. path: the ONNX file.

    Raises:
        GluontuneError: there is no image to compare on, or ONNX Runtime refuses the file.

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
    outputs = net(mxnet().nd.array(images))
    flat: list[Any] = []
    waiting = [outputs]
    while waiting:
        value = waiting.pop(0)
        if isinstance(value, (list, tuple)):
            waiting = [*value, *waiting]
        else:
            flat.append(value.astype("float32").asnumpy())
    return flat


def _run(session: Any, path: str | Path, images: np.ndarray) -> list[np.ndarray]:
    try:
        found = session.run(None, {session.get_inputs()[0].name: np.ascontiguousarray(images)})
    except Exception as error:
        raise GluontuneError(f"{path}: ONNX Runtime fails on it: {str(error).splitlines()[0][:300]}") from error
    return [np.asarray(value, "float32") for value in found]
