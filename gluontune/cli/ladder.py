"""``gluontune ladder``: the main job."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Optional

from gluontune.cli._common import (
    JSON_OPTION,
    TIME_LIMIT_OPTION,
    finish,
    names_of,
    option,
    say,
    show_traceback,
    stderr,
    stdout,
    stdout_reserved,
)  # fmt: skip
from gluontune.recipe import Recipe

SHORT_S = 900.0  # a climb of less time validates on fewer images


def ladder(
    recipe: Recipe,
    given: dict[str, Any],
    out: Path = option(Path("ladder-out"), "Folder for ladder.json and ladder.html."),
    quick: bool = option(False, "Short slices and one epoch, in five minutes, not an hour."),
    budget: Optional[str] = option(None, "How long the climb may take: 5m (default of --quick), 90s, 1h (default)."),
    rungs: Optional[str] = option(None, "Climb only these, comma-separated."),
    resume: bool = option(False, "Go on with an interrupted climb in --out, if there is one."),
    time_limit: float = TIME_LIMIT_OPTION,
    as_json: bool = JSON_OPTION,
) -> int:
    """Climb the ladder: measure each rung on this machine, keep what helps, say what does not.

    It ends within its budget: trainings are shortened to fit, and skipped parts are named. The
    recipe's flags describe the naive script that the climb starts from.
    """
    from gluontune import ladder as room, report
    from gluontune.report.page import finish_ladder

    pace = room.QUICK if quick else room.FULL
    if "epochs" not in given:
        recipe = recipe.override(epochs=pace.epochs)
    budget_s = room.parse_budget(budget) if budget is not None else pace.budget_s
    if "val_samples" not in given and recipe.job is None and budget_s <= SHORT_S:
        recipe = recipe.override(val_samples=room.FEW_VALIDATE)
    how: dict[str, Any] = {"out": out, "pace": pace, "budget_s": budget_s, "resume": resume, "time_limit": time_limit}
    with stdout_reserved(), report.LiveLadder(stderr if as_json else stdout) as live:
        found = room.climb(recipe, rungs=names_of(rungs, "--rungs"), on_event=live.on_event, **how)
    for row in found["rungs"]:
        show_traceback(row["error"])
    finish_ladder(found, out)

    def tell() -> None:
        stdout.print(report.ladder_table(found))
        stdout.print(found["sentence"])
        say(f"{out / 'ladder.html'} shows it all; {out / 'ladder.json'} holds the figures.")
        if files := found.get("files"):
            script = f"{out / 'best.py'} is a script with it" if files["script"] else f"no best.py: {files['reason']}"
            say(f"{out / 'best.yaml'} is the recipe that was found; {script}.")

    return finish(found, as_json, tell, found["best"] is not None)
