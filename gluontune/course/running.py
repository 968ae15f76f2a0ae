"""Batch execution of lessons by papermill, a process each, with a summary from which a stopped run goes on."""

from __future__ import annotations

import ast
import contextlib
import hashlib
import json
import os
import re
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Callable

import yaml

from gluontune import runtime
from gluontune.core.errors import GluontuneError, UsageError
from gluontune.core.files import writable_folder, write_json
from gluontune.core.interpreter import python
from gluontune.core.processes import how_it_ended, session
from gluontune.core.reading import parse_json, read_text
from gluontune.course.exercises import EXERCISES, RIGHT
from gluontune.course.lessons import Lesson
from gluontune.report.formatting import clean
from gluontune.runtime.packages import module_exists

#: A right answer for each exercise, as an expression of a learner; lines above it define its names.
SOLUTIONS = {name: exercise.solution for name, exercise in EXERCISES.items()}
_STUB = re.compile(r'check\("([a-z0-9-]+)", \.\.\.')


def need(module: str) -> None:
    """Raise a GluontuneError with the way to install ``module`` if it is missing.

    >>> need("nothing_of_this_name")
    Traceback (most recent call last):
    gluontune.errors.GluontuneError: nothing_of_this_name is not installed: pip install 'gluontune[notebooks]'
    """
    if not module_exists(module):
        raise GluontuneError(f"{module} is not installed: pip install 'gluontune[notebooks]'")


@dataclass
class Outcome:
    """The outcome of one lesson."""

    name: str
    status: str  # passed, failed, timed out or interrupted
    seconds: float
    figures: int  # drawn in it
    error: str | None  # place and reason of the failure
    notebook: str  # the executed one
    key: str  # hash of the lesson's text and parameters; a passed lesson with the same key is not repeated
    resumed: bool = False  # an earlier run had passed it


def run_lessons(
    lessons: Sequence[Lesson],
    out: str | os.PathLike[str],
    *,
    parameters: Mapping[str, Any] | None = None,
    fresh: bool = False,
    solved: bool = False,
    time_limit: float = 1800.0,
    on_event: Callable[[str, Outcome | None], None] | None = None,
) -> list[Outcome]:
    """Execute lessons by papermill, each in processes of its own with our launch settings.

    Writes ``OUT/NAME.ipynb`` (executed), ``OUT/NAME/`` (its results) and ``OUT/summary.json``, after each lesson.
    Lessons that passed with the same text and parameters, by ``summary.json``, are not repeated.

    Args:
        parameters: of the lessons' cells tagged ``parameters``; each lesson takes its own.
        fresh: run all again. solved: answer each exercise with its solution; a wrong one fails the lesson.
        time_limit: seconds for one lesson.
        on_event: called with a lesson's name and None as it starts, with its Outcome as it ends.

    Returns:
        Outcomes in order; an interruption ends the list.
    """
    need("papermill")
    given = dict(parameters or {})
    known = {lesson.name: parameters_of(lesson) for lesson in lessons}
    every = sorted(set().union(*known.values()))
    for name in given:
        if name not in every:
            raise UsageError(f"parameter {name!r}: no lesson has it; there are {', '.join(every)}")
    folder = writable_folder(out)
    earlier = {} if fresh else _earlier(folder)
    found: list[Outcome] = []
    for lesson in lessons:
        mine = {name: value for name, value in given.items() if name in known[lesson.name]}
        if solved and "my_script" in known[lesson.name]:  # the assessment's exercise is a script
            mine.setdefault("my_script", "solution")
        mine["out_dir"] = str((folder / lesson.name).resolve())
        text = lesson.path.read_bytes() + json.dumps(mine, sort_keys=True).encode() + b"solved" * solved
        key = hashlib.sha256(text).hexdigest()[:16]
        old = earlier.get(lesson.name)
        if old and old.status == "passed" and old.key == key and Path(old.notebook).is_file():
            outcome = replace(old, resumed=True)
        else:
            if on_event:
                on_event(lesson.name, None)
            outcome = _run(lesson, folder, mine, key, time_limit, solved)
        found.append(outcome)
        kept = {**earlier, **{o.name: o for o in found}}
        write_json(folder / "summary.json", {"lessons": [vars(o) for o in kept.values()]})
        if on_event:
            on_event(lesson.name, outcome)
        if outcome.status == "interrupted":
            break
    return found


def parameters_of(lesson: Lesson) -> set[str]:
    """Names set in the lesson's cell tagged ``parameters``."""
    import nbformat

    cells = nbformat.read(lesson.path, as_version=4).cells  # type: ignore[no-untyped-call]
    tagged = [c.source for c in cells if "parameters" in c.metadata.get("tags", [])]
    set_here = [s for s in ast.parse("\n".join(tagged)).body if isinstance(s, ast.Assign)]
    return {target.id for s in set_here for target in s.targets if isinstance(target, ast.Name)}


