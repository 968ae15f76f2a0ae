"""``gluontune bench bridge``: the share of gluoncv's zoo that becomes a PyTorch module, and how far both agree.

Each network has random weights (no download). Compared are outputs in predict mode in float32 and float64, and
gradients in training mode in float64 with dropout off. "not traced": it cannot be built or traced without a download.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import json
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from gluontune.core.errors import GluontuneError, UnknownNameError, UsageError
from gluontune.core.files import set_aside, writable_folder, write_json
from gluontune.core.journal import earlier
from gluontune.runtime import launch_settings, machine_facts
from gluontune.search.bench.contender import OURS, Contender, Entrant

SCHEMA = 1
#: What counts as agreement, relative to the largest output, or gradient.
FLOAT32, FLOAT64, GRADIENTS = 1e-4, 1e-9, 1e-8

#: Families that are built for one size of image, their crop's.
SEGMENTING = ("fcn", "deeplab", "psp", "danet", "fastscnn")
# Families that pool to one pixel take any size.
_ANY_SIDE = ("resnet", "resnext", "se_resnet", "se_resnext", "resnest", "mobilenet", "darknet")
# Frames of SlowFast's slow and fast pathway together.
_FRAMES = {"4x16": 36, "8x8": 40, "16x8": 80}

_FIGURES = ("float32", "float64", "gradients", "statistics", "operators")  # of a network's row
_DATA = r"_(kinetics\d+|ucf101|hmdb51|sthsthv2|coco|voc|custom|citys|ade|mhpv1|otb15|kitti.*)$"


def family(name: str) -> str:
    """The family that a network of the zoo belongs to.

    >>> [family(name) for name in ("ssd_512_resnet50_v1_voc", "resnet50_v1b", "resnet50_v1b_kinetics400")]
    ['ssd', 'resnet_v1b', 'video resnet_v1b']
    >>> [family(name) for name in ("cifar_resnet110_v1", "mobilenetv2_0.25", "mobilenet0.5", "mobilenet1.0_int8")]
    ['cifar_resnet_v1', 'mobilenetv2', 'mobilenet', 'int8']
    """
    if name.endswith("int8"):
        return "int8"
    parts = ("ssd", "yolo3", "faster_rcnn", "mask_rcnn", "center_net", "fcn", "deeplab", "psp", "danet", "icnet",
             "simple_pose", "mobile_pose", "alpha_pose", "i3d", "slowfast", "r2plus1d", "p3d", "c3d", "monodepth2",
             "siamrpn", "doublehead_rcnn", "custom_faster_rcnn", "custom_mask_rcnn", "fastscnn", "hrnet",
             "nasnet")  # fmt: skip
    for part in parts:
        if name.startswith(part):
            return part
    video = "video " if re.search(r"_(kinetics\d+|ucf101|hmdb51|sthsthv2)$", name) else ""
    plain = re.sub(_DATA, "", name)
    plain = re.sub(r"_?\d+\.\d+$|_\d+x\d+d$", "", plain)
    return video + re.sub(r"_?\d{2,}(_\d+)?e?(?=_|$)", "", plain).removesuffix("_bn")


def shape_of(name: str) -> list[int]:
    """The input that a network of the zoo takes.

    >>> shape_of("cifar_resnet20_v1"), shape_of("ssd_300_vgg16_atrous_voc"), shape_of("i3d_resnet50_v1_ucf101")
    ([2, 3, 32, 32], [1, 3, 300, 300], [1, 3, 8, 224, 224])
    """
    kind = family(name)
    sides: dict[str, tuple[int, ...]] = {
        "ssd": (int(name.split("_")[1]),) * 2 if kind == "ssd" else (), "yolo3": (160, 160), "center_net": (128, 128),
        "simple_pose": (128, 96), "mobile_pose": (128, 96), "alpha_pose": (256, 192), "monodepth2": (192, 640),
        **dict.fromkeys(SEGMENTING, (240, 240)), "icnet": (480, 480), "fastscnn": (256, 256),
        "faster_rcnn": (256, 256), "mask_rcnn": (256, 256), "doublehead_rcnn": (256, 256),
        "i3d": (32 if "inceptionv3" in name else 8, 224, 224),
        "slowfast": (next((t for part, t in _FRAMES.items() if part in name), 36), 224, 224),
        "r2plus1d": (8, 112, 112), "p3d": (16, 112, 112), "c3d": (16, 112, 112), "nasnet": (224, 224),
        "inceptionv3": (299, 299), "xception": (299, 299),
    }  # fmt: skip
    if name.startswith("cifar_"):
        return [2, 3, 32, 32]
    usual = (112, 112) if kind.removeprefix("video ").startswith(_ANY_SIDE) else (224, 224)
    return [1, 3, *sides.get(kind.removeprefix("video "), usual)]


class JudgeProcess:
    """A :class:`Judge` in a process; a new one after it died or exceeded the time limit."""

    def __init__(self, time_limit: float):
        self.time_limit = time_limit
        self.contender: Contender | None = None

    def names(self) -> list[str]:
        contender = self._process()
        if contender.failure is not None:
            raise contender.failure
        return list(contender.info["names"])

    def _process(self) -> Contender:
        if self.contender is None:
            entrant = Entrant("bridge", OURS, "gluontune.search.bench.bridge:Judge", env=launch_settings().env)
            self.contender = Contender(entrant, self.time_limit)
            self.contender.launch()
        return self.contender

    def row(self, name: str, gradients: bool) -> dict[str, Any]:
        contender, shape = self._process(), shape_of(name)
        found = contender.ask("judge", net_name=name, shape=shape, gradients=gradients)
        if contender.failure is not None:
            found = {"status": "failed", "reason": str(contender.failure)[:300], **dict.fromkeys(_FIGURES)}
            self.close()
        return {"name": name, "family": family(name), "shape": shape, **found}

    def close(self) -> None:
        if self.contender is not None:
            self.contender.close()
            self.contender = None


class Judge:
    """Builds networks with random weights, converts and compares them; work of the process of :class:`JudgeProcess`."""

    def __init__(self) -> None:
        from gluontune.runtime import mxnet
        from gluontune.runtime.pytorch import torch

        self.mx = mxnet()
        known = importlib.import_module("gluoncv.model_zoo.model_zoo")._models
        self.info = {"names": sorted(known), "torch": torch().__version__, "mxnet": self.mx.__version__}

    def judge(self, net_name: str, shape: list[int], gradients: bool) -> dict[str, Any]:
        """``{"status": "not traced" | "not converted" | "converted", "reason", "float32", …}``."""
        import numpy as np

        from gluontune import bridge
        from gluontune.compute.tracing import traced

        row: dict[str, Any] = {"status": "not traced", "reason": "", **dict.fromkeys(_FIGURES)}
        x = np.random.default_rng(0).standard_normal(shape).astype("float32")
        try:
            net = self._build(net_name, shape)
            net(self.mx.nd.array(x))
            symbol = traced(net).predict
            row["operators"] = len({node["op"] for node in json.loads(symbol.tojson())["nodes"]} - {"null"})
            row["status"] = "not converted"
            module = bridge.to_torch(net)
            row["float32"] = bridge.check(net, module, x).output
            row["status"] = "converted"
            row["float64"] = bridge.check(net, module, x, dtype="float64").output
            if gradients:  # of two images: over one a BatchNorm's output is exactly 0
                two = np.concatenate([x, x[::-1] + 0.1 * x * x])[:2]
                found = bridge.check(net, module, two, train=True, dtype="float64")
                row.update(gradients=found.gradient, statistics=max(found.statistics.values(), default=0.0))
        except Exception as error:
            row["reason"] = f"{type(error).__name__}: {' '.join(str(error).split())}"[:300]
            if row["status"] == "converted" and not isinstance(error.__cause__ or error, self.mx.MXNetError):
                row["status"] = "not converted"  # else it is MXNet that cannot: float64, or training
        gc.collect()
        return row

    def _build(self, wanted: str, shape: list[int]) -> Any:
        zoo = importlib.import_module("gluoncv.model_zoo")
        self.mx.random.seed(1)
        failure: Exception | None = None
        crop = {"crop_size": shape[-1]} if wanted.startswith(SEGMENTING) else {}
        for options in ({"pretrained_base": False, **crop}, crop, {"pretrained_base": False, "classes": ["a", "b"]}):
            try:
                net = zoo.get_model(wanted, **options)
                break
            except Exception as error:  # gluoncv raises even Warning for a keyword that it does not take
                failure = failure or error
        else:
            raise failure or ValueError(wanted)
        for name, parameter in net.collect_params().items():  # those of traced parts name no initializer
            if parameter.init is None and name.endswith(("gamma", "_var", "beta", "bias", "_mean")):
                parameter.init = "ones" if name.endswith(("gamma", "_var")) else "zeros"
        net.initialize(self.mx.init.Xavier(factor_type="in", magnitude=2), force_reinit=False)
        if wanted.startswith("center_net"):
            from gluontune.runtime import set_data

            # It ranks its scores: with gammas of 1 all scores of a deep one are 1, and equal ones have no order.
            net(self.mx.nd.zeros(shape))
            for name, parameter in net.collect_params().items():
                if name.endswith("gamma"):
                    set_data(parameter, 0.6 * parameter.data())
        return net


def run(
    nets: Sequence[str] | None = None, *, quick: bool = False, gradients: str = "family", out: Path | None = None,
    resume: bool = False, time_limit: float = 300.0, say: Callable[[str], None] | None = None,
    judging: Callable[[float], Any] = JudgeProcess,
) -> dict[str, Any]:  # fmt: skip
    """Convert and compare each network and return the document; it is saved to ``out`` after each.

    ``gradients="family"`` compares them for the first network of a family that converts; ``resume`` keeps the rows of
    networks that were converted or not traced; ``judging`` makes the judge of a time limit.
    """
    tell = say or (lambda line: None)
    if gradients not in ("family", "all", "none"):
        raise UsageError(f"bench bridge: gradients is family, all or none, not {gradients!r}")
    rows = _known(out) if resume else {}
    if out is not None:
        writable_folder(out.absolute().parent)
    with contextlib.closing(judging(time_limit)) as judge:
        names = _names(nets, judge.names(), quick)
        if not resume:
            set_aside(out)
        for place, name in enumerate(names):
            if name in rows:
                continue
            tell(f"{place + 1}/{len(names)} {name}")
            done = any(r["gradients"] is not None for r in rows.values() if r["family"] == family(name))
            rows[name] = judge.row(name, gradients == "all" or (gradients == "family" and not done))
            if out is not None:
                write_json(out, _document([rows[n] for n in names if n in rows], time_limit))
    return _document([rows[name] for name in names], time_limit)


def _names(nets: Sequence[str] | None, known: list[str], quick: bool) -> list[str]:
    for name in nets or ():
        if name not in known:
            raise UnknownNameError("network of gluoncv's zoo", name, known)
    names = list(dict.fromkeys(nets or known))
    return list({family(name): name for name in reversed(names)}.values())[::-1] if quick else names


def _known(out: Path | None) -> dict[str, dict[str, Any]]:
    def rows(before: Any) -> dict[str, dict[str, Any]]:
        if before["schema_version"] != SCHEMA:
            raise GluontuneError(f"{out}: another version's; start without --resume")
        return {row["name"]: row for row in before["rows"] if row["status"] in ("converted", "not traced")}

    return earlier(out, "bench bridge", rows) or {}


def _document(rows: Sequence[Mapping[str, Any]], time_limit: float) -> dict[str, Any]:
    def within(key: str, bar: float) -> int:
        return sum(r[key] is not None and r[key] <= bar for r in rows)

    figures = {
        "names": len(rows), "traced": sum(r["status"] != "not traced" for r in rows),
        "converted": sum(r["status"] == "converted" for r in rows), "agree_float32": within("float32", FLOAT32),
        "agree_float64": within("float64", FLOAT64), "gradients": sum(r["gradients"] is not None for r in rows),
        "agree_gradients": within("gradients", GRADIENTS),
    }  # fmt: skip
    return {
        "schema_version": SCHEMA, "rows": list(rows), "figures": figures, "machine": machine_facts(),
        "conditions": {"time_limit": time_limit, "bars": [FLOAT32, FLOAT64, GRADIENTS]},
    }  # fmt: skip


def holds(figures: Mapping[str, int]) -> bool:
    f = figures
    return f["traced"] == f["agree_float32"] == f["agree_float64"] and f["gradients"] == f["agree_gradients"]


def show(found: Mapping[str, Any], console: Any) -> None:
    from rich.table import Table

    table = Table("family", "names", "traced", "converted", "float32", "float64", "gradients")
    for kind in dict.fromkeys(row["family"] for row in found["rows"]):
        rows = [row for row in found["rows"] if row["family"] == kind]
        keys = ("float32", "float64", "gradients")
        worst = [max((row[key] for row in rows if row[key] is not None), default=None) for key in keys]
        traced = sum(r["status"] != "not traced" for r in rows)
        done = sum(r["status"] == "converted" for r in rows)
        cells = ["" if w is None else f"{w:.0e}" for w in worst]
        table.add_row(kind, str(len(rows)), str(traced), str(done), *cells)
    console.print(table)
    for row in found["rows"]:
        if row["status"] in ("not converted", "failed"):
            console.print(f"{row['name']}: {row['status']}: {row['reason']}", markup=False, soft_wrap=True)
    f = found["figures"]
    line = (
        f"{f['converted']} of {f['traced']} networks that trace without a download converted ({f['names']} names); "
        f"outputs within {FLOAT32:g} in float32: {f['agree_float32']}, within {FLOAT64:g} in float64: "
        f"{f['agree_float64']}; gradients within {GRADIENTS:g}: {f['agree_gradients']} of {f['gradients']}"
    )
    console.print(line, markup=False, highlight=False, soft_wrap=True)
