"""``gluontune bench``: our parts and their peers, side by side. A command's options have the names of the arguments of
``run(...)`` of ``gluontune.search.bench.<name>``, which :func:`measure` calls with them.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Optional

import typer

from gluontune.cli._common import deliver, stdout
from gluontune.cli._options import JSON_OPTION, RECORD, argument, names_of, option
from gluontune.cli._progress import status_line
from gluontune.cli._recipe import grouped
from gluontune.core.errors import UsageError
from gluontune.recipe import Recipe

ROUNDS = option(9, "Interleaved rounds; from 9 on one disturbed is left out.", "--rounds", min=1)
SECONDS = option(1.0, "Length of each contender's slice of a round.", "--seconds", min=0.05)
OUT = option(None, "Write the JSON document to this file, too.", "--out")
RESUME = option(False, "Go on with the interrupted run for --out.", "--resume")
ONLY = option(None, "Measure only the contender of this name, or those whose names hold it; repeatable.", "--only")

#: Benchmarks of gluontune's own parts are run from a clone.
MOVED = ("devices", "exchange", "monitor", "networks", "operators", "optimizers", "scaling")


def register(app: typer.Typer) -> None:
    """Add the group and its subcommands."""
    group = typer.Typer(
        help="Measure parts of gluontune against their peers in one interleaved run.", no_args_is_help=True
    )
    app.add_typer(group, name="bench")
    for command in (loading, packing, training, inference, bridge, recipes, scripts, gpu):
        group.command()(grouped(command))
    any_words = {"allow_extra_args": True, "ignore_unknown_options": True, "help_option_names": []}
    for name in MOVED:
        group.command(name, hidden=True, context_settings=any_words)(_gone(name))


def moved(old: str, name: str) -> UsageError:
    """The error for a harness that moved to a clone's ``python -m benchmarks``."""
    return UsageError(f"gluontune bench {old} is now: python -m benchmarks {name}, in a clone of gluontune")


def _gone(name: str) -> Callable[[], None]:
    def gone() -> None:
        raise moved(name, name)

    return gone


@dataclass(frozen=True)
class Contest:
    """Length, contenders and output of a contest with peers."""

    rounds: int = ROUNDS
    seconds: float = SECONDS
    only: Optional[list[str]] = ONLY
    peers: Optional[Path] = option(None, "The peers' environment (default: .peers, from make peers).", "--peers")
    resume: bool = RESUME
    as_json: bool = JSON_OPTION
    out: Optional[Path] = OUT


def ours_ran(found: dict[str, Any]) -> bool:
    """Whether one of our contenders was measured."""
    return bool(found["ours"])


def carry_out(
    work: Callable[..., dict[str, Any]],
    as_json: bool,
    out: Path | None,
    show: Callable[[dict[str, Any], Any], None],
    *,
    holds: Callable[[dict[str, Any]], bool] = ours_ran,
) -> None:
    """Call ``work(say=…)`` with a status line, save its document, and print it; exit 1 if ``holds`` is false for it."""
    from gluontune.core.files import writable_folder, write_json

    if out is not None:
        writable_folder(out.absolute().parent)
    with status_line() as say:
        found = work(say=say)
    if out is not None:
        write_json(out, found)
    deliver(found, as_json, lambda: show(found, stdout))
    if not holds(found):
        raise typer.Exit(1)


def measure(
    name: str,
    options: Mapping[str, Any],
    leave: str = "",
    holds: Callable[[Any, dict[str, Any]], bool] | None = None,
    **changed: Any,
) -> None:
    """Call ``run(…)`` of ``gluontune.search.bench.<name>`` with a command's options but those to ``leave``.

    ``changed`` are further arguments; ``holds`` takes the module and its document.
    """
    options = {**options, **(vars(options["kept"]) if "kept" in options else {})}
    benchmark = importlib.import_module(f"gluontune.search.bench.{name}")
    given = {key: value for key, value in options.items() if key not in ("as_json", "kept", *leave.split())} | changed
    enough = ours_ran if holds is None else partial(holds, benchmark)
    carry_out(partial(benchmark.run, **given), options["as_json"], options["out"], benchmark.show, holds=enough)


