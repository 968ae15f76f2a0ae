"""The machine: ``doctor`` checks it, ``monitor`` watches it."""

from __future__ import annotations

import contextlib
import dataclasses
import shlex
import sys
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Optional

from rich.text import Text

from gluontune import runtime
from gluontune.cli._common import deliver, emit, say, stderr
from gluontune.cli._options import JSON_OPTION, argument, option
from gluontune.cli._progress import status_line
from gluontune.cli._recipe import parse_settings
from gluontune.core.errors import UsageError

if TYPE_CHECKING:
    from gluontune.runtime.doctor import Finding

_STYLES = {"ok": "green", "info": "blue", "warning": "yellow", "error": "bold red"}


def doctor(
    words: Optional[list[str]] = argument(
        None, "A Gluon script and its own words: where a step's time goes.", metavar="[SCRIPT [-- ARGS…]]"
    ),
    as_json: bool = JSON_OPTION,
    data: Optional[Path] = option(None, "Folder or file of your training data [default: GLUONTUNE_DATA or the cache]."),
    only: Optional[list[str]] = option(None, "Run this check alone; may be given several times.", metavar="ID"),
    everything: bool = option(False, "Show the checks that found nothing wrong, too.", "--all"),
    settings: bool = option(False, 'Show the launch settings: eval "$(gluontune doctor --settings)".'),
    processes: int = option(1, "With --settings: training processes that share this machine.", metavar="N"),
    install_kernel: bool = option(False, "Register a Jupyter kernel 'gluontune' with the launch settings."),
    job: Optional[str] = option(None, "Profile this job, or the step that STEP() returns.", metavar="JOB.py[:STEP]"),
    net: Optional[str] = option(None, "Profile this net of the zoo instead."),
    fields: Optional[list[str]] = option(
        None, "With --job or --net: FIELD=VALUE of the recipe, such as dtype=bfloat16.", "--set"
    ),
) -> int:
    """Check installation, GPUs and machine; say what to mend. Exits with 1 if it finds an error.

    With --job or --net: profile a training step, and name its slowest path and the cure in one sentence. With a script:
    run its first steps, unchanged, and say where their time goes and what gluontune run can do about it.
    """
    if words or job is not None or net is not None:
        return _examine(words, job, net, fields or [], as_json)
    if fields:
        raise UsageError("--set belongs to --job or --net")
    if settings:
        _show_settings(processes, as_json)
    if install_kernel:
        _install_kernel(as_json)
    if settings or install_kernel:
        return 0
    return _check(data, only or [], as_json, everything or bool(only))


def _check(data: Path | None, only: list[str], as_json: bool, everything: bool) -> int:
    from gluontune.runtime.doctor import Options, iter_checks

    findings = []
    with status_line("checking …") as tell:
        for entry, finding in iter_checks(options=Options(data=data), only=only):
            tell(f"checked: {entry.title}")
            findings.append(finding)
    shown = [f for f in findings if everything or f.severity != "ok"]

    def show() -> None:
        _print(shown)
        say(_summary(findings, folded=len(shown) < len(findings)))

    deliver({"findings": [finding.to_dict() for finding in findings]}, as_json, show)
    return int(any(finding.severity == "error" for finding in findings))


def _examine(words: list[str] | None, job: str | None, net: str | None, fields: list[str], as_json: bool) -> int:
    """Profile a training step: of a script, or of a job or a net."""
    from gluontune.recipe import Recipe
    from gluontune.runtime.doctor import Finding
    from gluontune.training.diagnosis import examine, examine_script

    given = {"hybridize": "static", **parse_settings(fields)}
    step = None
    if net is not None:
        given["net"] = net
    if job is not None:
        file, colon, name = job.rpartition(":")
        if colon and file.endswith(".py"):
            job, step = file, name
        given["job"] = job
    with status_line() as tell:
        if words:
            found = examine_script(words, say=tell)
        else:
            found = examine(Recipe.from_dict(given, source="--set"), step=step, say=tell)

    def show() -> None:
        _print([Finding(**finding) for finding in found.findings])
        say(f"\n{found.sentence}")

    deliver(dataclasses.asdict(found), as_json, show)
    return int(any(finding["severity"] == "error" for finding in found.findings))


def _print(findings: list[Finding]) -> None:
    """Print the findings, the most important first; commands stay on one line, to be copied."""
    from gluontune.runtime.doctor import SEVERITIES

    for finding in sorted(findings, key=lambda f: -SEVERITIES.index(f.severity)):
        head = Text.assemble((f"{finding.severity:7}", _STYLES[finding.severity]), f"  {finding.id}: {finding.message}")
        if finding.evidence and finding.severity == "ok":
            head.append(f" ({finding.evidence})", style="dim")
        lines = [head]
        if finding.evidence and finding.severity != "ok":
            lines.append(Text(f"    seen: {finding.evidence}", style="dim"))
        if finding.fix and finding.severity != "ok" and not finding.fix.startswith("nothing to mend"):
            lines.append(Text(f"    mend: {finding.fix}", style="bold"))
        say(*lines)


