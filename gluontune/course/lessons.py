"""The lessons: their files, questions and progress, and JupyterLab to open them.

Progress is read from the saved notebooks; nothing else is stored.
"""

from __future__ import annotations

import ast
import contextlib
import os
import re
import secrets
import socket
import subprocess
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import gluontune
from gluontune import runtime
from gluontune.core.errors import GluontuneError, UsageError, did_you_mean
from gluontune.core.files import writable_folder, write_json
from gluontune.core.interpreter import python
from gluontune.core.reading import parse_json, read_text

_NAME = "[0-9][0-9]_*.ipynb"
_IN_WHEEL = "_notebooks"


@dataclass(frozen=True)
class Lesson:
    """One lesson: ``name`` (``02_multi_worker``), ``title``, its opening ``question``, its ``path``."""

    name: str
    title: str
    question: str
    path: Path


def find_lessons(folder: str | os.PathLike[str] | None = None) -> list[Lesson]:
    """The lessons of a folder (default: ``notebooks`` here, or :func:`own_folder`), in order; a UsageError if none."""
    places = [Path("notebooks"), own_folder()] if folder is None else [Path(folder)]
    for place in places:
        if found := [_read(path) for path in sorted(place.glob(_NAME))]:
            return found
    raise UsageError(
        f"{places[0]}: no lessons (NN_topic.ipynb) there; give the notebooks folder of the source tree with --folder"
    )


def unpack(lessons: Sequence[Lesson], folder: str | os.PathLike[str] = "notebooks") -> list[Lesson]:
    """Lessons with the paths to open: those of an installed wheel are copied to ``folder``, others used in place.

    Existing files are kept, with the learner's work in them.
    """
    own = own_folder()
    if own.name != _IN_WHEEL or any(lesson.path.parent != own for lesson in lessons):
        return list(lessons)
    place, mine = writable_folder(folder), []
    for lesson in lessons:
        path = place / lesson.path.name
        if not path.exists():
            path.write_bytes(lesson.path.read_bytes())
        mine.append(replace(lesson, path=path))
    return mine


def own_folder() -> Path:
    """The folder of gluontune's lessons, their pictures and scripts: beside the package, or in it (a wheel)."""
    package = Path(gluontune.__file__).resolve().parent
    beside = package.parent / "notebooks"
    return beside if any(beside.glob(_NAME)) else package / _IN_WHEEL


#: Earlier names of lessons, which batch jobs may still use.
MOVED = {
    "07_scaling": "08_scaling", "08_optimizers": "09_descent and 10_optimizers", "09_lr_schedules": "11_lr_schedules",
    "10_composing": "12_composing", "11_inference": "13_inference", "12_assessment": "14_assessment",
    "13_modern_engine": "15_modern_engine",
}  # fmt: skip


def pick(lessons: Sequence[Lesson], names: Sequence[str]) -> list[Lesson]:
    """The named lessons, in the lessons' order; a name is ``02``, ``2`` or ``02_multi_worker``; all if none is named.

    A UsageError for a name that fits no lesson.
    """
    wanted = set()
    for name in names:
        number = f"{int(name):02d}" if name.isdecimal() else None
        fits = [x.name for x in lessons if x.name == name or (number and x.name.startswith(f"{number}_"))]
        if not fits:
            known = [x.name for x in lessons]
            hint = f"it is {MOVED[name]} now;" if name in MOVED else did_you_mean(name, known)
            raise UsageError(f"lesson {name!r}: {hint and hint + ' '}there are {', '.join(known)}")
        wanted.update(fits)
    return [x for x in lessons if not names or x.name in wanted]


def _cells(path: Path, kind: str) -> list[dict[str, Any]]:
    """The cells of one type; read as JSON, without the extra [notebooks]."""
    try:
        cells = [cell for cell in parse_json(read_text(path))["cells"] if cell["cell_type"] == kind]
        for cell in cells:
            "".join(cell["source"])
        return cells
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise GluontuneError(f"{path}: not a notebook of format 4: {error}") from error


def _read(path: Path) -> Lesson:
    text = "\n\n".join("".join(cell["source"]) for cell in _cells(path, "markdown"))
    title = re.search(r"^# (.+)$", text, re.M)
    question = re.search(r"\*\*Question\.\*\* (.+?)(?:\n\s*\n|\Z)", text, re.S)
    plain = re.sub(r"[`*]", "", " ".join(question.group(1).split())) if question else ""
    return Lesson(path.stem, title.group(1) if title else path.stem, plain, path)


_OFF = {"@jupyterlab/apputils-extension:announcements": True}
_HIDDEN = ["__pycache__", "*.pyc", "*~", ".*", "[0-9][0-9]_*.py", "ruff.toml", "assessment", "pictures"]


