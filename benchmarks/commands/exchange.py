"""``python -m benchmarks exchange`` and ``python -m benchmarks scaling``."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any, Optional

import typer

from gluontune.cli._options import JSON_OPTION, names_of, numbers_of
from gluontune.cli._recipe import parse_settings
from gluontune.cli.bench import OUT, RESUME, carry_out

__all__ = ["register"]


def register(app: typer.Typer) -> None:
    app.command()(exchange)
    app.command()(scaling)


def exchange(
    part: str = typer.Option("engines", "--part", help="engines or interval; see above."),
    dataset: str = typer.Option("sample", "--dataset", help="What is trained on: cifar10 for the figures."),
    net: str = typer.Option("small_cnn", "--net", help="Network."),
    batch_size: str = typer.Option("1,2,4,8,16,32,64", "--batch-size", help="Of one rank; comma-separated."),
    engine: Optional[str] = typer.Option(
        None, "--engine", help="async, horovod, kvstore, shared-memory, comma-separated (default: those installed)."
    ),
    every: str = typer.Option("1,2,4,8,16,32", "--every", help="Of interval: steps between exchanges."),
    ranks: int = typer.Option(2, "-n", "--ranks", min=1, help="Learners or ranks, one thread each."),
    seeds: str = typer.Option("0", "--seeds", help="Of the trainings; comma-separated."),
    epochs: float = typer.Option(3.0, "--epochs", help="Length of a training."),
    settings: Optional[list[str]] = typer.Option(
        None, "--set", help="FIELD=VALUE of the recipe that the part starts from; repeatable."
    ),
    rounds: int = typer.Option(9, "--rounds", min=1, help="Interleaved rounds of the throughput."),
    seconds: float = typer.Option(1.0, "--seconds", min=0.05, help="Length of each slice."),
    out: Path = typer.Option(Path("exchange-out"), "--out", help="Folder for the JSON and the HTML page."),
    resume: bool = typer.Option(False, "--resume", help="Keep the finished pieces in --out, do the rest."),
    as_json: bool = JSON_OPTION,
) -> None:
    """Asynchronous against synchronous training at small batches, and the interval between exchanges.

    engines: throughput and accuracy of async, horovod, kvstore and shared-memory at each batch size; exits with 1
    where async at batch 4 brings less than 1.5 times horovod's throughput, or loses more than 2 points. interval:
    accuracy and utilization against the steps between exchanges (model averaging), at the first batch size.
    """
    from benchmarks import exchange as benchmark
    from benchmarks.pages.exchange import write_exchange_html

    sizes = numbers_of(batch_size, "--batch-size", "64,128") or []
    measure = partial(
        benchmark.run,
        part,
        dataset=dataset,
        net=net,
        batches=sizes[:1] if part == "interval" else sizes,
        engines=names_of(engine, "--engine"),
        intervals=numbers_of(every, "--every", "1,4,16") or [],
        ranks=ranks,
        seeds=numbers_of(seeds, "--seeds", "0,1", least=0) or [],
        epochs=epochs,
        changes=parse_settings(settings or []),
        rounds=rounds,
        seconds=seconds,
        out=out,
        resume=resume,
    )

    def work(**more: Any) -> dict[str, Any]:
        found = measure(**more)
        write_exchange_html(found, out / "exchange.html")
        return found

    def show(found: dict[str, Any], console: Any) -> None:
        benchmark.show(found, console)
        console.print(f"{out / 'exchange.html'} shows it; {out / 'exchange.json'} holds the figures.", markup=False)

    carry_out(
        work,
        as_json,
        None,  # the folder has the document already
        show,
        holds=lambda found: found["holds"],
    )


def scaling(
    nets: str = typer.Option("mlp,small_cnn,cifar_resnet20_v1,mobilenet0.25", "--nets", help="Comma-separated."),
    dataset: str = typer.Option("sample", "--dataset", help="What is trained on."),
    engine: Optional[str] = typer.Option(
        None, "--engine", help="horovod or kvstore (default: horovod where it is installed)."
    ),
    batch_size: int = typer.Option(32, "--batch-size", min=1, help="Of one rank."),
    settings: Optional[list[str]] = typer.Option(None, "--set", help="FIELD=VALUE of the recipe; repeatable."),
    rounds: int = typer.Option(9, "--rounds", min=1, help="Interleaved rounds of the measurement."),
    seconds: float = typer.Option(1.0, "--seconds", min=0.05, help="Length of each slice."),
    resume: bool = RESUME,
    as_json: bool = JSON_OPTION,
    out: Optional[Path] = OUT,
) -> None:
    """The scaling model's prediction beside measured throughput of 1 and 2 ranks, over several networks.

    Exits with 1 where the median error is above 15 %.
    """
    from benchmarks import scaling as benchmark

    work = partial(
        benchmark.run,
        names_of(nets, "--nets") or [],
        dataset=dataset,
        engine=engine,
        batch_size=batch_size,
        changes=parse_settings(settings or []),
        rounds=rounds,
        seconds=seconds,
        out=out,
        resume=resume,
    )
    carry_out(work, as_json, out, benchmark.show, holds=lambda found: found["holds"])
