"""``python -m benchmarks optimizers``."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any, Optional

import typer

from gluontune.cli._common import emit, stderr, stdout, stdout_reserved
from gluontune.cli._options import JSON_OPTION, TIME_LIMIT_OPTION, numbers_of
from gluontune.cli._progress import status_line
from gluontune.cli._recipe import parse_settings
from gluontune.core.errors import UsageError

__all__ = ["register"]


def register(app: typer.Typer) -> None:
    app.command()(optimizers)


def optimizers(
    part: str = typer.Option(..., "--part", help="batches, large-batch, epochs, nets, step-time or esgd; see above."),
    dataset: str = typer.Option("sample", "--dataset", help="What is trained on: cifar10 for the figures."),
    seeds: Optional[str] = typer.Option(None, "--seeds", help="Comma-separated, such as 0,1,2."),
    epochs: Optional[str] = typer.Option(None, "--epochs", help="Length; for part epochs several: 8,20."),
    only: Optional[list[str]] = typer.Option(
        None, "--only", help="Only the group of this name, or those whose names hold it; repeatable."
    ),
    settings: Optional[list[str]] = typer.Option(
        None, "--set", help="FIELD=VALUE of the recipe that the part starts from; repeatable."
    ),
    rounds: int = typer.Option(9, "--rounds", min=1, help="Of step-time: interleaved rounds."),
    seconds: float = typer.Option(1.0, "--seconds", min=0.05, help="Of step-time: length of a slice."),
    net: str = typer.Option("", "--net", help="Of step-time: a net's name instead of a CIFAR ResNet."),
    layers: int = typer.Option(62, "--layers", min=8, help="Of step-time: weight layers of that ResNet, 6 n + 2."),
    esgd: Optional[list[str]] = typer.Option(
        None, "--esgd", help="Of esgd: NAME=VALUE of the plan, such as population=8; repeatable."
    ),
    workers: Optional[int] = typer.Option(
        None, "--workers", min=1, help="Of esgd: training processes at a time (default: usable cores)."
    ),
    out: Path = typer.Option(Path("optimizers-out"), "--out", help="Folder for the JSON, HTML and runs."),
    resume: bool = typer.Option(False, "--resume", help="Keep the finished trainings in --out, do the rest."),
    time_limit: float = TIME_LIMIT_OPTION,
    as_json: bool = JSON_OPTION,
) -> int:
    """Optimizers in real trainings: batch sizes, epochs to an accuracy, small nets, cost of a step, ESGD.

    batches: the batch grows from 64 to 1280 and nothing else changes. large-batch: setups of batch 1280 against batch
    64. epochs: SGD, NAG and LBSGD, epochs to the seed deck's accuracy. nets: eight optimizers on three small nets.
    step-time: LARS and LBSGD beside SGD. esgd: against its two baselines. Exits with 1 where the bar does not hold.
    """
    from benchmarks import optimizers as benchmark
    from benchmarks.pages.optimizers import write_optimizers_html
    from gluontune.search.esgd import EsgdPlan

    with stdout_reserved(), status_line() as say:
        found = benchmark.run(
            part,
            dataset=dataset,
            seeds=numbers_of(seeds, "--seeds", "0,1", least=0),
            epochs=numbers_of(epochs, "--epochs", "1,4"),
            only=only,
            changes=parse_settings(settings or []),
            rounds=rounds,
            seconds=seconds,
            net=net or str(layers),
            plan=_plan(EsgdPlan, esgd),
            workers=workers,
            out=out,
            resume=resume,
            say=say,
            time_limit=time_limit,
        )
    write_optimizers_html(found, out / "optimizers.html")
    if as_json:
        emit(found)
    else:
        benchmark.show(found, stdout)
        stdout.print(f"{out / 'optimizers.html'} shows it; {out / 'optimizers.json'} holds the figures.", markup=False)
    if not found["complete"]:
        stderr.print("interrupted: the same command with --resume goes on", markup=False)
        return 130
    return 0 if found["holds"] else 1


def _plan(kind: Any, given: list[str] | None) -> Any:
    values = parse_settings(given or [])
    names = [field.name for field in dataclasses.fields(kind)]
    for name in values:
        if name not in names:
            raise UsageError(f"--esgd {name}: choose from {', '.join(names)}")
    return kind(**values)
