"""The task of an assessed script: its data, its rank, and the function that saves its net."""

from __future__ import annotations

import functools
import json
import os
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from gluontune.core.errors import GluontuneError, UsageError
from gluontune.core.files import write_json

VARIABLE = "GLUONTUNE_TASK"  # in the environment of an assessed script: {"data", "out", "rank", "ranks"}


@dataclass(frozen=True)
class Task:
    """The task of one process of an assessed script.

    Args:
        data: this rank's folder, with ``train.rec``, ``val.rec`` and ``task.json``. out: folder for this rank's net.
        rank: 0 … ``ranks`` - 1. ranks: number of processes that run the script at the same time.
        classes: number of classes. image_shape: (H, W, C).
        mean, std: of each channel, in units of 0 … 1, for :meth:`normalize`.
    """

    data: Path
    out: Path
    rank: int
    ranks: int
    classes: int
    image_shape: tuple[int, int, int]
    mean: tuple[float, ...]
    std: tuple[float, ...]

    @classmethod
    def of(
        cls, facts: Mapping[str, Any], data: Path = Path(), out: Path = Path(), rank: int = 0, ranks: int = 1
    ) -> Task:
        """The task of ``task.json``'s ``facts``."""
        colours = tuple(facts["mean"]), tuple(facts["std"])
        return cls(data, out, rank, ranks, facts["classes"], tuple(facts["image_shape"]), *colours)

    @functools.cached_property
    def train(self) -> Any:
        """This rank's training images: a split, with ``len()``, ``.labels``, ``.decode(i)`` and ``.rec_path``."""
        return self._split("train")

    @functools.cached_property
    def val(self) -> Any:
        """Validation images, the same on each rank; two in three have random classes."""
        return self._split("val")

    def _split(self, name: str) -> Any:
        from gluontune.datasets.split import RecordSplit
        from gluontune.records import RecordReader

        path = self.data / f"{name}.rec"
        with RecordReader(path) as reader:
            labels = reader.labels()
        return RecordSplit(f"assessment-{name}", name, path, labels, [f"class-{k}" for k in range(self.classes)])

    def normalize(self, images: np.ndarray) -> np.ndarray:
        """uint8 (N, H, W, C) to float32 (N, C, H, W), the grader's input to the net.

        >>> task = Task(Path(), Path(), 0, 1, 10, (2, 2, 3), (0.5, 0.5, 0.5), (0.25, 0.25, 0.25))
        >>> task.normalize(np.full((1, 2, 2, 3), 255, "uint8")).max()
        2.0
        """
        scaled = (images.astype("float32") / 255 - np.array(self.mean, "float32")) / np.array(self.std, "float32")
        return np.ascontiguousarray(scaled.transpose(0, 3, 1, 2))

    def save(self, net: Any, samples: int) -> None:
        """Save the trained net for the grader; each rank calls it once, at its end.

        Args:
            net: a HybridBlock from normalized float32 (N, C, H, W) to (N, classes).
            samples: images that this rank has trained on, those of each epoch counted.

        Raises:
            UsageError: a plain Block, which cannot be exported, or an invalid number of samples.
        """
        from gluontune.runtime import mxnet

        mx = mxnet()
        if not isinstance(net, mx.gluon.HybridBlock):
            raise UsageError(
                f"save(net): {type(net).__name__} is a plain Block; build it from HybridBlocks, "
                "such as nn.HybridSequential"
            )
        if isinstance(samples, bool) or not isinstance(samples, (int, np.integer)) or samples < 0:
            raise UsageError(f"save(samples={samples!r}): give the number of images trained on")
        ctx = next(iter(net.collect_params().values())).list_ctx()[0]
        height, width, channels = self.image_shape
        net.hybridize()
        net(mx.nd.zeros((2, channels, height, width), ctx=ctx)).wait_to_read()
        self.out.mkdir(parents=True, exist_ok=True)
        net.export(str(self.out / "net"), epoch=0)
        write_json(self.out / "report.json", {"samples": int(samples)})


def task() -> Task:
    """The task of this process: the grader's, or a small one for practice outside of the grader.

    Raises:
        GluontuneError: the task's folder is missing.
    """
    if VARIABLE in os.environ:
        given = json.loads(os.environ[VARIABLE])
    else:
        from gluontune.course.assessment.fresh import FreshTask, Scale

        folder = Path(tempfile.mkdtemp(prefix="gluontune-practice-"))
        FreshTask(Scale(train=2000, val=300)).write(folder, 1)
        print(f"not graded: a task to practise on is in {folder}; `gluontune assess SCRIPT.py` grades", flush=True)
        given = {"data": folder / "rank-0", "out": folder / "out", "rank": 0, "ranks": 1}
    place = Path(given["data"]) / "task.json"
    try:
        facts = json.loads(place.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise GluontuneError(f"{place}: no task there: {error}") from error
    return Task.of(facts, place.parent, Path(given["out"]), given["rank"], given["ranks"])
