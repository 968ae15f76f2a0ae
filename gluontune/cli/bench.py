"""``gluontune bench``: our parts and their peers, side by side.

Each subcommand is one function below; it imports its benchmark when it runs, calls ``run(...)`` of
``gluontune.bench.<name>``, and hands it to :func:`gluontune.cli._bench.carry_out`.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Optional

import typer

from gluontune.cli._bench import ONLY, OUT, PEERS, RESUME, ROUNDS, SECONDS, carry_out
from gluontune.cli._common import JSON_OPTION, names_of
from gluontune.errors import UsageError

__all__ = ["MOVED", "register"]

#: What only shows how gluontune's own parts do is measured from a clone.
MOVED = ("devices", "exchange", "monitor", "networks", "operators", "optimizers", "scaling")


def register(app: typer.Typer) -> None:
    """Add the group and its subcommands."""
    group = typer.Typer(
        help="Measure parts of gluontune against their peers in one interleaved run.", no_args_is_help=True
    )
    app.add_typer(group, name="bench")
    for command in (loading, packing, training, inference, bridge, recipes):
        group.command()(command)
    any_words = {"allow_extra_args": True, "ignore_unknown_options": True, "help_option_names": []}
    for name in MOVED:
        group.command(name, hidden=True, context_settings=any_words)(_gone(name))


def moved(old: str, name: str) -> UsageError:
    """Where a harness has gone."""
    return UsageError(f"gluontune bench {old} is now: python -m benchmarks {name}, in a clone of gluontune")


def _gone(name: str) -> Callable[[], None]:
    def gone() -> None:
        raise moved(name, name)

    return gone


def loading(
    files: list[Path] = typer.Argument(..., help="Record files, measured one after another."),
    size: int = typer.Option(224, "--size", min=1, help="Side of the crops."),
    batch_size: int = typer.Option(64, "--batch-size", min=1, help="Images in a batch."),
    augment: str = typer.Option(
        "auto", "--augment", help="random-resized-crop-flip, pad-crop-flip, or auto: by the images' size."
    ),
    boxes: bool = typer.Option(False, "--boxes", help="Detection records: ours and gluon-cv's, boxes too."),
    workers: Optional[int] = typer.Option(
        None, "--workers", min=1, help="Most threads or workers of any contender (default: usable cores)."
    ),
    rounds: int = ROUNDS,
    seconds: float = SECONDS,
    only: Optional[list[str]] = ONLY,
    peers: Optional[Path] = PEERS,
    resume: bool = RESUME,
    as_json: bool = JSON_OPTION,
    out: Optional[Path] = OUT,
) -> None:
    """Loaders over a record file: ours, MXNet's, DALI, FFCV, PyTorch, WebDataset, Streaming, SPDL, Grain, the limit."""
    from gluontune.bench import loading as benchmark

    work = partial(
        benchmark.run,
        files,
        size=size,
        batch_size=batch_size,
        augment=augment,
        boxes=boxes,
        workers=workers,
        rounds=rounds,
        seconds=seconds,
        only=only,
        peers=peers,
        out=out,
        resume=resume,
    )

    carry_out(work, as_json, out, benchmark.show)


def packing(
    src: Path = typer.Argument(..., help="Class folders, a .lst or a .csv."),
    root: Optional[Path] = typer.Option(None, "--root", help="Folder at which the list's paths begin."),
    size: int = typer.Option(256, "--size", min=1, help="Shorter side after the resize."),
    quality: int = typer.Option(90, "--quality", min=1, max=100, help="JPEG quality of resized images."),
    part: str = typer.Option("both", "--part", help="pass-through, resize, or both."),
    workers: Optional[int] = typer.Option(None, "--workers", min=1, help="Most processes (default: cores)."),
    rounds: int = typer.Option(5, "--rounds", min=1, help="Packings by each contender, interleaved."),
    only: Optional[list[str]] = ONLY,
    resume: bool = RESUME,
    as_json: bool = JSON_OPTION,
    out: Optional[Path] = OUT,
) -> None:
    """Packing records, as they are and with a resize: ours against MXNet's im2rec.py."""
    from gluontune.bench import packing as benchmark

    work = partial(
        benchmark.run,
        src,
        root=root,
        size=size,
        quality=quality,
        workers=workers,
        rounds=rounds,
        part=part,
        only=only,
        out=out,
        resume=resume,
    )

    carry_out(work, as_json, out, benchmark.show)