def loading(
    files: list[Path] = argument(..., "Record files, measured one after another."),
    size: int = option(224, "Side of the crops.", min=1),
    batch_size: int = option(64, "Images in a batch.", min=1),
    augment: str = option("auto", "random-resized-crop-flip, pad-crop-flip, or auto: by the images' size."),
    boxes: bool = option(False, "Detection records: ours and gluon-cv's, boxes too."),
    workers: Optional[int] = option(None, "Most threads or workers of any contender (default: usable cores).", min=1),
    kept: Contest = RECORD,
) -> None:
    """Loaders over a record file: ours, MXNet's, DALI, FFCV, PyTorch, WebDataset, Streaming, SPDL, Grain, the limit."""
    measure("loading", locals())


def packing(
    src: Path = argument(..., "Class folders, a .lst or a .csv."),
    root: Optional[Path] = option(None, "Folder at which the list's paths begin."),
    size: int = option(256, "Shorter side after the resize.", min=1),
    quality: int = option(90, "JPEG quality of resized images.", min=1, max=100),
    part: str = option("both", "pass-through, resize, or both."),
    workers: Optional[int] = option(None, "Most processes (default: cores).", min=1),
    rounds: int = option(5, "Packings by each contender, interleaved.", min=1),
    only: Optional[list[str]] = ONLY,
    resume: bool = RESUME,
    as_json: bool = JSON_OPTION,
    out: Optional[Path] = OUT,
) -> None:
    """Packing records, with and without a resize: ours against MXNet's im2rec.py."""
    measure("packing", locals())


def training(
    net: Optional[list[str]] = option(None, "Network; repeatable (default: all four)."),
    batch_size: Optional[list[int]] = option(None, "Repeatable (default: 64)."),
    threads: Optional[int] = option(None, "Of tuned MXNet, ours and PyTorch (default: usable cores).", min=1),
    kept: Contest = RECORD,
) -> None:
    """A training step on synthetic batches: ours, MXNet as installed and tuned, and PyTorch's modes."""
    from gluontune.search.bench.training import NETS

    measure("training", locals(), leave="net batch_size NETS", nets=net or tuple(NETS), batch_sizes=batch_size or (64,))


@dataclass(frozen=True)
class Sizes:
    """Amounts of predictions."""

    batch_size: int = option(128, "Images in a step of the throughput.", min=1)
    val_images: int = option(2000, "For accuracy and agreement.", min=1)
    latencies: int = option(200, "Predictions of one image each.", min=1)


def inference(
    source: Optional[Path] = argument(
        None, "A checkpoint, a folder of them, .params or .npz; random if left out.", metavar="[RUN_OR_PARAMS]"
    ),
    net: str = option("cifar_resnet20_v1", "Where the source does not say it."),
    dataset: str = option("sample", "Where the source does not say it."),
    rungs: Optional[str] = option(None, "Run only these, comma-separated."),
    deck: bool = typer.Option(False, "--deck", hidden=True),
    only: Optional[list[str]] = typer.Option(None, "--only", hidden=True),
    resume: bool = RESUME,
    kept: Sizes = RECORD,
    rounds: int = ROUNDS,
    seconds: float = SECONDS,
    as_json: bool = JSON_OPTION,
    out: Optional[Path] = OUT,
) -> None:
    """Inference: imperative, hybridized, fused, bfloat16, int8, ONNX Runtime; latency, throughput, accuracy."""
    if deck or only:
        raise moved("inference --deck", "deck")
    recipe = Recipe(net=net, dataset=dataset)
    measure("inference", locals(), leave="net dataset rungs deck only", modes=names_of(rungs, "--rungs"))


