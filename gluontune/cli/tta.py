"""``gluontune tta``: time to accuracy over repeats."""

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
    numbers_of,
    option,
    parse_settings,
    say,
    stderr,
    stdout,
)  # fmt: skip
from gluontune.cli._progress import study_progress
from gluontune.core.errors import UsageError
from gluontune.recipe import Recipe


@dataclass(frozen=True)
class Rival:
    """The opponent that is run in turn with the recipe."""

    against: Optional[Path] = option(
        None, "A second recipe, run in turn; gives the ratio of times.", metavar="RECIPE.yaml"
    )
    against_torch: bool = option(False, "The same training by PyTorch (make peers), run in turn.")
    torch_mode: Optional[str] = option(None, "eager or compile, with or without channels_last (default: the fastest).")
    torch_set: Optional[list[str]] = option(
        None, "FIELD=VALUE that suits PyTorch better, such as its rate; repeatable."
    )
    against_peer: Optional[str] = option(
        None,
        "A training script of yours, with arguments, run in turn: it prints a line "
        '{"seconds": 61.5, "accuracy": 0.91} after each validation.',
        metavar="SCRIPT",
    )
    peers: Optional[Path] = option(
        None, "The peers' environment (default: .peers, from make peers; of a script: this one)."
    )


@dataclass(frozen=True)
class About:
    """Additions to the result: prices, other machines, an author."""

    prices: Optional[Path] = option(None, "YAML table of prices per hour; gives dollars to the target.")
    machine: Optional[str] = option(None, "Which machine of --prices this is.")
    beside: Optional[list[Path]] = option(None, "Another tta.json (another machine's) on the cost plot; repeatable.")
    author: str = option("unnamed", "Author in the DAWNBench and MLPerf files.")
    author_email: str = option("", "For the DAWNBench file.")


def tta(
    recipe: Recipe,
    given: dict[str, Any],
    target: Optional[float] = option(
        None, "Validation accuracy to reach, 0 … 1; default: the recipe file's target_accuracy."
    ),
    repeats: int = option(5, "Runs of each recipe, each with another seed."),
    seeds: Optional[str] = option(None, "Their seeds, comma-separated: --seeds 0,1,2"),
    rival: Rival = RECORD,
    stop_at_target: bool = option(False, "End each run at its first crossing."),
    about: About = RECORD,
    out: Path = option(Path("tta-out"), "Folder for tta.json, tta.html and the runs."),
    resume: bool = option(False, "Keep the repeats in --out, of all parts; do the rest."),
    part: Optional[str] = option(None, "Only this of N parts of the repeats (job arrays).", metavar="K/N"),
    time_limit: float = TIME_LIMIT_OPTION,
    as_json: bool = JSON_OPTION,
) -> int:
    """Time to a validation accuracy: train by several seeds, say how long the target took and how surely.

    Training and data loading count; start, compilation, warm-up and validation stand apart, and both totals are
    given. Writes tta.json, tta.html, dawnbench/ (JSON and TSV) and mlperf/ (:::MLLOG lines) into --out. Exits 1
    if any repeat of this recipe failed or did not reach the target. The recipe's flags describe the recipe.
    """
    from gluontune import report
    from gluontune.report.tta import finish_tta
    from gluontune.search.bench import tta_peers
    from gluontune.search.bench.contender import peer_python
    from gluontune.search.study import Part, write_submissions
    from gluontune.search.time_to_target import read_price
    from gluontune.search.tta import time_to_accuracy

    recipe, target = _target(recipe, given, target)
    if sum((rival.against_torch, rival.against is not None, rival.against_peer is not None)) > 1:
        raise UsageError("--against, --against-torch and --against-peer: give one of them")
    if not rival.against_torch and (rival.torch_set or rival.torch_mode is not None):
        raise UsageError("--torch-set and --torch-mode go with --against-torch")
    chosen = numbers_of(seeds, "--seeds", "0,1,2", least=0)
    price = read_price(about.prices, about.machine) if about.prices is not None else None
    if about.machine is not None and about.prices is None:
        raise UsageError(f"--machine {about.machine}: it names a line of a price table; give --prices, too")
    others = [(path.name if path.is_dir() else path.parent.name, report.load_tta(path)) for path in about.beside or []]
    for path, (_, other) in zip(about.beside or [], others):
        report.check_comparable(other, path, recipe.dataset, target)

    with study_progress("repeat") as show:
        options: dict[str, Any] = {
            "target": target, "repeats": repeats, "seeds": chosen, "stop_at_target": stop_at_target,
            "price": price, "out": out, "resume": resume, "on_event": show, "time_limit": time_limit,
        }  # fmt: skip
        if part is not None:
            if rival.against_torch or rival.against_peer is not None:
                raise UsageError(
                    "--part goes with this recipe and --against, not with --against-torch or --against-peer"
                )
            options["part"] = Part.parse(part)
        if rival.against_torch:
            changes = parse_settings(rival.torch_set or [], "--torch-set")
            options["say"] = lambda line: say(line, to=stderr)
            options.update(changes=changes, mode=rival.torch_mode, peers=rival.peers)
            found = tta_peers.against_torch(recipe, **options)
        elif rival.against_peer is not None:
            python = peer_python(rival.peers) if rival.peers is not None else None
            found = tta_peers.against_script(recipe, rival.against_peer, python=python, **options)
        else:
            second = Recipe.from_yaml(rival.against) if rival.against is not None else None
            found = time_to_accuracy(recipe, against=second, **options)
    if part is not None:
        return finish_part(found, part, as_json)
    finish_tta(found, out, others)
    write_submissions(found, out, author=about.author, author_email=about.author_email)

    def tell() -> None:
        stdout.print(report.tta_table(found))
        say(*report.tta_lines(found), *found.get("notes", ()))
        say(f"{out / 'tta.html'} shows it; {out / 'tta.json'} holds the figures.")

    times = found["summary"]["this"]["train_seconds"]
    return finish(found, as_json, tell, times["reached"] == times["repeats"])


def _target(recipe: Recipe, given: dict[str, Any], target: Optional[float]) -> tuple[Recipe, float]:
    """The recipe without its target, and the target."""
    wanted = given.get("target_accuracy") if target is None else target
    if wanted is None:
        raise UsageError("--target: give the validation accuracy to reach, such as --target 0.8")
    return recipe.override(target_accuracy=None), float(wanted)
