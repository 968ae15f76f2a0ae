"""The assessment: the reference's run sets the goal, the learner's script runs under limits, and is graded."""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from shlex import quote
from typing import Any

import numpy as np
import psutil

from gluontune import runtime
from gluontune.core.errors import GluontuneError, UsageError
from gluontune.core.files import read_sealed, writable_folder, write_json, write_sealed
from gluontune.core.reading import parse_json
from gluontune.course.assessment.dice import luck, remembered
from gluontune.course.assessment.examine import examine
from gluontune.course.assessment.fresh import PARTS, FreshTask, Scale
from gluontune.course.assessment.grading import Goal, Part, grade
from gluontune.course.assessment.limits import landlock_version
from gluontune.course.assessment.supervise import run_script
from gluontune.course.assessment.task import VARIABLE
from gluontune.course.lessons import own_folder
from gluontune.recipe import Recipe
from gluontune.recipe.result import RunResult

QUICK = Scale(train=4_000, val=2_000, test=1_500)
BUDGET = 2.0  # times the reference's own time
SLACK = 0.05  # of accuracy below the reference's
_LIMIT = 1.5  # times the budget, after which a script is ended
_SCRIPT_KIB = 256  # too small for parameters
_MOST_REPORT = 1 << 16  # bytes
_SECONDS_OF_REFERENCE = 900.0


@dataclass
class Assessment:
    """The result of an assessment.

    Args:
        script: its path. parts: one rank, then two. reference: the reference's runs, by number of ranks.
        isolated: whether the kernel kept the script from reading other files (Landlock).
        secluded: whether the kernel kept it from the network and from sockets of other programs (namespaces).
        complete: whether both parts were requested.
    """

    script: str
    parts: list[Part]
    reference: dict[str, dict[str, Any]]
    isolated: bool
    complete: bool
    skipped: str | None = None
    machine: Mapping[str, Any] = field(default_factory=dict)
    secluded: bool = True

    @property
    def passed(self) -> bool:
        """Whether every requested part has passed."""
        return bool(self.parts) and self.skipped is None and all(part.passed for part in self.parts)

    @property
    def points(self) -> float:
        return round(sum(part.points for part in self.parts), 1)

    @property
    def max_points(self) -> int:
        return 100 if self.complete else 50

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return {
            "schema_version": 1, "script": self.script, "passed": self.passed, "points": self.points,
            "max_points": self.max_points, "parts": [part.to_dict() for part in self.parts], "skipped": self.skipped,
            "reference": self.reference, "isolated": self.isolated, "secluded": self.secluded,
            "machine": dict(self.machine),
        }  # fmt: skip

    def results(self) -> dict[str, RunResult]:
        """Each part as a RunResult, for figures and ``gluontune report``."""
        found = {}
        for part in self.parts:
            recipe = Recipe(job=self.script, num_devices=part.ranks, engine="kvstore" if part.ranks > 1 else "local")
            result = RunResult(recipe.to_dict(), machine=self.machine, utilization=dict(part.series))
            result.peak_rss_mib = part.peak_rss_mib
            result.val_accuracy = [] if part.accuracy is None else [part.accuracy]
            result.elapsed_seconds = [] if part.accuracy is None or part.seconds is None else [part.seconds]
            result.epoch_seconds = list(result.elapsed_seconds)
            result.notes = [f"{c.name}: {c.feedback}" for c in part.criteria]
            found[f"{Path(self.script).stem}, {part.ranks} rank{'s' if part.ranks > 1 else ''}"] = result
        return found


def new_script(path: str | Path) -> Path:
    """Write the learner's initial script, the naive one; a UsageError if the file exists."""
    target = Path(path)
    if target.exists():
        raise UsageError(f"{target}: exists already; give the name of a new file")
    target.parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(own_folder() / "assessment" / "naive.py", target)
    return target


def solution() -> Path:
    """The path of the solution, which is also the reference."""
    return own_folder() / "assessment" / "assessment_solution.py"