def training(
    net: Optional[list[str]] = typer.Option(None, "--net", help="Network; repeatable (default: all four)."),
    batch_size: Optional[list[int]] = typer.Option(None, "--batch-size", help="Repeatable (default: 64)."),
    threads: Optional[int] = typer.Option(
        None, "--threads", min=1, help="Of tuned MXNet, ours and PyTorch (default: usable cores)."
    ),
    rounds: int = ROUNDS,
    seconds: float = SECONDS,
    only: Optional[list[str]] = ONLY,
    peers: Optional[Path] = PEERS,
    resume: bool = RESUME,
    as_json: bool = JSON_OPTION,
    out: Optional[Path] = OUT,
) -> None:
    """A training step on synthetic batches: ours, MXNet as it comes and tuned, and PyTorch's modes."""
    from gluontune.bench import training as benchmark

    work = partial(
        benchmark.run,
        net or tuple(benchmark.NETS),
        batch_sizes=batch_size or (64,),
        rounds=rounds,
        seconds=seconds,
        threads=threads,
        only=only,
        peers=peers,
        out=out,
        resume=resume,
    )

    carry_out(work, as_json, out, benchmark.show)


def inference(
    source: Optional[Path] = typer.Argument(
        None, metavar="[RUN_OR_PARAMS]", help="A checkpoint, a folder of them, .params or .npz; random if left out."
    ),
    net: str = typer.Option("cifar_resnet20_v1", "--net", help="Where the source does not say it."),
    dataset: str = typer.Option("sample", "--dataset", help="Where the source does not say it."),
    rungs: Optional[str] = typer.Option(None, "--rungs", help="Run only these, comma-separated."),
    deck: bool = typer.Option(False, "--deck", hidden=True),
    only: Optional[list[str]] = typer.Option(None, "--only", hidden=True),
    resume: bool = RESUME,
    batch_size: int = typer.Option(128, "--batch-size", min=1, help="Images in a step of the throughput."),
    val_images: int = typer.Option(2000, "--val-images", min=1, help="For accuracy and agreement."),
    latencies: int = typer.Option(200, "--latencies", min=1, help="Predictions of one image each."),
    rounds: int = ROUNDS,
    seconds: float = SECONDS,
    as_json: bool = JSON_OPTION,
    out: Optional[Path] = OUT,
) -> None:
    """Inference: imperative, hybridized, fused, bfloat16, int8, ONNX Runtime; latency, throughput, accuracy."""
    from gluontune.bench import inference as benchmark
    from gluontune.recipe import Recipe

    if deck or only:
        raise moved("inference --deck", "deck")

    work = partial(
        benchmark.run,
        Recipe(net=net, dataset=dataset),
        source,
        modes=names_of(rungs, "--rungs"),
        batch_size=batch_size,
        val_images=val_images,
        latencies=latencies,
        rounds=rounds,
        seconds=seconds,
        out=out,
        resume=resume,
    )

    carry_out(work, as_json, out, benchmark.show)


def bridge(
    nets: Optional[str] = typer.Option(None, "--nets", help="Comma-separated (default: all of gluoncv's zoo)."),
    quick: bool = typer.Option(False, "--quick", help="The first of each family."),
    gradients: str = typer.Option("family", "--gradients", help="Compared for: family (one of each), all, none."),
    resume: bool = RESUME,
    time_limit: float = typer.Option(300.0, "--time-limit", help="Seconds for one network."),
    as_json: bool = JSON_OPTION,
    out: Optional[Path] = OUT,
) -> None:
    """gluoncv's zoo as PyTorch modules: which networks convert, and how far outputs and gradients agree.

    Exits with 1 if a network that traces does not convert, or disagrees.
    """
    from gluontune.bench import bridge as benchmark

    work = partial(
        benchmark.run,
        names_of(nets, "--nets"),
        quick=quick,
        gradients=gradients,
        out=out,
        resume=resume,
        time_limit=time_limit,
    )
    carry_out(work, as_json, out, benchmark.show, holds=lambda found: benchmark.holds(found["figures"]))


def recipes(
    count: Optional[int] = typer.Option(
        None, "--count", min=1, help="Random recipes (default: the set that covers all pairs of values)."
    ),
    seed: int = typer.Option(0, "--seed", min=0, help="Of the draws."),
    lanes: Optional[int] = typer.Option(None, "--lanes", min=1, help="Recipes at a time (default: usable cores)."),
    time_limit: float = typer.Option(60.0, "--time-limit", help="Seconds of silence that count as hung."),
    resume: bool = RESUME,
    as_json: bool = JSON_OPTION,
    out: Optional[Path] = OUT,
) -> None:
    """Recipes of all kinds: does each train a few steps, or say before training which fields are at odds?

    Exits with 1 if one neither trains nor is clearly refused.
    """
    from gluontune.bench import recipes as benchmark

    work = partial(benchmark.run, count, seed=seed, lanes=lanes, time_limit=time_limit, out=out, resume=resume)
    carry_out(work, as_json, out, benchmark.show, holds=lambda found: not found["figures"]["failed"])
