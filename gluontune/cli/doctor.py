"""``gluontune doctor``: checks whether MXNet works on this machine, at full speed."""

from __future__ import annotations

import dataclasses
import shlex
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Optional

import typer
from rich.text import Text

from gluontune.cli._common import JSON_OPTION, argument, deliver, emit, option, parse_settings, say
from gluontune.cli._progress import status_line
from gluontune.core.errors import UsageError

if TYPE_CHECKING:
    from gluontune.runtime.doctor import Finding
    from gluontune.training.diagnosis import Examination

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
) -> None:
    """Check installation, GPUs and machine; say what to mend. Exits with 1 if it finds an error.

    With --job or --net: profile a training step, and name its slowest path and the cure in one sentence. With a script:
    run its first steps, unchanged, and say where their time goes and what gluontune run can do about it.
    """
    if words:
        _examine_script(words, as_json)
        return
    if job is not None or net is not None:
        _examine_job(job, net, fields or [], as_json)
        return
    if fields:
        raise UsageError("--set belongs to --job or --net")
    if settings:
        _show_settings(processes, as_json)
    if install_kernel:
        _install_kernel(as_json)
    if not settings and not install_kernel:
        _examine(data, only or [], as_json, everything or bool(only))


def _examine(data: Path | None, only: list[str], as_json: bool, everything: bool) -> None:
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
    if any(finding.severity == "error" for finding in findings):
        raise typer.Exit(1)


def _examine_job(job: str | None, net: str | None, fields: list[str], as_json: bool) -> None:
    from gluontune.recipe import Recipe
    from gluontune.training.diagnosis import examine

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
        found = examine(Recipe.from_dict(given, source="--set"), step=step, say=tell)
    _show_examination(found, as_json)


def _examine_script(words: list[str], as_json: bool) -> None:
    from gluontune.training.diagnosis import examine_script

    with status_line() as tell:
        found = examine_script(words, say=tell)
    _show_examination(found, as_json)


def _show_examination(found: Examination, as_json: bool) -> None:
    from gluontune.runtime.doctor import Finding

    def show() -> None:
        _print([Finding(**finding) for finding in found.findings])
        say(f"\n{found.sentence}")

    deliver(dataclasses.asdict(found), as_json, show)
    if any(finding["severity"] == "error" for finding in found.findings):
        raise typer.Exit(1)


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
    from gluontune.runtime import launch_settings

    found = launch_settings(processes)
    if as_json:
        emit({"settings": [row._asdict() for row in found.rows], "cpus": list(found.cpu_lists)})
        return
    for row in found.rows:
        print(f"export {row.name}={shlex.quote(row.value)}  # {row.why}")
    for rank, cpus in enumerate(found.cpu_lists):
        print(f"# local rank {rank}: taskset -c {cpus}")


def _install_kernel(as_json: bool) -> None:
    from gluontune.runtime import install_kernel

    folder = install_kernel()
    text = f"Jupyter kernel 'gluontune' is in {folder}: choose 'Python 3 (gluontune)' in JupyterLab,"
    how = "or run a notebook with: papermill -k gluontune NOTEBOOK.ipynb OUT.ipynb"
    deliver({"kernel": str(folder)}, as_json, lambda: say(text, how))
