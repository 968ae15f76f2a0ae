"""A study of trainings: its document, which a resume takes up, and one training with its clocks."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from gluontune import datasets, runtime
from gluontune.core.errors import UsageError
from gluontune.core.events import OnProgress
from gluontune.core.journal import Document
from gluontune.recipe import Recipe
from gluontune.recipe.result import RunResult
from gluontune.search.cost import PackageEnergy
from gluontune.training.group import Group, RunFailed
from gluontune.training.loop import drive

_WARMUP_STEPS = 2


class Study(Document):
    """The document of a study, ``DIR/NAME.json``; ``done`` is its list of finished pieces.

    Args:
        name: ``tta``, ``factors``, …; also the document's ``kind``. schema: its version.
        given: the request; a resume must request the same.
        folder: where it is saved; None keeps it in memory. resume: go on with the document in the folder.
    """

    def __init__(self, name: str, schema: int, given: Mapping[str, Any], folder: str | Path | None, resume: bool):
        path = None if folder is None else Path(folder) / f"{name}.json"
        fields = {"kind": name, "given": given, "done": []}
        usual = Recipe().to_dict()
        super().__init__(path, f"{name} run", schema, fields, runtime.machine_facts, usual=usual, resume=resume)

    def enter(self, *pieces: Mapping[str, Any]) -> None:
        """Add finished pieces and save."""
        self.document["done"] += map(dict, pieces)
        self.save()

    def train(
        self, train: Callable[..., Any], recipe: Recipe, name: str, tell: OnProgress, time_limit: float
    ) -> tuple[RunResult, Any]:
        """One run and its clocks, by a function like :func:`train_once`; saved as ``runs/NAME.json``.

        Raises:
            KeyboardInterrupt: the run was interrupted.
        """
        result, clocks = train(recipe, on_event=tell, time_limit=time_limit, machine=self.document["machine"])
        if result.status == "interrupted":
            raise KeyboardInterrupt
        if self.path is not None:
            result.save(self.path.parent / "runs" / f"{name}.json")
        return result, clocks


def check_target(target: float) -> None:
    if not 0 < target <= 1:
        raise UsageError(f"--target {target:g}: give a validation accuracy above 0 and up to 1, such as 0.8")


def dataset_facts(recipe: Recipe) -> dict[str, Any]:
    """Facts of the data for the report; of a job's data, which only its processes open, the name alone."""
    if recipe.job is not None:
        return {"name": Path(recipe.job).name, "classes": None, "num_train": None, "num_test": None}
    data = datasets.open(recipe.dataset)
    return {
        "name": data.name, "classes": len(data.classes), "num_train": len(data.train), "num_test": len(data.test),
        "image_shape": list(data.image_shape) if data.image_shape else None,
    }  # fmt: skip


class Clocks:
    """Wall-clock seconds of one run's phases, from the start of its process.

    Attributes:
        started_at: seconds since the epoch. start_seconds: importing, opening the data, building the net.
        warmup_seconds: the untimed first steps (compilation, caches), undone afterwards.
        evaluations: ``(begin, end, joules)`` of each validation; seconds since the start, joules of the
            CPU packages since the training began (None if the counters cannot be read).
        run_at: begin of the counted training, seconds since the start.
    """

    def __init__(self) -> None:
        self.started_at, self._begin = time.time(), time.perf_counter()
        self.start_seconds = self.warmup_seconds = self.run_at = 0.0
        self.evaluations: list[tuple[float, float, float | None]] = []

    def now(self) -> float:
        return time.perf_counter() - self._begin


class _TimedValidation:
    """A group that records its validations in ``clocks``; everything else is the group's."""

    def __init__(self, group: Any, clocks: Clocks):
        self._group, self._clocks = group, clocks
        self._energy = PackageEnergy()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._group, name)

    def validate(self) -> dict[str, float]:
        begin = self._clocks.now()
        seen = self._group.validate()
        self._clocks.evaluations.append((begin, self._clocks.now(), self._energy.joules()))
        return seen


def train_once(
    recipe: Recipe, *, on_event: OnProgress | None = None, time_limit: float = 600.0,
    machine: dict[str, Any] | None = None,
) -> tuple[RunResult, Clocks]:  # fmt: skip
    """Train a recipe in fresh processes, after a warm-up that is undone. Never raises for a failed run.

    The warm-up is two steps (compilation, caches); the run then begins from its seeded start. Ranks behind a
    parameter server cannot be reset: they get no warm-up, and their first steps count.
    """
    with begun(recipe, machine) as (result, clocks), Group(recipe, time_limit=time_limit) as group:
        clocks.start_seconds = clocks.now()
        if group.world == 1:
            group.steps(_WARMUP_STEPS)
            group.reset()
        clocks.run_at = clocks.now()
        clocks.warmup_seconds = clocks.run_at - clocks.start_seconds
        result.warmup_seconds = clocks.run_at
        timed: Any = _TimedValidation(group, clocks)
        drive(timed, result, on_event)
    return result, clocks


@contextlib.contextmanager
def begun(recipe: Recipe, machine: dict[str, Any] | None) -> Iterator[tuple[RunResult, Clocks]]:
    """The result and the clocks of a run; a failure or interrupt becomes a part of the result."""
    result = RunResult(recipe=recipe.to_dict(), machine=machine or runtime.machine_facts())
    try:
        yield result, Clocks()
    except RunFailed as failure:
        result.status, result.error = "failed", failure.to_dict()
    except KeyboardInterrupt:
        result.status = "interrupted"
