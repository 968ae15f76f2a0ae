"""A script's project: written by the script's process, then proven by its own check, without mxnet and gluontune."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from gluontune.capture import script
from gluontune.capture.api import document_of
from gluontune.core.errors import GluontuneError, UsageError
from gluontune.core.files import writable_folder
from gluontune.core.processes import last_words

_STEPS = 6
#: Runs a file of the project where neither mxnet nor gluontune can be imported.
_ALONE = """
import runpy, sys
class Block:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("mxnet", "gluontune"):
            raise ImportError(f"{name} is not for this project")
sys.meta_path.insert(0, Block())
sys.path.insert(0, ".")
sys.argv[:] = sys.argv[1:]
runpy.run_path(sys.argv[0], run_name="__main__")
"""


@dataclass(frozen=True)
class MigratedScript:
    """The written project.

    Args:
        path: the folder. files: in it. steps: that the check compares. nets: their names. parameters: count of numbers.
        losses: of a step. told: the check's output. by_hand: what is left to write, with its place and reason.
    """

    path: str
    files: tuple[str, ...]
    steps: int
    nets: tuple[str, ...]
    parameters: int
    losses: int
    told: str
    by_hand: tuple[str, ...]


def migrate_script(
    words: Sequence[str], out: str | Path, *, steps: int = _STEPS, time_limit: float | None = None,
    cwd: str | None = None,
) -> MigratedScript:  # fmt: skip
    """Write a PyTorch project of a whole Gluon script, and prove it.

    The script runs unchanged, in a process of its own, until it has taken some training steps. The project has its nets
    (``model.py``), its losses, backward passes and updates in their order (``train.py``, ``rules.py``), its data
    (``data.py``), and a check of these steps against MXNet in float64 (``check.py``), which is run.

    Args:
        words: the script and its arguments, or ``-m``, a module and its arguments. out: a new or empty folder.
        steps: how many to look at. time_limit: seconds for the script's process. cwd: the folder in which it runs.

    Raises:
        UsageError: no such script, or ``out`` is not empty.
        GluontuneError: a step cannot be written, with its line; or the check does not agree. Nothing is left then.
    """
    program = script.Program.of(words)
    program.check()
    place = Path(out).absolute()
    if place.exists() and (not place.is_dir() or any(place.iterdir())):
        raise UsageError(f"{place}: holds files already; name a new folder")
    writable_folder(place.parent)
    with tempfile.TemporaryDirectory(prefix=f".{place.name}-", dir=place.parent) as beside:
        project, told = Path(beside, "project"), Path(beside, "told.json")
        project.mkdir()
        options = {"project": str(project), "out": str(told), "steps": steps}
        found = document_of(program, "gluontune.capture.project.process", options, time_limit, cwd)
        if found.get("refused"):
            raise GluontuneError(found["refused"])
        checked = check(project)
        if checked is None or not checked.endswith("\nagrees"):
            raise GluontuneError(f"{program.target}: the project does not agree with the script: {_worst(checked)}")
        if place.is_dir():
            place.rmdir()
        os.replace(project, place)
    files = tuple(sorted(path.name for path in place.iterdir() if path.is_file()))
    return MigratedScript(
        str(place), files, found["steps"], tuple(found["nets"]), found["parameters"], found["losses"], checked,
        tuple(found["by_hand"]),
    )  # fmt: skip


def check(project: Path) -> str:
    """What a project's check prints, in a process that cannot import mxnet or gluontune."""
    env = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"} | {"PYTHONDONTWRITEBYTECODE": "1"}
    done = subprocess.run(
        [sys.executable, "-c", _ALONE, "check.py"], cwd=project, env=env, capture_output=True, text=True, check=False
    )
    output = done.stdout.strip()
    return output if output.endswith(("does NOT agree", "agrees")) else f"{output}\n{last_words(done.stderr)}".strip()


def _worst(told: str) -> str:
    lines = [line for line in told.splitlines() if line.strip()]
    return "; ".join(lines[:3])