def bridge(
    nets: Optional[str] = option(None, "Comma-separated (default: all of gluoncv's zoo)."),
    quick: bool = option(False, "The first of each family."),
    gradients: str = option("family", "Compared for: family (one of each), all, none."),
    resume: bool = RESUME,
    time_limit: float = option(300.0, "Seconds for one network."),
    as_json: bool = JSON_OPTION,
    out: Optional[Path] = OUT,
) -> None:
    """gluoncv's zoo as PyTorch modules: which networks convert, and how far outputs and gradients agree.

    Exits with 1 if a network that traces does not convert, or disagrees.
    """
    measure(
        "bridge", locals(), nets=names_of(nets, "--nets"), holds=lambda module, found: module.holds(found["figures"])
    )


def recipes(
    count: Optional[int] = option(None, "Random recipes (default: the set that covers all pairs of values).", min=1),
    seed: int = option(0, "Of the draws.", min=0),
    lanes: Optional[int] = option(None, "Recipes at a time (default: usable cores).", min=1),
    time_limit: float = option(60.0, "Seconds of silence that count as hung."),
    resume: bool = RESUME,
    as_json: bool = JSON_OPTION,
    out: Optional[Path] = OUT,
) -> None:
    """Recipes of all kinds: does each train a few steps, or say before training which fields are at odds?

    Exits with 1 if one neither trains nor is clearly refused.
    """
    measure("recipes", locals(), holds=lambda module, found: not found["figures"]["failed"])


def scripts(
    listed: Path = option(..., "YAML: a list of path, and argv, cwd, env, name as needed.", "--list"),
    only: Optional[list[str]] = option(None, "Scripts of this name, or that hold it; repeatable."),
    stages: Optional[str] = option(None, "Comma-separated (default: all)."),
    time_limit: float = option(600.0, "Seconds for one process."),
    resume: bool = option(False, "Go on with what --out holds; what failed is tried again."),
    as_json: bool = JSON_OPTION,
    out: Optional[Path] = option(None, "Folder for scripts.json and what the scripts print."),
) -> None:
    """Gluon scripts of a list: each as it is, and through what gluontune can do with it.

    Exits with 1 if a script fails in one of the stages.
    """
    from gluontune.search.bench import scripts as benchmark

    work = partial(
        benchmark.run, listed, only=only, stages=names_of(stages, "--stages"), time_limit=time_limit, out=out,
        resume=resume,
    )  # fmt: skip
    carry_out(work, as_json, None, benchmark.show, holds=benchmark.holds)


def gpu(
    pretend: bool = option(False, "No GPU: the CPU stands in for it, with tiny nets, to try the command."),
    minutes: float = option(10.0, "No part begins after so many.", min=0.0),
    airbench: Optional[str] = option(None, "airbench94.py, to stand beside dawnbench-94; arguments may follow it."),
    resume: bool = RESUME,
    as_json: bool = JSON_OPTION,
    out: Path = option(Path("gpu.json"), "The document; its page is written beside it, as .html."),
) -> None:
    """What this machine's GPUs give: engines, dtypes, graphs, copies, monitor, time to accuracy, two ranks.

    Exits with 1 if a part failed; a part that this machine has nothing for is a row, and no failure.
    """
    from gluontune import report
    from gluontune.core.files import write_json
    from gluontune.report.document_types import view
    from gluontune.report.study import text_tables
    from gluontune.search.bench import gpu as benchmark

    def show(found: dict[str, Any], console: Any) -> None:
        shown = view(found, str(out))
        console.print(shown["headline"], style="bold", highlight=False)
        for part in shown["sections"]:
            console.print(*text_tables(part["tables"]), sep="\n")

    def work(say: Callable[[str], None]) -> dict[str, Any]:
        found = benchmark.run(pretend=pretend, minutes=minutes, airbench=airbench, out=out, resume=resume, say=say)
        write_json(out, found)  # before the page: the measurements are on disk if a figure fails
        report.write_document_html(found, out.with_suffix(".html"))
        return found

    carry_out(work, as_json, None, show, holds=lambda found: all(r["status"] != "failed" for r in found["rows"]))
