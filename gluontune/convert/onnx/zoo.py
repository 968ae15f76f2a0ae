"""Networks of the zoos, exported and checked one by one."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np

from gluontune.convert.onnx.check import check_outputs
from gluontune.convert.onnx.convert import to_onnx
from gluontune.convert.parameters import perturb
from gluontune.core.errors import GluontuneError, UsageError
from gluontune.runtime import mxnet

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
