"""The comparison of an exported model with its net in ONNX Runtime, on real inputs, and of the zoos' networks."""

from __future__ import annotations

import importlib
import time
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from gluontune.convert.graph.params import perturb
from gluontune.convert.onnx.convert import to_onnx
from gluontune.core.arrays import distance, flat, size
from gluontune.core.errors import GluontuneError, UsageError, first_line
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
    >>> net = mxnet().gluon.nn.Dense(2)
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
    >>> net = mxnet().gluon.nn.Dense(2)
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


# (H, W, C) of images by name; one or two of each family of MXNet's zoo and GluonCV's.
_LARGE = ("inceptionv3", "xception")
ZOO: dict[str, tuple[int, int, int]] = {
    name: (32, 32, 3) if name.startswith("cifar_") else (299, 299, 3) if name in _LARGE else (224, 224, 3)
    for name in (
        "alexnet", "vgg11_bn", "squeezenet1.0", "squeezenet1.1", "densenet121", "mobilenet0.25", "mobilenet1.0",
        "mobilenetv2_0.5", "mobilenetv3_small", "mobilenetv3_large", "inceptionv3", "googlenet", "xception",
        "resnet18_v1", "resnet50_v1", "resnet50_v1d", "resnet18_v2", "resnet50_v2", "resnext50_32x4d",
        "se_resnext50_32x4d", "resnest14", "hrnet_w18_small_v1_c", "cifar_resnet20_v1", "cifar_resnet56_v2",
        "cifar_wideresnet16_10", "cifar_resnext29_32x4d",
    )
}  # fmt: skip


def export_zoo(
    build: Callable[[str], Any],
    folder: str | Path,
    names: Iterable[str] | None = None,
    *,
    keep: bool = False,
    on_row: Callable[[dict[str, Any]], None] | None = None,
) -> list[dict[str, Any]]:
    """Export networks with random weights, run each in ONNX Runtime, and compare.

    Gammas, betas and running statistics are moved off their initial values first, so that a misplaced parameter
    changes the outputs.

    Args:
        build: returns a new net by name, such as ``lambda name: gt.train.build_net(name, 10)``.
        folder: for the files. names: of :data:`ZOO` (default: all), or of other nets for 224 × 224 images.
        keep: keep the files; otherwise each is removed after the comparison.
        on_row: called with each finished row.

    Returns:
        rows ``{"name", "status": "equal|differs|failed", "reason", "relative_error", "dynamic_batch", "nodes",
        "bytes", "seconds", "notes"}``.

    >>> import tempfile
    >>> from gluontune.train import build_net
    >>> rows = export_zoo(lambda name: build_net(name, 10), tempfile.mkdtemp(), ["cifar_resnet20_v1"])
    >>> rows[0]["name"], rows[0]["status"]
    ('cifar_resnet20_v1', 'equal')
    """
    rows = []
    for name in ZOO if names is None else names:
        started = time.perf_counter()
        row: dict[str, Any] = {"name": name, "status": "failed", "reason": None, "relative_error": None}
        row.update(dynamic_batch=None, nodes=None, bytes=None, notes=[])
        try:
            _one(build, name, Path(folder) / f"{name}.onnx", row)
        except UsageError:
            raise
        except GluontuneError as error:
            row["reason"] = str(error)
        except Exception as error:  # a converter's or a runtime's: reported in the row
            row["reason"] = f"{type(error).__name__}: {str(error).split('Stack trace:')[0].strip()[:300]}"
        row["seconds"] = time.perf_counter() - started
        if not keep:
            (Path(folder) / f"{name}.onnx").unlink(missing_ok=True)
        rows.append(row)
        if on_row is not None:
            on_row(row)
    return rows


def _one(build: Callable[[str], Any], name: str, path: Path, row: dict[str, Any]) -> None:
    mx = mxnet()
    shape = ZOO.get(name, (224, 224, 3))
    mx.random.seed(0)
    np.random.seed(0)
    net = build(name)
    net.initialize(mx.init.Xavier(magnitude=2))
    images = np.random.default_rng(0).normal(0, 1, (2, shape[2], shape[0], shape[1])).astype("float32")
    net(mx.nd.array(images))
    perturb(net)
    made = to_onnx(net, path, image_shape=shape)
    row.update(dynamic_batch=made.dynamic_batch, nodes=made.nodes, bytes=made.bytes, notes=made.notes)
    found = check_outputs(net, path, images)
    row.update(relative_error=found.relative_error, status="equal" if found.equal else "differs")
    if not found.equal:
        row["reason"] = f"outputs differ by {found.relative_error:.1e} of the largest"
