"""Lessons that were stopped go on: runs and studies that an output folder already holds are not done again."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from gluontune import train
from gluontune.core.errors import GluontuneError
from gluontune.recipe import Recipe
from gluontune.recipe.result import RunResult

__all__ = ["kept_folder", "kept_run", "kept_study"]


def kept_run(recipe: Recipe, path: str | os.PathLike[str], **options: Any) -> RunResult:
    """The result that ``path`` holds if it is a whole one of this recipe; else train, and save there.

    Args:
        options: of :func:`gluontune.train.run`.

    >>> import tempfile
    >>> path = Path(tempfile.mkdtemp()) / "run.json"
    >>> fast = Recipe(net="mlp", loader="resident", train_samples=512, val_samples=128)
    >>> first, again = kept_run(fast, path), kept_run(fast, path)
    >>> first.ok, first.elapsed_seconds == again.elapsed_seconds
    (True, True)
    """
    try:
        found = RunResult.load(Path(path))
        if found.ok and Recipe.from_dict(found.recipe) == recipe:
            return found
    except GluontuneError:
        pass  # nothing there, or nothing that can be used
    result = train.run(recipe, **options)
    result.save(Path(path))
    return result


def kept_study(
    study: Callable[..., dict[str, Any]], *given: Any, out: str | os.PathLike[str], **options: Any
) -> dict[str, Any]:
    """Go on with the study that ``out`` holds if it was begun with the same options; else begin anew.

    Args:
        study: ``analyse`` or ``time_to_accuracy``: takes ``out`` and ``resume``. given, options: its own.
    """
    try:
        return study(*given, out=out, resume=True, **options)
    except GluontuneError:  # nothing to go on with; what is wrong with the options is raised again
        return study(*given, out=out, **options)


def kept_folder(recipe: Recipe, out_dir: str | os.PathLike[str]) -> Path:
    """A folder below ``out_dir`` for the checkpoints of this recipe, and of no other.

    >>> kept_folder(Recipe(), "out") == kept_folder(Recipe(), "out") != kept_folder(Recipe(seed=1), "out")
    True
    """
    text = json.dumps(recipe.to_dict(), sort_keys=True)
    return Path(out_dir) / f"checkpoints-{hashlib.sha256(text.encode()).hexdigest()[:8]}"