def lab(lessons: Sequence[Lesson], *, first: Lesson | None = None, port: int = 8888, browser: bool = True) -> int:
    """Run JupyterLab on this machine only, with a fresh token and our launch settings; returns its exit code.

    Registers the kernel "Python 3 (gluontune)" for other notebooks; here it is the only one, as python3, which lessons
    ask for. Their scripts are hidden, so that each lesson is listed once; nothing asks about news.
    """
    port = _free_port(port)
    runtime.install_kernel()
    own = tempfile.TemporaryDirectory(prefix="gluontune-lab-")
    runtime.install_kernel(
        "python3", prefix=own.name, options=["--IPKernelApp.kernel_class=gluontune.course.kernel.LessonKernel"]
    )
    env = runtime.child_env("tuned")
    write_json(f"{own.name}/labconfig/page_config.json", {"disabledExtensions": _OFF})
    env["JUPYTER_CONFIG_PATH"] = os.pathsep.join(filter(None, (own.name, env.get("JUPYTER_CONFIG_PATH"))))
    env["JUPYTER_PATH"] = os.pathsep.join(filter(None, (f"{own.name}/share/jupyter", env.get("JUPYTER_PATH"))))
    # not on the command line, which other users can read
    token = env["JUPYTER_TOKEN"] = secrets.token_urlsafe(24)
    folder = lessons[0].path.parent.resolve()
    page = f"/lab/tree/{first.path.name}" if first else "/lab"
    print(f"JupyterLab: http://127.0.0.1:{port}{page}?token={token} (Ctrl-C ends it)", flush=True)
    command = [
        *python("-m", "jupyterlab"), f"--ServerApp.root_dir={folder}", "--ServerApp.ip=127.0.0.1",
        f"--ServerApp.port={port}", "--ServerApp.port_retries=0", f"--LabApp.default_url={page}",
        "--KernelSpecManager.allowed_kernelspecs={'python3'}", f"--ContentsManager.hide_globs={_HIDDEN}",
        # no requests for news and updates
        "--LabApp.news_url=None", "--LabApp.check_for_updates_class=jupyterlab.NeverCheckForUpdate",
    ]  # fmt: skip
    if not browser:
        command.append("--no-browser")
    if hasattr(os, "geteuid") and os.geteuid() == 0:
        command.append("--allow-root")
    server = subprocess.Popen(command, env=env)
    try:
        return server.wait()
    except KeyboardInterrupt:  # SIGTERM ends it at once, with its kernels; Ctrl-C would ask first
        server.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            server.wait(timeout=15)
        return 0
    finally:
        server.kill()
        own.cleanup()


def _free_port(first: int) -> int:
    """The first free port from ``first`` on."""
    for port in range(first, min(first + 100, 65_536)):
        with contextlib.suppress(OSError), socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(("127.0.0.1", port))
            return port
    raise UsageError(f"port {first}: it and the next hundred are taken; give another with --port")


@dataclass(frozen=True)
class Progress:
    """The progress of one lesson, from its saved notebook."""

    name: str
    state: str  # not begun, begun or done: all cells run and all exercises right
    cells_run: int
    cells: int
    predicted: int  # questions with a prediction
    predictions: int
    right: int  # exercises whose last run was right
    exercises: int


def progress_of(lesson: Lesson) -> Progress:
    """The progress of a lesson; a GluontuneError for a notebook that cannot be read."""
    from gluontune.course.exercises import RIGHT  # with what exercises need; a list of lessons needs none of it

    cells = [cell for cell in _cells(lesson.path, "code") if "".join(cell["source"]).strip()]
    ran = sum(cell.get("execution_count") is not None for cell in cells)
    printed = ["".join("".join(output.get("text", "")) for output in cell.get("outputs", [])) for cell in cells]
    calls = [(call, text) for cell, text in zip(cells, printed) for call in _calls("".join(cell["source"]))]
    predictions = [call for call, _ in calls if call[0] == "predict"]
    exercises = {call[1] for call, _ in calls if call[0] == "check"}
    right = len({call[1] for call, text in calls if call[0] == "check" and f"{call[1]}{RIGHT}" in text})
    done = bool(cells) and ran == len(cells) and right == len(exercises)
    return Progress(
        lesson.name, "done" if done else "begun" if ran else "not begun", ran, len(cells),
        sum(call[2] for call in predictions), len(predictions), right, len(exercises),
    )  # fmt: skip


def _calls(source: str) -> list[tuple[str, str, bool]]:
    """The calls of ``predict`` and ``check``: the name, the first argument, and whether the second is filled in.

    >>> _calls('predict("images a second", ...)\\ncheck("feed-rate", 256 / 0.025)')
    [('predict', 'images a second', False), ('check', 'feed-rate', True)]
    """
    try:
        tree = ast.parse(source)
    except SyntaxError:  # an unfinished cell, or a command of Jupyter's
        return []
    found = []
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call) or getattr(node.func, "id", "") not in ("predict", "check"):
            continue
        if len(node.args) < 2 or not isinstance(node.args[0], ast.Constant):
            continue
        given = ast.unparse(node.args[1]) != "..."
        found.append((node.func.id, str(node.args[0].value), given))  # type: ignore[attr-defined]
    return found
