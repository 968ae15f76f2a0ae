"""What a Gluon script goes through in ``gluontune bench scripts``: a stage is one function under :func:`stage`.

Every command runs in a process group of its own with a time limit, in the script's folder and environment; what it
prints goes to a file.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gluontune.capture.script import CHANGES, DECIDED, Program, command
from gluontune.core.errors import clean
from gluontune.core.interpreter import python
from gluontune.core.processes import last_words, session
from gluontune.core.stats import interval, ratio_interval
from gluontune.search.measure import ScriptContender, interleave
from gluontune.search.script_climb import NOT_A_JOB, gap_of
from gluontune.training.starting import ScriptRun

_ESCAPE = re.compile(r"\x1b\[[0-9;?]*[ -/]*[@-~]")
_TAIL = 8000  # bytes of what a script printed, for its last line
_ROUNDS, _SLICE_S = 9, 0.7  # slices of a contender in turn, and how long one is
_CATCH_UP_S = 60.0  # at most, to begin at the same step as the others
_LOSSES = 50  # first losses that are compared


@dataclass(frozen=True)
class Script:
    """A script and how it is started; ``env`` are variables beside those of the caller."""

    name: str
    path: str
    argv: tuple[str, ...] = ()
    cwd: str = ""
    env: tuple[tuple[str, str], ...] = ()
    note: str = ""

    def command(self) -> dict[str, Any]:
        """What decides its outcome, as plain values."""
        return {"path": self.path, "argv": list(self.argv), "cwd": self.cwd, "env": dict(self.env)}


@dataclass(frozen=True)
class Site:
    """Where the stages of a script work; ``before`` are the earlier stages' results."""

    folder: Path | None
    time_limit: float
    before: Mapping[str, Mapping[str, Any]]

    def run(self, script: Script, command: Sequence[str], log: str) -> dict[str, Any]:
        """Run a command in the script's folder and environment; the file ``log`` gets what it prints.

        Returns ``{"status": "ok" | "failed" | "over the time limit", "exit", "seconds", "cpu_seconds", "last"}``;
        ``last`` is the last line printed, or the error that ended it.
        """
        begun, worked = time.monotonic(), _worked()
        with tempfile.TemporaryFile() if self.folder is None else (self.folder / f"{log}.log").open("w+b") as printed:
            code, how = None, {"cwd": script.cwd, "env": {**os.environ, **dict(script.env)}}
            timed_out = contextlib.suppress(subprocess.TimeoutExpired)
            with session(command, stdout=printed, stderr=subprocess.STDOUT, **how) as process, timed_out:
                code = process.wait(self.time_limit)
            seconds, used = time.monotonic() - begun, _worked() - worked
            printed.seek(max(0, printed.seek(0, os.SEEK_END) - _TAIL))
            said = _ESCAPE.sub("", printed.read().decode("utf-8", "replace"))
        lines = [line for line in said.splitlines() if line.strip()]
        last = last_words(said) if code else (lines or [""])[-1]
        status = "over the time limit" if code is None else "failed" if code else "ok"
        times = {"seconds": round(seconds, 3), "cpu_seconds": round(used, 3)}
        return {"status": status, "exit": code, **times, "last": clean(last, 200)}


def _worked() -> float:
    """Seconds of the processor in children that have ended. ``os.times()`` counts hundredths: a script may take one."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


Stage = Callable[[Script, Site], dict[str, Any]]
#: The columns of the table, in their order. What a stage returns has at least ``status`` (``ok``, ``refused``,
#: ``failed``, …) and ``last``, and ``cell`` where the table is to show something else than seconds or the status.
STAGES: dict[str, Stage] = {}


def stage(name: str) -> Callable[[Stage], Stage]:
    return lambda function: STAGES.setdefault(name, function)


@stage("as is")
def as_is(script: Script, site: Site) -> dict[str, Any]:
    """The script by this Python, without gluontune."""
    return site.run(script, [sys.executable, script.path, *script.argv], "as-is")


@stage("captured")
def captured(script: Script, site: Site) -> dict[str, Any]:
    """The proof of its first 20 training steps: PyTorch computes what MXNet computes, in float64."""
    with tempfile.TemporaryDirectory(prefix="gluontune-") as folder:
        out = Path(folder, "capture.json")
        options = json.dumps({"out": str(out), "steps": 20})
        program = Program(script.path, script.argv)
        done = site.run(script, command(program, "gluontune.capture.capturing", options), "captured")
        if not out.exists():
            return {**done, "status": "failed" if done["status"] == "ok" else done["status"]}
        found = json.loads(out.read_text("utf-8"))
    gaps = list((found["gaps_float64"] or {"": None}).values())
    kinds = {"kinds": len(found["kinds"]), "steps": found["steps"], "gap": None if None in gaps else max(gaps)}
    if found["refused"]:
        return {**done, **kinds, "status": "refused", "last": clean(found["refused"], 200)}
    return {**done, **kinds, "status": "ok", "cell": f"{max(gaps):.0e} in {found['steps_float64']} steps"}


@stage("torch")
def on_torch(script: Script, site: Site) -> dict[str, Any]:
    """The whole script with PyTorch's arithmetic, once a step is proven: ``gluontune run --backend torch``."""
    with tempfile.TemporaryDirectory(prefix="gluontune-") as folder:
        out = Path(folder, "run.json")
        words = ["run", "--backend", "torch", "--out", str(out), script.path, *script.argv]
        done = site.run(script, python("-m", "gluontune", *words), "torch")
        found = json.loads(out.read_text("utf-8")) if out.exists() else {}
    moved = found.get("steps_on_torch", 0)
    told = {"steps": found.get("steps", 0), "steps_on_torch": moved}
    if done["status"] == "ok" and not moved:
        return {**done, **told, "status": "refused", "last": clean(found.get("why_not", ""), 200)}
    return {**done, **told, "cell": f"{moved} of {told['steps']} steps, {done['seconds']:.0f} s"}


