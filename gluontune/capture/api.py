"""What a script computes in a training step, learned from the running script and proven; and its project."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gluontune.capture.script import Program, command, environment, with_hint
from gluontune.core.errors import GluontuneError, UsageError
from gluontune.core.files import writable_folder
from gluontune.core.processes import last_words
from gluontune.core.reading import parse_json

_QUICKLY = {"steps": 20, "seconds": 10.0}


def capture(
    words: Sequence[str], steps: int | None = None, time_limit: float | None = None, cwd: str | None = None
) -> dict[str, Any]:
    """Run a script until it has taken some training steps, and prove that PyTorch computes them.

    The script is left after these steps; what it has written by then stays. In them nothing is dropped between the
    layers of a recurrent operator. Each step is computed again from its recorded leaves by PyTorch, and by MXNet and
    PyTorch both in float64: every structure of a step once, and all steps if that takes ten seconds at most; where it
    takes longer and float32 shows no agreement, two steps are all.

    Args:
        words: the script and its arguments, or ``-m``, a module and its arguments.
        steps: how many to look at. None: 20, or as many as there is time for in ten seconds, at least two.
        time_limit: seconds for the whole process. cwd: the folder in which the script runs.

    Returns:
        ``{"refused", "steps", "steps_float64", "gaps_float64", "gaps_of_the_script", "seven_digits", "trainers",
        "kinds"}``. ``refused`` is None, or why there is no proof; ``steps_float64``: how many were computed in it. The
        gaps are ``{"losses", "gradients", "weights"}``, relative; a kind is one structure of a step, with its
        ``operators`` and ``leaves``: of each its ``source``, shape, type and line.
        ``seven_digits``: MXNet computes an operator of it in float32 whatever it is given.

    Raises:
        UsageError: there is no such script.
        GluontuneError: the script failed before a step was over, or took longer than ``time_limit``.

    >>> import gluontune as gt
    >>> path = Path(tempfile.mkdtemp(), "three_steps.py")
    >>> _ = path.write_text('''
    ... import mxnet as mx
    ... w = mx.nd.ones(2)
    ... w.attach_grad()
    ... for x in (1, 2, 3):
    ...     with mx.autograd.record():
    ...         loss = ((w * x - 1) ** 2).sum()
    ...     loss.backward()
    ...     w[:] = w - 0.1 * w.grad
    ... ''')
    >>> found = gt.capture.capture([str(path)])
    >>> found["refused"], found["steps"], found["gaps_float64"]["losses"] < 1e-12
    (None, 3, True)
    >>> [leaf["source"] for leaf in found["kinds"][0]["leaves"]]
    ['variable']
    """
    program = Program.of(words)
    program.check()
    with tempfile.TemporaryDirectory(prefix="gluontune-capture-") as folder:
        options = {"out": str(Path(folder, "capture.json")), **(_QUICKLY if steps is None else {"steps": steps})}
        return _document_of(program, options, time_limit, cwd)


def _document_of(
    program: Program, options: dict[str, Any], time_limit: float | None, cwd: str | None
) -> dict[str, Any]:
    """The document that the process writes to ``options["out"]`` of a script's first ``options["steps"]`` steps."""
    started, out = command(program, "gluontune.capture.capturing", json.dumps(options)), Path(options["out"])
    try:
        done = subprocess.run(
            started, cwd=cwd, env=environment(), stdin=subprocess.DEVNULL, capture_output=True, text=True,
            errors="replace", timeout=time_limit,
        )  # fmt: skip
    except subprocess.TimeoutExpired as error:
        raise GluontuneError(f"{program.target}: no {options['steps']} training steps in {time_limit:.0f} s") from error
    found = parse_json(out.read_text("utf-8")) if out.exists() else None
    if found is None or (done.returncode and not found.get("steps")):
        why = last_words(done.stderr) or f"code {done.returncode}, and not a word"
        raise GluontuneError(with_hint(f"{program.target}: ended before a training step: {why}"))
    return dict(found)


def summary(found: dict[str, Any]) -> list[str]:
    lines = []
    for trainer in found["trainers"]:
        rates = trainer["learning_rates"]
        span = f"{rates[0]:g}" if len(set(rates)) == 1 else f"{rates[0]:g} … {rates[-1]:g}"
        lines.append(
            f"{trainer['optimizer']} on {len(trainer['parameters'])} parameters, rate {span}, gradients ÷ "
            f"{trainer['batch_size']} ({trainer['line']})"
        )
    for kind in found["kinds"]:
        sources: dict[str, int] = {}
        for leaf in kind["leaves"]:
            sources[leaf["source"]] = sources.get(leaf["source"], 0) + 1
        told = ", ".join(f"{count} {source}" for source, count in sources.items())
        lines.append(f"{kind['steps']} steps of {kind['instructions']} instructions from {told}")
    gaps = found["gaps_float64"]
    if found["refused"]:
        lines.append(f"refused: {found['refused']}")
    elif gaps:
        worst = max(gaps.values())
        exact = found["steps_float64"]
        some = "" if exact == found["steps"] else f" ({exact} of them)"
        lines.append(f"proven over {found['steps']} steps: MXNet and PyTorch agree to {worst:.0e} in float64{some}")
    return lines


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
    """The written project: its folder and files, the steps that its check compares, the names of its nets, numbers in
    parameters, losses of a step, the check's output, and what is left to write, with its place and reason.
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
    program = Program.of(words)
    program.check()
    place = Path(out).absolute()
    if place.exists() and (not place.is_dir() or any(place.iterdir())):
        raise UsageError(f"{place}: holds files already; name a new folder")
    writable_folder(place.parent)
    with tempfile.TemporaryDirectory(prefix=f".{place.name}-", dir=place.parent) as beside:
        project, told = Path(beside, "project"), Path(beside, "told.json")
        project.mkdir()
        options = {"project": str(project), "out": str(told), "steps": steps}
        found = _document_of(program, options, time_limit, cwd)
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