def assess(
    script: str | Path,
    *,
    ranks: int | None = None,
    quick: bool = False,
    engine: str = "kvstore",
    out: str | Path = "runs/assessment",
    fresh: bool = False,
    settings: str = "tuned",
    scale: Scale | None = None,
    reference: Mapping[str, Mapping[str, float]] | None = None,
    memory_mib: int | None = None,
    on_event: Callable[[str], None] | None = None,
) -> Assessment:
    """Grade a training script; see :mod:`gluontune.course.assessment` for the rules.

    Args:
        script: the learner's Python file.
        ranks: 1 or 2 for one part; None for the whole assessment.
        quick: a third of the data, for lessons.
        engine: of two ranks: ``kvstore``, or ``horovod`` if installed.
        out: folder for ``assessment.json`` and ``reference.json``, which later assessments of this user on this
            machine with the same settings reuse. fresh: run the reference again.
        settings: environment of the processes, as a Recipe's ``runtime``: ``tuned`` or ``as-installed``.
        scale: another amount of data. reference: other goals: for ``"1"`` and ``"2"``, ``seconds``, ``accuracy`` and
            ``steadiness``.
        memory_mib: limit of all processes of the script together; default: three quarters of what is free.
        on_event: called with a line before each stage.

    Raises:
        UsageError: no such script, a script that is too large, or another number of ranks.
        GluontuneError: the reference cannot be run here.
    """
    file = Path(script).resolve()
    _check_script(file, script)
    if ranks not in (None, 1, 2):
        raise UsageError(f"ranks={ranks!r}: give 1 or 2, or leave it out for both")
    scale = scale or (QUICK if quick else Scale())
    folder = writable_folder(out)
    tell = on_event or (lambda _: None)
    memory = memory_mib or max(1024, int(0.75 * psutil.virtual_memory().available) >> 20)
    machine = runtime.machine_facts()
    key = {"scale": asdict(scale), "settings": settings, "engine": engine}
    key.update(cpu=machine["cpu"], packages=machine["packages"])
    known: dict[str, dict[str, Any]] = {} if fresh else _known(folder / "reference.json", key)
    if reference is not None:
        known = {name: dict(values) for name, values in reference.items()}
    found = Assessment(str(file), [], {}, landlock_version() > 0, ranks is None, machine=machine)
    for count in (1, 2) if ranks is None else (ranks,):
        name = "one rank" if count == 1 else "two ranks"
        if found.parts and found.parts[0].accuracy is None:
            found.skipped = f"{name}: not run, because one rank alone handed in no net"
            break
        tell(f"{name}: making data that nobody has seen")
        task, parts = FreshTask(scale), {"engine": engine, "settings": settings, "memory": memory}
        with _scratch("gluontune-assessment-") as place:
            data = place / "data"
            data.mkdir()
            facts = task.write(data, count)
            if str(count) not in known:
                tell(f"{name}: the reference runs")
                known[str(count)] = _reference(task, data, facts, parts)
                write_sealed(folder / "reference.json", {"key": key, "runs": known})
            wanted = found.reference[str(count)] = known[str(count)]
            budget = BUDGET * wanted["seconds"]
            goal = Goal(budget, wanted["accuracy"] - SLACK, wanted["steadiness"], _LIMIT * budget, memory)
            tell(f"{name}: {file.name} runs; {goal.budget_s:.0f} s are its budget")
            run, outs = _run(file, data, facts, {**parts, "seconds": goal.limit_s}, place / "script")
            found.secluded = found.secluded and run["secluded"]
            tell(f"{name}: what it handed in is examined")
            found.parts.append(grade(count, goal, run, _found(task, outs, facts), facts))
    write_json(folder / "assessment.json", found.to_dict())
    return found


@contextlib.contextmanager
def _scratch(prefix: str) -> Iterator[Path]:
    """A temporary folder for a script, removed whatever the script did to it.

    Python cannot remove folders a thousand deep, and ``rm`` no folders without permissions.
    """
    place = tempfile.mkdtemp(prefix=prefix)
    try:
        yield Path(place)
    finally:
        for command in (["chmod", "-R", "u+rwx"], ["rm", "-rf"]):
            subprocess.run([*command, "--", place], stderr=subprocess.DEVNULL, check=False)


def _check_script(file: Path, script: str | Path) -> None:
    if not file.is_file():
        raise UsageError(
            f"{script}: no such file; `gluontune assess --new {quote(str(script))}` writes one to begin with"
        )
    if file.stat().st_size > _SCRIPT_KIB << 10:
        raise UsageError(f"{script}: larger than {_SCRIPT_KIB} KiB; give the training script alone")
    try:
        compile(file.read_bytes(), str(script), "exec")
    except (SyntaxError, ValueError, MemoryError, RecursionError) as error:  # the last two: nested too deeply
        line, why = getattr(error, "lineno", None), str(error) or type(error).__name__
        raise UsageError(f"{script}{f':{line}' if line else ''}: not a Python script: {why}") from error