@stage("in turn")
def in_turn(script: Script, site: Site) -> dict[str, Any]:
    """Slices of its training: as it is, as ``gluontune run`` keeps it, and with PyTorch's arithmetic.

    ``ratios`` are those of steps a second to the script as it is; ``losses`` of the first steps (50 at most): how many
    were compared, the largest relative gap, and what rounding explains of it. Where that is not all, ``again`` is the
    script as it is, begun once more: does it repeat itself?
    """
    folder = None if site.folder is None else site.folder / "in-turn"
    as_it_is = ScriptRun((script.path, *script.argv), env=dict(script.env), look=_LOSSES)
    ways = {"as is": as_it_is}
    for backend, changes in (("mxnet", tuple(CHANGES)), ("torch", ("samples",))):
        tuned = as_it_is.override(runtime="tuned", changes=changes, state=DECIDED, backend=backend)
        ways["run" if backend == "mxnet" else backend] = tuned
    field = {name: ScriptContender(run, name, site.time_limit, folder) for name, run in ways.items()}
    before = os.getcwd()
    os.chdir(script.cwd)
    try:
        for contender in field.values():  # each by itself: contests in place want the machine alone
            contender.launch()
            contender.warm_up(_SLICE_S)
        playing = [c for c in field.values() if c.failure is None]
        if not field["as is"].failure:
            _abreast(field["as is"], playing)
            interleave(playing, rounds=_ROUNDS, slice_s=_SLICE_S)
        found = judged(field)
        losses = found.get("losses", {})
        if any(each["gap"] is not None and each["gap"] > each["allowed"] for each in losses.values()):
            field["again"] = ScriptContender(as_it_is, "as is, again", site.time_limit, folder)
            field["again"].launch()
            field["again"].warm_up(_SLICE_S)
            losses.update(_losses(field, ["again"]))
        return found
    finally:
        os.chdir(before)
        for contender in field.values():
            contender.close()


def _abreast(naive: ScriptContender, playing: Sequence[ScriptContender]) -> None:
    """Slices are the same steps of the script for all: some are longer than others, and some hold an evaluation."""
    furthest = max(contender.at for contender in playing)
    for contender in playing:
        if (furthest - contender.at) * naive.step_s < _CATCH_UP_S:
            contender.go_to(furthest)
        contender.keep_step_with(naive)


def judged(field: Mapping[str, ScriptContender]) -> dict[str, Any]:
    """What the contest of a script's ways came to; ``as is`` is one of them."""
    naive, others = field["as is"], {name: c for name, c in field.items() if name != "as is"}
    failures = {name: clean(c.failure.message, 200) for name, c in field.items() if c.failure is not None}
    if naive.failure is not None or len(failures) == len(field):
        status = "refused" if naive.failure and naive.failure.kind in NOT_A_JOB else "failed"
        return {"status": status, "failures": failures, "last": failures.get("as is", "")}
    measured = {name: c for name, c in others.items() if name not in failures}
    ratios = {name: ratio_interval(c.rates, naive.rates) for name, c in measured.items()}
    return {
        "status": "ok", "cell": ", ".join(f"{name} {found['median']:.2f} ×" for name, found in ratios.items()),
        "ratios": ratios, "failures": failures, "last": "; ".join(failures.values()),
        "losses": _losses(field, measured),
        "samples_per_s": {name: interval(c.rates) for name, c in field.items() if c.rates},
        "changed": {name: c.seen.get("changed") for name, c in measured.items()},
        "draws": bool("torch" in measured and measured["torch"].seen.get("draws")),
    }  # fmt: skip


def _losses(field: Mapping[str, ScriptContender], names: Iterable[str]) -> dict[str, dict[str, Any]]:
    naive = field["as is"].losses[:_LOSSES]
    gaps = {name: gap_of(naive, field[name].losses[:_LOSSES]) for name in names}
    return {name: dict(zip(("gap", "allowed", "steps"), found)) for name, found in gaps.items()}


@stage("migrated")
def migrated(script: Script, site: Site) -> dict[str, Any]:
    """The whole script as a PyTorch project, whose check runs without mxnet and gluontune: ``gluontune migrate``."""
    with tempfile.TemporaryDirectory(prefix="gluontune-") as folder:
        out = Path(folder, "project")
        words = ["migrate", script.path, str(out), "--", *script.argv]
        done = site.run(script, python("-m", "gluontune", *words), "migrated")
        if done["status"] != "ok":
            refused = done["exit"] == 1 and not out.exists()
            return {**done, "status": "refused" if refused else done["status"]}
        words = python("-m", "ruff", "check", "--isolated", ".")
        linted = subprocess.run(words, cwd=out, capture_output=True, text=True)
        by_hand = sum("BY HAND" in line for line in (out / "data.py").read_text("utf-8").splitlines())
    there = "No module named" not in linted.stderr
    if linted.returncode and there and (faults := last_words(linted.stdout)):
        return {**done, "status": "failed", "last": faults}
    return {**done, "by_hand": by_hand, "cell": "checked" if not by_hand else f"checked, {by_hand} by hand"}
