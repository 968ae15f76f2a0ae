"""``gluontune ladder``: the main job."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Optional

from gluontune.cli._common import (
    JSON_OPTION,
    TIME_LIMIT_OPTION,
    argument,
    finish,
    names_of,
    option,
    say,
    show_traceback,
    stderr,
    stdout,
    stdout_reserved,
)  # fmt: skip
from gluontune.core.errors import UsageError
from gluontune.recipe import Recipe

SHORT_S = 900.0  # a climb of less time validates on fewer images


def ladder(
    recipe: Recipe,
    given: dict[str, Any],
    words: Optional[list[str]] = argument(
        None, "A Gluon script, unchanged, and its own words; left out: a recipe.", metavar="[SCRIPT [-- ARGS…]]"
    ),
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
    recipe's flags describe the naive script that the climb starts from. A script of your own is
    climbed with instead, unchanged: its batch, rate and length stay, and best.sh runs it faster.
    """
    from gluontune import ladder as room, report
    from gluontune.report.page import finish_ladder

    pace = room.QUICK if quick else room.FULL
    if words:
        _check_script(given, resume)
    if "epochs" not in given:
        recipe = recipe.override(epochs=pace.epochs)
    budget_s = room.parse_budget(budget) if budget is not None else pace.budget_s
    if "val_samples" not in given and recipe.job is None and budget_s <= SHORT_S:
        recipe = recipe.override(val_samples=room.FEW_VALIDATE)
    how: dict[str, Any] = {"out": out, "pace": pace, "budget_s": budget_s, "resume": resume, "time_limit": time_limit}
    with stdout_reserved(), report.LiveLadder(stderr if as_json else stdout) as live:
        how.update(rungs=names_of(rungs, "--rungs"), on_event=live.on_event)
        if words:
            del how["resume"]
            found = room.climb_script(words, dtype=recipe.dtype, **how)
        else:
            found = room.climb(recipe, **how)
    for row in found["rungs"]:
        show_traceback(row["error"])
    finish_ladder(found, out)

    def tell() -> None:
        stdout.print(report.ladder_table(found))
        stdout.print(found["sentence"])
        say(f"{out / 'ladder.html'} shows it all; {out / 'ladder.json'} holds the figures.")
        if words and found["best"] is not None:
            if found["best"]["name"] != "naive":
                say(f"Run it so: {found['best']['command']}")
        elif files := found.get("files"):
            script = f"{out / 'best.py'} is a script with it" if files["script"] else f"no best.py: {files['reason']}"
            say(f"{out / 'best.yaml'} is the recipe that was found; {script}.")

    return finish(found, as_json, tell, found["best"] is not None)


def _check_script(given: dict[str, Any], resume: bool) -> None:
    """Refuse what a script's climb has no use for.

    Raises:
        UsageError: a recipe's flag beside ``--dtype``, or ``--resume``.
    """
    if resume:
        raise UsageError("--resume: a climb with a script begins anew; leave it out")
    for name in given:
        if name != "dtype":
            flag = f"--{name.replace('_', '-')}"
            raise UsageError(f"{flag}: a script has no recipe; its own words go behind --, as in train.py -- {flag} …")
    if given.get("dtype", "float32") not in ("float32", "bfloat16"):
        raise UsageError(f"--dtype {given['dtype']!r}: a script computes in float32 or bfloat16")
