"""Studies of trainings, and pages of results: ``factors``, ``tta`` and ``report``."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Optional

import typer

from gluontune.cli._common import emit, finish, finish_part, say, stderr, stdout
from gluontune.cli._options import JSON_OPTION, RECORD, TIME_LIMIT_OPTION, argument, names_of, numbers_of, option
from gluontune.cli._progress import pieces_progress, study_progress
from gluontune.cli._recipe import parse_settings
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
    names = names_of(compared.rungs, "--rungs", may_be_none=True)
    own = [parse_factor(text) for text in compared.factor or []]
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

    target = given.get("target_accuracy") if target is None else target
    if target is None:
        raise UsageError("--target: give the validation accuracy to reach, such as --target 0.8")
    recipe = recipe.override(target_accuracy=None)
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
        report.check_comparable(other, path, recipe.dataset, float(target))
    with study_progress("repeat") as show:
        options: dict[str, Any] = {
            "target": float(target), "repeats": repeats, "seeds": chosen, "stop_at_target": stop_at_target,
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


def report(
    runs: list[Path] = argument(
        ...,
        "JSON of train, ladder, tta, factors, tune, esgd, bench; folders of them; monitor logs (.jsonl).",
        metavar="RUN…",
    ),
    out: Path = option(Path("report.html"), "The HTML file to write."),
    compare: bool = option(False, "Compare with the first; exit 1 on a regression. Writes no HTML."),
    threshold: float = option(5.0, "Percent of speed that --compare lets pass."),
    svg: Optional[Path] = option(None, "Write the first figure alone to this file, light and dark; no HTML."),
    json_output: bool = JSON_OPTION,
) -> None:
    """Make one self-contained HTML file from results, or compare them."""
    from gluontune import report as room

    console = stderr if json_output else stdout
    found = room.collect(runs)
    say(*(f"left out: {entry['reason']}" for entry in found.left_out), to=stderr)
    if compare:
        comparisons = room.compare(found.sources, threshold)
        console.print(room.comparison_table(comparisons))
        regressed = any(one.regressions for one in comparisons)
        if json_output:
            emit({"regressed": regressed, "comparisons": [one.to_dict() for one in comparisons]})
        raise typer.Exit(1 if regressed else 0)
    if svg is not None:
        room.write_svg(found.sources, svg)
        say(f"wrote {svg}", to=console)
        return
    room.write_html(found.sources, out)
    room.print_sources(console, found.sources)
    say(f"wrote {out}", to=console)
    if json_output:
        document: dict[str, Any] = {"out": str(out), "left_out": found.left_out}
        emit({**document, "sources": [room.summary(source) for source in found.sources]})


COMMANDS = (factors, tta, report)
