"""``gluontune monitor``: utilization and its steadiness, live or around any command."""

from __future__ import annotations

import contextlib
import sys
from pathlib import Path
from typing import Optional

import typer

from gluontune.cli import _common
from gluontune.cli._common import argument, option
from gluontune.core.errors import UsageError

_DISTURBED_PCT = 10


CONTEXT = {"allow_interspersed_args": False}  # the words after the first are another program's


def monitor(
    command: Optional[list[str]] = argument(
        None, "Run and watch it; without one, watch --pid or the machine.", metavar="[-- COMMAND…]"
    ),
    period: float = option(0.25, "Seconds from sample to sample."),
    gpus: str = option("auto", "auto, all, none, or indices such as 0,1."),
    pid: Optional[int] = option(None, "Watch this running process and its children."),
    seconds: Optional[float] = option(None, "Without a command: stop after these."),
    out: Optional[Path] = option(None, "Also write each sample to FILE.jsonl."),
    as_json: bool = _common.JSON_OPTION,
) -> None:
    """Show utilization and how steady it is, live or around any command.

    Exits 0 if the command did, 1 if it failed, 2 if there is no such command.
    """
    if command and (pid is not None or seconds is not None):
        raise UsageError("--pid and --seconds are for watching without a command; leave them or the command out")
    if seconds is not None and not seconds > 0:
        raise UsageError(f"--seconds {seconds:g}: give a number above 0")
    if not command:
        _watch(pid, period, _gpus(gpus), seconds, out, as_json)
    elif not _around(command, period, _gpus(gpus), out, as_json):
        raise typer.Exit(1)


def _gpus(text: str) -> str | list[int]:
    if text in ("auto", "all", "none"):
        return text
    parts = text.split(",")
    if not all(part.strip().isdigit() for part in parts):
        raise UsageError(f"--gpus {text!r}: give auto, all, none, or indices such as 0,1")
    return [int(part) for part in parts]


def _around(command: list[str], period: float, gpus: str | list[int], out: Optional[Path], as_json: bool) -> bool:
    from gluontune.monitor.command import run_command

    with _log(out, {"command": command}) as log:
        # With --json our stdout holds the document alone: the command's goes to stderr.
        run = run_command(command, period, gpus, on_sample=log, stdout=sys.stderr if as_json else None)
    if as_json:
        _common.emit({**run.to_dict(), "log": str(out) if out else None})
    else:
        _show(run.monitor, f"{command[0]} {run.outcome} after {run.seconds:.1f} s", out)
        if run.others_pct >= _DISTURBED_PCT:
            taken = f"other programs took {run.others_pct:.0f} % of the cores meanwhile"
            _print_lines(f"{taken}: they may be the cause of idle or unsteady phases above")
    return run.ok


def _watch(
    pid: int | None, period: float, gpus: str | list[int], seconds: float | None, out: Path | None, as_json: bool
) -> None:
    from gluontune.monitor.command import summary, watch
    from gluontune.monitor.sampler import Monitor

    target = "machine" if pid is None else pid
    with _log(out, {"pid": pid}) as log, Monitor(target, period, gpus, on_sample=log) as seen:
        watch(seen, seconds, _common.stderr)
    if as_json:
        _common.emit({"pid": pid, "log": str(out) if out else None, **summary(seen)})
    else:
        _show(seen, f"watched for {(seen.latest() or {}).get('t_s', 0):.1f} s", out)


@contextlib.contextmanager
def _log(out: Optional[Path], facts: dict):  # type: ignore[no-untyped-def,type-arg]
    from gluontune.monitor.logs import JsonLines

    with contextlib.nullcontext() if out is None else JsonLines(out, facts) as log:
        yield log


def _show(monitor: object, headline: str, out: Optional[Path]) -> None:
    from gluontune.monitor.command import closing_lines

    _print_lines(headline, *closing_lines(monitor), *([] if out is None else [f"samples: {out}"]))  # type: ignore[arg-type]


def _print_lines(*lines: str) -> None:
    _common.say(*lines, to=_common.stderr)