def _summary(findings: list[Finding], folded: bool) -> str:
    count = Counter(finding.severity for finding in findings)
    errors, warnings = count["error"], count["warning"]
    counted = f"{len(findings)} check{'s' * (len(findings) != 1)}: {errors} error{'s' * (errors != 1)}, "
    counted += f"{warnings} warning{'s' * (warnings != 1)}, {count['info']} to know, {count['ok']} ok"
    counted += " (--all shows them)" if folded else ""
    advice = "Mend the errors first: the parts that they name cannot work." if errors else "gluontune works here."
    return f"\n{counted}. {advice}"


def _show_settings(processes: int, as_json: bool) -> None:
    found = runtime.launch_settings(processes)
    if as_json:
        emit({"settings": [row._asdict() for row in found.rows], "cpus": list(found.cpu_lists)})
        return
    for row in found.rows:
        print(f"export {row.name}={shlex.quote(row.value)}  # {row.why}")
    for rank, cpus in enumerate(found.cpu_lists):
        print(f"# local rank {rank}: taskset -c {cpus}")


def _install_kernel(as_json: bool) -> None:
    folder = runtime.install_kernel()
    text = f"Jupyter kernel 'gluontune' is in {folder}: choose 'Python 3 (gluontune)' in JupyterLab,"
    how = "or run a notebook with: papermill -k gluontune NOTEBOOK.ipynb OUT.ipynb"
    deliver({"kernel": str(folder)}, as_json, lambda: say(text, how))


_DISTURBED_PCT = 10


def monitor(
    command: Optional[list[str]] = argument(
        None, "Run and watch it; without one, watch --pid or the machine.", metavar="[-- COMMAND…]"
    ),
    period: float = option(0.25, "Seconds from sample to sample."),
    gpus: str = option("auto", "auto, all, none, or indices such as 0,1."),
    pid: Optional[int] = option(None, "Watch this running process and its children."),
    seconds: Optional[float] = option(None, "Without a command: stop after these."),
    out: Optional[Path] = option(None, "Also write each sample to FILE.jsonl."),
    as_json: bool = JSON_OPTION,
) -> int:
    """Show utilization and how steady it is, live or around any command.

    Exits 0 if the command did, 1 if it failed, 2 if there is no such command.
    """
    from gluontune.monitor.command import closing_lines, run_command, summary, watch
    from gluontune.monitor.logs import JsonLines
    from gluontune.monitor.sampler import Monitor

    if command and (pid is not None or seconds is not None):
        raise UsageError("--pid and --seconds are for watching without a command; leave them or the command out")
    if seconds is not None and not seconds > 0:
        raise UsageError(f"--seconds {seconds:g}: give a number above 0")
    devices, log_file, failed = _gpus(gpus), str(out) if out else None, False
    end = [] if out is None else [f"samples: {out}"]
    facts = {"command": command} if command else {"pid": pid}
    with contextlib.nullcontext() if out is None else JsonLines(out, facts) as log:
        if command:
            # With --json our stdout holds the document alone: the command's goes to stderr.
            run = run_command(command, period, devices, on_sample=log, stdout=sys.stderr if as_json else None)
            seen, failed, document = run.monitor, not run.ok, {**run.to_dict(), "log": log_file}
            begin = f"{command[0]} {run.outcome} after {run.seconds:.1f} s"
            if run.others_pct >= _DISTURBED_PCT:
                taken = f"other programs took {run.others_pct:.0f} % of the cores meanwhile"
                end.append(f"{taken}: they may be the cause of idle or unsteady phases above")
        else:
            with Monitor("machine" if pid is None else pid, period, devices, on_sample=log) as seen:
                watch(seen, seconds, stderr)
            document = {"pid": pid, "log": log_file, **summary(seen)}
            begin = f"watched for {(seen.latest() or {}).get('t_s', 0):.1f} s"
    deliver(document, as_json, lambda: say(begin, *closing_lines(seen), *end, to=stderr))
    return int(failed)


def _gpus(text: str) -> str | list[int]:
    if text in ("auto", "all", "none"):
        return text
    parts = text.split(",")
    if not all(part.strip().isdigit() for part in parts):
        raise UsageError(f"--gpus {text!r}: give auto, all, none, or indices such as 0,1")
    return [int(part) for part in parts]


COMMANDS = (doctor, monitor)
