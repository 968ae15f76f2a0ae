"""``gluontune ladder``: the main job."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Optional

import typer

from gluontune.cli._common import (
    JSON_OPTION,
    TIME_LIMIT_OPTION,
    emit,
    names_of,
    show_traceback,
    stderr,
    stdout,
    stdout_reserved,
)
from gluontune.cli._recipe import takes_recipe
from gluontune.recipe import Recipe

__all__ = ["register"]

SHORT_S = 900.0  # a climb of less time validates on fewer images


def register(app: typer.Typer) -> None:
    app.command("ladder", help=ladder.__doc__)(takes_recipe(ladder))


def ladder(
    recipe: Recipe,
    given: dict[str, Any],
    out: Path = typer.Option(Path("ladder-out"), "--out", help="Folder for ladder.json and ladder.html."),
    quick: bool = typer.Option(False, "--quick", help="Short slices and one epoch, in five minutes, not an hour."),
    budget: Optional[str] = typer.Option(
        None, "--budget", help="How long the climb may take: 5m (default of --quick), 90s, 1h (default)."
    ),
    rungs: Optional[str] = typer.Option(None, "--rungs", help="Climb only these, comma-separated."),
    resume: bool = typer.Option(False, "--resume", help="Go on with an interrupted climb in --out, if there is one."),
    time_limit: float = TIME_LIMIT_OPTION,
    as_json: bool = JSON_OPTION,
) -> int:
    """Climb the ladder: measure each rung on this machine, keep what helps, say what does not.

    It ends within its budget: trainings are shortened to fit, and what there is no time for is said. The flags
    below describe the naive script that the climb starts from.
    """
    from gluontune import ladder as room
    from gluontune import report
    from gluontune.report.page import finish_ladder

    pace = room.QUICK if quick else room.FULL
    if "epochs" not in given:
        recipe = recipe.override(epochs=pace.epochs)
    budget_s = room.parse_budget(budget) if budget is not None else pace.budget_s
    if "val_samples" not in given and recipe.job is None and budget_s <= SHORT_S:
        recipe = recipe.override(val_samples=room.FEW_VALIDATE)
    names = names_of(rungs, "--rungs")
    with stdout_reserved(), report.LiveLadder(stderr if as_json else stdout) as live:
        found = room.climb(
            recipe,
            out=out,
            pace=pace,
            budget_s=budget_s,
            rungs=names,
            resume=resume,
            on_event=live.on_event,
            time_limit=time_limit,
        )
    for row in found["rungs"]:
        show_traceback(row["error"])
    finish_ladder(found, out)
    if as_json:
        emit(found)
    else:
        stdout.print(report.ladder_table(found))
        stdout.print(found["sentence"], markup=False)
        stdout.print(f"{out / 'ladder.html'} shows it all; {out / 'ladder.json'} holds the figures.", markup=False)
        if files := found.get("files"):
            script = f"{out / 'best.py'} is a script with it" if files["script"] else f"no best.py: {files['reason']}"
            stdout.print(f"{out / 'best.yaml'} is the recipe that was found; {script}.", markup=False, soft_wrap=True)
    if not found["complete"]:
        stderr.print("interrupted: the same command with --resume goes on", markup=False)
        return 130
    return 0 if found["best"] is not None else 1
