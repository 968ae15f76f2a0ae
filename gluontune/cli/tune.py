"""``gluontune tune``: search the recipe that trains a job fastest here."""

from __future__ import annotations

from pathlib import Path
from shlex import quote
from typing import Any, Optional

from gluontune.cli._common import JSON_OPTION, TIME_LIMIT_OPTION, finish, names_of, numbers_of, option, say, stdout
from gluontune.cli._progress import progress_line
from gluontune.recipe import Recipe


def tune(
    recipe: Recipe,
    given: dict[str, Any],
    budget: float = option(10.0, "Time that the search may take.", metavar="MINUTES"),
    out: Path = option(Path("tune-out"), "Folder for tune.json and recipe.yaml."),
    batch_sizes: Optional[str] = option(
        None, "Try these too. Another batch size converges differently: compare the accuracy as well.", metavar="N,N"
    ),
    knobs: Optional[str] = option(None, "Turn only these, comma-separated; a wrong name shows them all."),
    slice_s: float = option(0.4, "Length of one repeat.", "--slice", metavar="SECONDS"),
    resume: bool = option(False, "Go on with an interrupted search in --out."),
    time_limit: float = TIME_LIMIT_OPTION,
    as_json: bool = JSON_OPTION,
) -> int:
    """Search threads, allocator, mode, rewrites, data type and loader for the fastest recipe here.

    The recipe's flags describe the recipe that the search starts from.
    """
    from gluontune import ladder as room
    from gluontune.report.document_types import tune_table
    from gluontune.report.study import text_tables

    sizes = numbers_of(batch_sizes, "--batch-sizes", "128,256") or []
    how: dict[str, Any] = {"knobs": names_of(knobs, "--knobs"), "slice_s": slice_s, "resume": resume, "out": out}
    with progress_line() as show:
        how.update(budget_minutes=budget, on_event=show, time_limit=time_limit)
        found = room.tune(recipe, batch_sizes=sizes, **how)

    def tell() -> None:
        stdout.print(*text_tables([tune_table(found)]))
        say(*filter(None, [found["sentence"], *found["notes"]]))
        say(f"gluontune train --recipe {quote(str(out / 'recipe.yaml'))}")

    return finish(found, as_json, tell)
