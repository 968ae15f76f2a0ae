"""``gluontune tune``: search the recipe that trains a job fastest here."""

from __future__ import annotations

from pathlib import Path
from shlex import quote
from typing import Any, Optional

import typer
from rich.table import Table
from rich.text import Text

from gluontune import stats
from gluontune.cli._common import JSON_OPTION, TIME_LIMIT_OPTION, emit, names_of, stderr, stdout, stdout_reserved
from gluontune.cli._progress import progress_line
from gluontune.cli._recipe import takes_recipe
from gluontune.errors import UsageError
from gluontune.recipe import Recipe

__all__ = ["register"]


def register(app: typer.Typer) -> None:
    app.command("tune", help=tune.__doc__)(takes_recipe(tune))


def tune(
    recipe: Recipe,
    given: dict[str, Any],
    budget: float = typer.Option(10.0, "--budget", metavar="MINUTES", help="Time that the search may take."),
    out: Path = typer.Option(Path("tune-out"), "--out", help="Folder for tune.json and recipe.yaml."),
    batch_sizes: Optional[str] = typer.Option(
        None,
        "--batch-sizes",
        metavar="N,N",
        help="Try these too. Another batch size converges differently: compare the accuracy as well.",
    ),
    knobs: Optional[str] = typer.Option(
        None, "--knobs", help="Turn only these, comma-separated; a wrong name shows them all."
    ),
    slice_s: float = typer.Option(0.4, "--slice", metavar="SECONDS", help="Length of one repeat."),
    resume: bool = typer.Option(False, "--resume", help="Go on with an interrupted search in --out."),
    time_limit: float = TIME_LIMIT_OPTION,
    as_json: bool = JSON_OPTION,
) -> int:
    """Search threads, allocator, mode, rewrites, data type and loader for the fastest recipe here.

    The flags below describe the recipe that the search starts from.
    """
    from gluontune import ladder as room

    with stdout_reserved(), progress_line() as show:
        found = room.tune(
            recipe,
            budget_minutes=budget,
            out=out,
            batch_sizes=_numbers(batch_sizes),
            knobs=names_of(knobs, "--knobs"),
            slice_s=slice_s,
            resume=resume,
            on_event=show,
            time_limit=time_limit,
        )
    if as_json:
        emit(found)
    else:
        _show(found, out)
    if not found["complete"]:
        stderr.print("interrupted: the same command with --resume goes on", markup=False)
        return 130
    return 0


def _numbers(text: str | None) -> list[int]:
    try:
        return [int(part) for part in names_of(text, "--batch-sizes") or []]
    except ValueError:
        raise UsageError(f"--batch-sizes {text!r}: give whole numbers, such as 128,256") from None


def _show(found: dict[str, Any], out: Path) -> None:
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("knob", no_wrap=True)
    table.add_column("tried", overflow="fold")
    for heading in ("samples/s", "95 %", "× start", "out in heat"):
        table.add_column(heading, justify="right", no_wrap=True)
    for row in found["tried"]:
        name = Text(row["label"], style="bold green" if row["kept"] else "")
        if row["samples_per_sec"] is None:
            name.append(f"  {row['status']}: {row['reason']}", style="red" if row["status"] == "failed" else "dim")
            table.add_row(row["stage"], name)
            continue
        if row["remark"]:
            name.append(f"  ({row['remark']})", style="dim")
        around = stats.bounds(row["samples_per_sec"])
        table.add_row(
            row["stage"],
            name,
            f"{row['samples_per_sec']['median']:,.0f}",
            f"{around[0]:,.0f}–{around[1]:,.0f}" if around else "",
            f"{row['speedup_vs_start']:.2f}",
            str(row["round_eliminated"] or ""),
        )
    stdout.print(table)
    for line in [found["sentence"], *found["notes"]]:
        if line:
            stdout.print(line, markup=False, highlight=False)
    stdout.print(
        f"gluontune train --recipe {quote(str(out / 'recipe.yaml'))}", markup=False, highlight=False, soft_wrap=True
    )
