"""How far a learner is: read from the lessons as they were saved, nothing else is kept."""

from __future__ import annotations

import ast
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from gluontune.core.errors import GluontuneError
from gluontune.core.files import parse_json
from gluontune.core.reading import read_text
from gluontune.course.exercises._registry import RIGHT
from gluontune.course.lessons import Lesson

__all__ = ["Progress", "progress_of"]


@dataclass(frozen=True)
class Progress:
    """One lesson, as its notebook was saved.

    Args:
        name: of the lesson.
        state: ``not begun``, ``begun`` or ``done``: all cells run and all exercises right.
        cells_run, cells: code cells with a number of execution, and all.
        predicted, predictions: questions that were answered before measuring, and all.
        right, exercises: exercises whose last run was right, and all.
    """

    name: str
    state: str
    cells_run: int
    cells: int
    predicted: int
    predictions: int
    right: int
    exercises: int

    def to_dict(self) -> dict[str, Any]:
        """Plain values, ready for JSON."""
        return asdict(self)


def progress_of(lessons: Sequence[Lesson]) -> list[Progress]:
    """The progress of each lesson, in order.

    Args:
        lessons: of :func:`find_lessons`; their notebooks hold the outputs of those who worked in them.

    Raises:
        GluontuneError: a notebook that cannot be read.
    """
    return [_one(lesson) for lesson in lessons]


def _one(lesson: Lesson) -> Progress:
    try:
        cells = [
            cell
            for cell in parse_json(read_text(lesson.path))["cells"]
            if cell["cell_type"] == "code" and "".join(cell["source"]).strip()
        ]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise GluontuneError(f"{lesson.path}: not a notebook of format 4: {error}") from error
    ran = sum(cell.get("execution_count") is not None for cell in cells)
    calls = [(call, _said(cell)) for cell in cells for call in _calls("".join(cell["source"]))]
    predictions = [call for call, _ in calls if call[0] == "predict"]
    exercises = {call[1]: False for call, _ in calls if call[0] == "check"}
    for call, said in calls:
        if call[0] == "check" and f"{call[1]}{RIGHT}" in said:
            exercises[call[1]] = True
    right = sum(exercises.values())
    done = bool(cells) and ran == len(cells) and right == len(exercises)
    return Progress(
        lesson.name,
        "done" if done else "begun" if ran else "not begun",
        ran,
        len(cells),
        sum(call[2] for call in predictions),
        len(predictions),
        right,
        len(exercises),
    )


def _said(cell: dict[str, Any]) -> str:
    return "".join("".join(output.get("text", "")) for output in cell.get("outputs", []))


def _calls(source: str) -> list[tuple[str, str, bool]]:
    """The calls of ``predict`` and ``check``: which, its first argument, and whether something stands in its second.

    >>> _calls('predict("images a second", ...)\\ncheck("feed-rate", 256 / 0.025)')
    [('predict', 'images a second', False), ('check', 'feed-rate', True)]
    """
    try:
        tree = ast.parse(source)
    except SyntaxError:  # a cell that somebody is still writing, or a command of Jupyter's
        return []
    found = []
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call) or getattr(node.func, "id", "") not in ("predict", "check"):
            continue
        if len(node.args) < 2 or not isinstance(node.args[0], ast.Constant):
            continue
        answer = node.args[1]
        given = not (isinstance(answer, ast.Constant) and answer.value is ...)
        found.append((node.func.id, str(node.args[0].value), given))  # type: ignore[attr-defined]
    return found
