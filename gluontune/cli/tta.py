"""``gluontune tta``: time to accuracy over repeats."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Optional

import typer

from gluontune.cli._common import (
    JSON_OPTION,
    TIME_LIMIT_OPTION,
    emit,
    names_of,
    parse_settings,
    stderr,
    stdout,
    stdout_reserved,
)
from gluontune.cli._recipe import takes_recipe
from gluontune.cli._study import study_progress
from gluontune.errors import UsageError
from gluontune.recipe import Recipe

__all__ = ["register"]


def register(app: typer.Typer) -> None:
    app.command("tta", help=tta.__doc__)(takes_recipe(tta))


def tta(
    recipe: Recipe,
    given: dict[str, Any],
    target: Optional[float] = typer.Option(
        None, "--target", help="Validation accuracy to reach, 0 … 1; default: the recipe file's target_accuracy."
    ),
    repeats: int = typer.Option(5, "--repeats", help="Runs of each recipe, each with a seed of its own."),
    seeds: Optional[str] = typer.Option(None, "--seeds", help="Their seeds, comma-separated: --seeds 0,1,2"),
    against: Optional[Path] = typer.Option(
        None, "--against", metavar="RECIPE.yaml", help="A second recipe, run in turn; gives the ratio of times."
    ),
    against_torch: bool = typer.Option(
        False, "--against-torch", help="The same training by PyTorch (make peers), run in turn."
    ),
    torch_mode: Optional[str] = typer.Option(
        None, "--torch-mode", help="eager or compile, with or without channels_last (default: the fastest)."
    ),
    torch_set: Optional[list[str]] = typer.Option(
        None, "--torch-set", help="FIELD=VALUE that suits PyTorch better, such as its rate; repeatable."
    ),
    against_peer: Optional[str] = typer.Option(
        None,
        "--against-peer",
        metavar="SCRIPT",
        help="A training script of yours, with arguments, run in turn: it prints a line "
        '{"seconds": 61.5, "accuracy": 0.91} after each validation.',
    ),
    peers: Optional[Path] = typer.Option(
        None, "--peers", help="The peers' environment (default: .peers, from make peers; of a script: this one)."
    ),
    stop_at_target: bool = typer.Option(
        False, "--stop-at-target", help="End each run at its first crossing: quicker, no sustained one."
    ),
    prices: Optional[Path] = typer.Option(
        None, "--prices", help="YAML table of prices per hour; gives dollars to the target."
    ),
    machine: Optional[str] = typer.Option(None, "--machine", help="Which machine of --prices this is."),
    beside: Optional[list[Path]] = typer.Option(
        None, "--beside", help="Another tta.json (another machine's) on the cost plot; repeatable."
    ),
    author: str = typer.Option("unnamed", "--author", help="Author in the DAWNBench and MLPerf files."),
    author_email: str = typer.Option("", "--author-email", help="For the DAWNBench file."),
    out: Path = typer.Option(Path("tta-out"), "--out", help="Folder for tta.json, tta.html and the runs."),
    resume: bool = typer.Option(False, "--resume", help="Keep the finished repeats in --out, do the rest."),
    time_limit: float = TIME_LIMIT_OPTION,
    as_json: bool = JSON_OPTION,
) -> int:
    """Time to a validation accuracy: train by several seeds, say how long the target took and how surely.

    Training and data loading count; start, compilation, warm-up and validation stand apart, and both totals are
    given. Writes tta.json, tta.html, dawnbench/ (JSON and TSV) and mlperf/ (:::MLLOG lines) into --out. Exits 1
    if any repeat of this recipe failed or did not reach the target. The flags below describe the recipe.
    """
    from gluontune import report
    from gluontune.bench import peer_script, torch_tta
    from gluontune.bench.places import peer_python
    from gluontune.ladder import cost, exchange
    from gluontune.ladder.timing import time_to_accuracy
    from gluontune.report.tta_page import finish_tta

    recipe, target = _target(recipe, given, target)
    if sum((against_torch, against is not None, against_peer is not None)) > 1:
        raise UsageError("--against, --against-torch and --against-peer: give one of them")
    if not against_torch and (torch_set or torch_mode is not None):
        raise UsageError("--torch-set and --torch-mode go with --against-torch")
    chosen = _seeds(seeds)
    price = cost.read_price(prices, machine) if prices is not None else None
    if machine is not None and prices is None:
        raise UsageError(f"--machine {machine}: it names a line of a price table; give --prices, too")
    others = [(path.name if path.is_dir() else path.parent.name, report.load_tta(path)) for path in beside or []]
    for path, (_, other) in zip(beside or [], others):
        report.check_comparable(other, path, recipe.dataset, target)

    def say(line: str) -> None:
        stderr.print(line, markup=False, highlight=False)

    with stdout_reserved(), study_progress("repeat") as show:
        options: dict[str, Any] = {
            "target": target, "repeats": repeats, "seeds": chosen, "stop_at_target": stop_at_target,
            "price": price, "out": out, "resume": resume, "on_event": show, "time_limit": time_limit,
        }  # fmt: skip
        if against_torch:
            found = torch_tta.run(
                recipe,
                changes=parse_settings(torch_set or [], "--torch-set"),
                mode=torch_mode,
                peers=peers,
                say=say,
                **options,
            )
        elif against_peer is not None:
            python = peer_python(peers) if peers is not None else None
            found = peer_script.run(recipe, against_peer, python=python, **options)
        else:
            second = Recipe.from_yaml(against) if against is not None else None
            found = time_to_accuracy(recipe, against=second, **options)
    finish_tta(found, out, others)
    exchange.write_exchange(found, out, author=author, author_email=author_email)
    if as_json:
        emit(found)
    else:
        stdout.print(report.tta_table(found))
        for line in report.tta_lines(found):
            stdout.print(line, markup=False, highlight=False, soft_wrap=True)
        stdout.print(f"{out / 'tta.html'} shows it; {out / 'tta.json'} holds the figures.", markup=False)
    if not found["complete"]:
        stderr.print("interrupted: the same command with --resume goes on", markup=False)
        return 130
    times = found["summary"]["this"]["train_seconds"]
    return 0 if times["reached"] == times["repeats"] else 1


def _target(recipe: Recipe, given: dict[str, Any], target: Optional[float]) -> tuple[Recipe, float]:
    """The recipe without a target of its own, and the target."""
    wanted = given.get("target_accuracy") if target is None else target
    if wanted is None:
        raise UsageError("--target: give the validation accuracy to reach, such as --target 0.8")
    return recipe.override(target_accuracy=None), float(wanted)


def _seeds(text: Optional[str]) -> Optional[list[int]]:
    """
    >>> _seeds("3, 5"), _seeds(None)
    ([3, 5], None)
    """
    names = names_of(text, "--seeds")
    try:
        return None if names is None else [int(name) for name in names]
    except ValueError:
        raise UsageError(f"--seeds {text!r}: write whole numbers with commas, such as --seeds 0,1,2") from None