def _run(
    lesson: Lesson, folder: Path, parameters: dict[str, Any], key: str, time_limit: float, solved: bool
) -> Outcome:
    target = folder / f"{lesson.name}.ipynb"
    Path(parameters["out_dir"]).mkdir(parents=True, exist_ok=True)
    settings = folder / lesson.name / "parameters.yaml"
    source, exercises = lesson.path, 0
    if solved:
        source = folder / lesson.name / "solved.ipynb"
        exercises = solved_notebook(lesson.path, source)
    settings.write_text(yaml.safe_dump(parameters))
    command = [
        *python("-m", "papermill"), str(source), str(target), "-f", str(settings), "--cwd", str(folder),
        "--no-progress-bar", "-k", "python3",
    ]  # fmt: skip
    started = time.perf_counter()
    status, error = "passed", None
    with (
        open(folder / lesson.name / "papermill.log", "w", encoding="utf-8") as log,
        session(command, env=runtime.child_env("tuned"), stdout=log, stderr=log) as process,
    ):
        try:
            if process.wait(timeout=time_limit) != 0:
                status = "failed"
        except subprocess.TimeoutExpired:
            status, error = "timed out", f"took longer than {time_limit:g} s"
        except KeyboardInterrupt:
            status, error = "interrupted", "interrupted"
        if error is not None:
            os.killpg(process.pid, signal.SIGTERM)  # papermill and its kernel
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(timeout=10)
    seconds = time.perf_counter() - started
    figures, right, failure = _look(target)
    if status == "failed":
        log_text = (folder / lesson.name / "papermill.log").read_text(encoding="utf-8", errors="replace")
        error = failure or clean(how_it_ended("papermill", process.returncode, log_text), 400)
    elif status == "passed" and right != exercises:
        status, error = "failed", f"{right} of {exercises} solutions are right: see {target}"
    return Outcome(lesson.name, status, round(seconds, 2), figures, error, str(target), key)


def _look(path: Path) -> tuple[int, int, str | None]:
    """Numbers of figures and of right exercises of an executed notebook, and its first error."""
    import nbformat

    if not path.is_file():
        return 0, 0, None
    figures, right, failure = 0, 0, None
    for number, cell in enumerate(nbformat.read(path, as_version=4).cells, 1):  # type: ignore[no-untyped-call]
        for output in cell.get("outputs", []):
            if output.output_type == "error":
                failure = failure or f"cell {number}: {output.ename}: {clean(output.evalue, 300)}"
            data = output.get("data", {})
            figures += "".join(data.get("text/html", "")).count("<svg") + ("image/png" in data)
            right += "".join(output.get("text", "")).count(RIGHT)
    return figures, right, failure


def _earlier(folder: Path) -> dict[str, Outcome]:
    try:
        rows = parse_json(read_text(folder / "summary.json"))["lessons"]
        return {row["name"]: Outcome(**{**row, "resumed": False}) for row in rows}
    except (OSError, ValueError, KeyError, TypeError):
        return {}


def solved(source: str) -> str:
    """The source of a cell with its exercises answered; that of other cells as it is.

    >>> solved('check("step-time-ms", ..., result=result)')
    'check("step-time-ms", 1000 * batch_size_per_device / result.samples_per_sec[\\'median\\'], result=result)'
    """
    above: list[str] = []

    def answer(found: re.Match[str]) -> str:
        if (name := found[1]) not in SOLUTIONS:
            raise GluontuneError(f"exercise {name!r} has no solution in gluontune.course.exercises")
        *lines, expression = SOLUTIONS[name].splitlines()
        above.extend([*lines, "", ""] if lines else [])
        return f'check("{name}", {expression}'

    answered = _STUB.sub(answer, source)
    return "\n".join([*above, answered])


def solved_notebook(lesson: str | os.PathLike[str], target: str | os.PathLike[str]) -> int:
    """Write a copy of a lesson with a solution after each exercise. Returns the number of exercises."""
    import nbformat

    notebook = nbformat.read(lesson, as_version=4)  # type: ignore[no-untyped-call]
    cells, count = [], 0
    for cell in notebook.cells:
        cells.append(cell)
        if cell.cell_type == "code" and (found := len(_STUB.findall(cell.source))):
            cells.append(nbformat.v4.new_code_cell(solved(cell.source)))  # type: ignore[no-untyped-call]
            count += found
    notebook.cells = cells
    Path(target).write_text(nbformat.writes(notebook), encoding="utf-8")  # type: ignore[no-untyped-call]
    return count
