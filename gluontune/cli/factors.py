"""``gluontune factors``: cumulative and leave-one-out analysis, with interactions."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Optional

from gluontune.cli._common import (
    JSON_OPTION,
    RECORD,
    TIME_LIMIT_OPTION,
    finish,
    finish_part,
    names_of,
    option,
    say,
    stdout,
)  # fmt: skip
from gluontune.cli._progress import pieces_progress
from gluontune.core.errors import UsageError
from gluontune.recipe import Recipe


@dataclass(frozen=True)
class Compared:
    """The factors: rungs and the user's, or methods."""

    rungs: Optional[str] = option(
        None, "Rungs to analyse as factors, and stochastic-depth, comma-separated; '' for none. [default: five rungs]"
    )
    factor: Optional[list[str]] = option(None, "A factor of your own; repeatable.", metavar="NAME:FIELD=VALUE,…")
    methods_of: Optional[str] = option(
        None,
        "Compare methods of gt.methods in place of factors, by time to --target: all, or names, comma-separated.",
        "--methods",
    )
    best: int = option(3, "With --methods: so many of the best are trained together.")


def factors(
    recipe: Recipe,
    given: dict[str, Any],
    compared: Compared = RECORD,
    target: Optional[list[float]] = option(
        None, "Analyse the time to this validation accuracy, too; repeatable; default: the recipe's target_accuracy."
    ),
    repeats: int = option(1, "Runs of each set to the targets, by seed."),
    pairs: bool = option(True, "Measure each pair, for the interactions."),
    every_set: bool = option(False, "Run single factors and pairs to the targets, too."),
    full: bool = option(False, "Long slices; short ones (the quick form) by default."),
    out: Path = option(Path("factors-out"), "Folder for factors.json and factors.html."),
    resume: bool = option(False, "Go on with an interrupted analysis in --out, and with its parts."),
    part: Optional[str] = option(
        None, "This task's repeats alone, K of N: a job array's tasks. --resume then merges all.", metavar="K/N"
    ),
    time_limit: float = TIME_LIMIT_OPTION,
    as_json: bool = JSON_OPTION,
) -> int:
    """Switch factors on and off: the gain of each alone, on top of each other, and on top of all the others.

    With --methods: the gain in time to an accuracy by methods that change what is learned (mixup, averaged weights,
    squeeze-excite, Muon, …), each alone, and the best of them together.

    Throughput is measured by interleaved slices; with --target, time to accuracy by whole trainings, with DNC for sets
    that do not reach it. Each pair's gain is compared with the product of its factors' gains. The recipe's flags
    are for the base recipe, without any factor.
    """
    from gluontune import ladder, report
    from gluontune.report.factors import finish_factors
    from gluontune.search.factor_plan import parse_factor
    from gluontune.search.factors import analyse
    from gluontune.search.study import Part

    if not target and given.get("target_accuracy") is not None:
        target = [float(given["target_accuracy"])]
    recipe = recipe.override(target_accuracy=None)  # no run ends at it
    names, own = (
        names_of(compared.rungs, "--rungs", may_be_none=True),
        [parse_factor(text) for text in compared.factor or []],
    )
    if names is not None and not names and not own:
        raise UsageError("--rungs '' leaves no factor: name a rung, or give --factor")
    if compared.methods_of is not None and (names or own):
        raise UsageError("--methods and --rungs or --factor: one analysis at a time")
    if compared.methods_of is not None and len(target or []) != 1:
        raise UsageError("--methods: give one --target, such as --target 0.8")
    with pieces_progress() as show:
        how: dict[str, Any] = {"repeats": repeats, "out": out, "resume": resume, "on_event": show}
        how["part"] = None if part is None else Part.parse(part)
        if compared.methods_of is not None:
            if "loader" not in given and recipe.loader == "gluon" and recipe.job is None:
                recipe = recipe.override(loader="resident")  # most methods change pixels
            chosen = None if compared.methods_of == "all" else names_of(compared.methods_of, "--methods")
            how.update(names=chosen, target=target[0], best=compared.best)  # type: ignore[index]
            found = ladder.methods(recipe, time_limit=time_limit, **how)
        else:
            how.update(factors=names, own=own, targets=target or [], pairs=pairs, every_set=every_set)
            found = analyse(recipe, pace=ladder.FULL if full else ladder.QUICK, time_limit=time_limit, **how)
    if part is not None:
        return finish_part(found, part, as_json)
    finish_factors(found, out)

    def tell() -> None:
        for table in report.factors_tables(found):
            stdout.print(table)
        say(found["sentence"], *found.get("notes", ()))
        say(f"{out / 'factors.html'} shows it; {out / 'factors.json'} holds the figures.")

    return finish(found, as_json, tell)