def _known(path: Path, key: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Valid runs of the reference: of this machine and this user."""
    saved = read_sealed(path)
    return dict(saved["runs"]) if saved is not None and saved["key"] == key else {}


def _reference(task: FreshTask, data: Path, facts: Mapping[str, Any], how: Mapping[str, Any]) -> dict[str, Any]:
    with _scratch("gluontune-reference-") as place:
        run, outs = _run(solution(), data, facts, {**how, "seconds": _SECONDS_OF_REFERENCE}, place)
        found = _found(task, outs, facts)
    if "accuracy" not in found:
        lines = [line for end in run["ranks"] for line in end["tail"].splitlines() if line.strip()]
        why = found.get("error") or (lines[-1] if lines else f"stopped by {run['stopped_by']}")
        raise GluontuneError(f"the reference does not run here: {why}")
    steadiness = run["steadiness"].get("score") or 0.0
    return {"seconds": run["seconds"], "accuracy": found["accuracy"], "steadiness": steadiness}


def _run(
    script: Path, data: Path, facts: Mapping[str, Any], how: Mapping[str, Any], place: Path
) -> tuple[dict[str, Any], list[Path]]:
    """Run a script in new folders; returns the report, and the folders with copies of the ranks' nets."""
    ranks = len(facts["train_images"])
    tasks, outs = [], []
    for rank in range(ranks):
        places = {name: str(place / f"{name}-{rank}") for name in ("home", "out", "taken")}
        for folder in (places["home"], places["out"]):
            os.makedirs(folder)
        outs.append(Path(places["taken"]))
        given = {"data": str(data / f"rank-{rank}"), "out": places["out"], "rank": rank, "ranks": ranks}
        tasks.append({**places, "data": given["data"], "env": {VARIABLE: json.dumps(given)}})
    copy = shutil.copyfile(script, place / script.name)
    limits = {"engine": how["engine"], "seconds": how["seconds"], "memory_mib": how["memory"]}
    spec = {**limits, "command": [sys.executable, str(copy)], "tasks": tasks, "read": [str(copy)]}
    env = {**runtime.child_env(how["settings"], processes=ranks), "PYTHONPATH": _search_path(script.parent)}
    return run_script(spec, env), outs


def _search_path(beside: Path) -> str:
    """``PYTHONPATH`` of a script: the grading gluontune, without the script's folder and the current one."""
    spec = importlib.util.find_spec("gluontune")
    assert spec is not None and spec.origin is not None
    own = str(Path(spec.origin).parent.parent)
    given = filter(os.path.isabs, os.environ.get("PYTHONPATH", "").split(os.pathsep))
    barred = (beside.resolve(), Path.cwd())
    return os.pathsep.join([own, *(place for place in given if Path(place).resolve() not in barred)])


def _found(task: FreshTask, outs: list[Path], facts: Mapping[str, Any]) -> dict[str, Any]:
    """Examine the saved nets; the hidden images are painted only now."""
    needed = ("net-symbol.json", "net-0000.params")
    if missing := [rank for rank, out in enumerate(outs) if not all((out / name).is_file() for name in needed)]:
        return {"missing": missing}
    probes = {"test": task.test(), **{part: task.probe(part) for part in PARTS}}
    dice = task.dice()
    images = {**{name: probe.images for name, probe in probes.items()}, "val": dice.views()}
    seen = examine(outs, images, facts)
    if "error" in seen:
        return seen
    scores = seen["scores"]
    predicted = {name: answers.argmax(1) for name, answers in scores.items()}
    traces = {part: luck(predicted[part], probes[part], facts["classes"]) for part in PARTS}
    traces["val"] = remembered(scores["val"], dice, dice.usual(scores["test"], probes["test"]))
    return {
        "accuracy": float(np.mean(predicted["test"] == probes["test"].labels)), "traces": traces,
        "samples": [_samples(out / "report.json") for out in outs],
        "forward_cpu_s": max(seen["forward_cpu_s"], 1e-9), "start_cpu_s": seen["start_cpu_s"],
        "difference": seen["difference"],
    }  # fmt: skip


def _samples(path: Path) -> int | None:
    try:
        with open(path, "rb") as stream:
            count = parse_json(stream.read(_MOST_REPORT))["samples"]
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return count if isinstance(count, int) and not isinstance(count, bool) and count >= 0 else None
