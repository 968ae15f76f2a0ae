"""Parts of ``gluontune bench gpu``: a training session, step by step; what PyTorch sees; what others print."""

from __future__ import annotations

import contextlib
import re
import shutil
import statistics
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from typing import Any

from gluontune.engines import ENGINES
from gluontune.recipe import Recipe
from gluontune.recipe.registry import resolve


class EngineWork:
    """A session of the recipe's engine, with ``torch.compile`` left out if it is pretended.

    ``part``: ``step``: on one batch again and again; ``loader``: batches on the device, no step; ``both``: as in
    training.
    """

    def __init__(self, recipe: Mapping[str, Any], part: str = "step", pretend: bool = False):
        made = Recipe.from_dict(recipe)
        self.part = part
        if pretend and made.backend == "torch":
            from gluontune.runtime import pytorch

            library: Any = pytorch.torch()
            library.compile = lambda net, **how: net
        self.session = resolve(ENGINES[made.backend].session)(made)
        self.session.build()
        self.session.phases.enable(False)
        self.batch = self.session.progress.next_batch()
        self.step()
        self.sync()
        self.info: dict[str, Any] = {"versions": self.session.versions(), "notes": list(self.session.news)}

    def step(self) -> int:
        """One step, queued; returns its images."""
        session = self.session
        session._losses.clear()
        if self.part == "both":
            return int(session.step())
        if self.part == "loader":
            return len(session.progress.next_batch()[0])
        with session.phases.step() as phase:
            return int(session.train(self.batch, phase))

    def sync(self) -> None:
        """Wait until the queued steps are done."""
        self.session.phases.wait()

    def remarks(self) -> list[str]:
        """Of the session: memory, skipped steps."""
        return list(self.session.remarks())

    def close(self) -> None:
        self.session.close()


class Sight:
    """The GPUs that PyTorch sees, and the cards that it has code for, in ``info``."""

    def __init__(self) -> None:
        from gluontune.runtime import pytorch

        torch = pytorch.torch()
        cards = [torch.cuda.get_device_capability(place) for place in range(torch.cuda.device_count())]
        self.info = {
            "versions": {"torch": torch.__version__},
            "built_for": torch.version.cuda, "code": torch.cuda.get_arch_list(), "capabilities": cards,
        }  # fmt: skip

    def step(self) -> int:
        """Nothing is measured."""
        return 1


@contextlib.contextmanager
def beside_smi() -> Iterator[list[float | None]]:
    """A list that gets what nvidia-smi shows of the work within, as of :func:`smi_means`."""
    seen: list[float | None] = []
    query = ["--query-gpu=utilization.gpu,memory.used", "--format=csv,noheader,nounits", "-lms", "500"]
    with tempfile.TemporaryFile("w+") as log:
        found = shutil.which("nvidia-smi")
        smi = subprocess.Popen([found, *query], stdout=log, stderr=subprocess.DEVNULL) if found else None
        try:
            yield seen
        finally:
            if smi is not None:
                smi.terminate()
                smi.wait()
        log.seek(0)
        seen += smi_means(log.read())


def smi_means(log: str) -> tuple[float | None, float | None]:
    """Mean percent and most MiB of the first columns of what nvidia-smi printed; None where it printed N/A.

    >>> smi_means("90, 800\\n[N/A], 1200\\n100, 1000\\n"), smi_means("")
    ((95.0, 1200.0), (None, None))
    """
    columns: list[list[float]] = [[], []]
    for line in log.splitlines():
        for values, cell in zip(columns, line.split(",")):
            if re.fullmatch(r"\s*\d+(\.\d+)?\s*", cell):
                values.append(float(cell))
    return (statistics.mean(columns[0]) if columns[0] else None, max(columns[1], default=None))


def airbench_runs(lines: Iterator[bytes]) -> Iterator[dict[str, float]]:
    """``{"seconds", "accuracy", "flipped"}`` of each run, from the table that airbench94 prints.

    >>> table = [b"|  run  |  epoch  |  val_acc  |  tta_val_acc  |  time_seconds  |",
    ...          b"|     1 |       7 |    0.9301 |               |         3.1000 |",
    ...          b"|     1 |    eval |    0.9340 |        0.9405 |         3.4000 |"]
    >>> list(airbench_runs(iter(table)))
    [{'seconds': 3.4, 'accuracy': 0.934, 'flipped': 0.9405}]
    """
    head: list[str] = []
    for line in lines:
        cells = [cell.strip() for cell in line.decode(errors="replace").strip().strip("|").split("|")]
        if "tta_val_acc" in cells:
            head = cells
        elif head and len(cells) == len(head) and "eval" in cells:
            seen = dict(zip(head, cells))
            seconds = next(value for name, value in seen.items() if name.endswith("time_seconds"))
            yield {"seconds": float(seconds), "accuracy": float(seen["val_acc"]), "flipped": float(seen["tta_val_acc"])}
