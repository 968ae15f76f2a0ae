"""A study of trainings: its document, which a resume takes up, and what its runs leave beside it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from gluontune import datasets, runtime
from gluontune.core.errors import UsageError
from gluontune.core.events import OnProgress
from gluontune.core.journal import Document
from gluontune.recipe import Recipe
from gluontune.recipe.result import RunResult


class Study(Document):
    """What a study has found so far, as ``DIR/NAME.json``; ``done`` is its list of finished pieces.

    Args:
        name: ``tta``, ``factors``, …; also the document's ``kind``. schema: its version.
        given: what was asked for; a resume must ask for the same.
        folder: where it is saved; None keeps it in memory. resume: go on with what the folder holds.
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
        """One run and its clocks, by a function like :func:`gluontune.search.repeat.train_once`; kept as ``runs/NAME``.

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
    """What the report says about the data; a job's own data are known to its processes only."""
    if recipe.job is not None:
        return {"name": Path(recipe.job).name, "classes": None, "num_train": None, "num_test": None}
    data = datasets.open(recipe.dataset)
    return {
        "name": data.name, "classes": len(data.classes), "num_train": len(data.train), "num_test": len(data.test),
        "image_shape": list(data.image_shape) if data.image_shape else None,
    }  # fmt: skip
