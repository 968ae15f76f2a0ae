"""A study of trainings: its document, which a resume takes up, and one training with its clocks."""

from __future__ import annotations

import contextlib
import re
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gluontune import datasets, runtime
from gluontune.core.errors import UsageError
from gluontune.core.events import OnProgress
from gluontune.core.journal import Document, another_machine
from gluontune.recipe import Recipe
from gluontune.recipe.result import RunResult
from gluontune.search.time_to_target import PackageEnergy
from gluontune.training.group import Group, RunFailed
from gluontune.training.loop import drive

_WARMUP_STEPS = 2


@dataclass(frozen=True)
class Part:
    """Part ``number`` of a study that ``of`` tasks share: the repeats ``number``, ``number + of``, ….

    >>> Part.parse("3/12")
    Part(number=3, of=12)
    """

    number: int
    of: int

    @classmethod
    def parse(cls, text: str) -> Part:
        found = re.fullmatch(r"(\d{1,6})/(\d{1,6})", text)
        if found is None or int(found[1]) >= int(found[2]):
            raise UsageError(f"--part {text!r}: give the number of a task and of all, such as 0/12 … 11/12")
        return cls(int(found[1]), int(found[2]))


class Study(Document):
    """The document of a study, ``DIR/NAME.json``, with the request ``given`` and the finished pieces, ``done``.

    A part has its own, ``DIR/parts/NUMBER/NAME.json``; a resume of the whole study takes up the pieces of all parts.
    """

    def __init__(
        self, name: str, schema: int, given: Mapping[str, Any], folder: str | Path | None, resume: bool,
        part: Part | None = None,
    ):  # fmt: skip
        self.part = part
        if part is not None:
            if folder is None:
                raise UsageError(f"--part {part.number}/{part.of} needs the folder of the study: --out DIR")
            folder = Path(folder) / "parts" / str(part.number)
        path = None if folder is None else Path(folder) / f"{name}.json"
        kind: dict[str, Any] = {
            "work": f"{name} run", "schema": schema, "fields": {"kind": name, "given": given, "done": []},
            "machine": runtime.machine_facts, "usual": Recipe().to_dict(),
        }  # fmt: skip
        super().__init__(path, **kind, resume=resume)
        if resume and path is not None:
            parts = path.parent.glob(f"parts/*/{name}.json")
            for each in sorted(parts, key=lambda found: (len(found.parent.name), found)):  # 2 before 10
                self._take(each, Document(each, **kind, resume=True).document)

    def _take(self, path: Path, part: Mapping[str, Any]) -> None:
        def key(row: Mapping[str, Any]) -> list[Any]:
            return [row.get(name) for name in ("kind", "recipe", "set", "seed", "name")]

        known = [key(row) for row in self.document["done"]]
        new = [row for row in part["done"] if key(row) not in known]
        if new and (other := another_machine(part["machine"], self.document["machine"])):
            self.document.setdefault("notes", []).append(f"{path} was measured on another machine ({other})")
        self.document = {**part, **self.document, "done": self.document["done"] + new}

    def takes(self, number: int) -> bool:
        return self.part is None or number % self.part.of == self.part.number

    def enter(self, *pieces: Mapping[str, Any]) -> None:
        self.document["done"] += map(dict, pieces)
        self.save()

    def train(
        self, train: Callable[..., Any], recipe: Recipe, name: str, tell: OnProgress, time_limit: float
    ) -> tuple[RunResult, Any]:
        """One run and its clocks, by a function like :func:`train_once`; saved as ``runs/NAME.json``."""
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
    """Wall-clock seconds of one run's phases, from the start of its process."""

    def __init__(self) -> None:
        self.started_at, self._begin = time.time(), time.perf_counter()
        self.start_seconds = 0.0  # importing, opening the data, building the net
        self.warmup_seconds = 0.0  # the untimed first steps (compilation, caches), undone afterwards
        self.run_at = 0.0  # begin of the counted training
        # Begin and end of each validation, and joules of the CPU packages since the training began, if they are known.
        self.evaluations: list[tuple[float, float, float | None]] = []

    def now(self) -> float:
        return time.perf_counter() - self._begin


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
        energy, validate = PackageEnergy(), group.validate

        def timed() -> dict[str, float]:
            begin = clocks.now()
            seen = validate()
            clocks.evaluations.append((begin, clocks.now(), energy.joules()))
            return seen

        group.validate = timed  # type: ignore[method-assign]
        drive(group, result, on_event)
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
