"""``python -m benchmarks networks``."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Optional

import typer

from gluontune.cli._options import JSON_OPTION, names_of
from gluontune.cli.bench import OUT, carry_out

__all__ = ["register"]


def register(app: typer.Typer) -> None:
    app.command()(networks)


def networks(
    nets: Optional[str] = typer.Option(None, "--nets", help="Comma-separated (default: one of each family)."),
    quick: bool = typer.Option(False, "--quick", help="Fewer and shorter repeats: minutes, not an hour."),
    resume: bool = typer.Option(False, "--resume", help="Go on with what --out holds."),
    time_limit: float = typer.Option(300.0, "--time-limit", help="Seconds for one part of a network's work."),
    as_json: bool = JSON_OPTION,
    out: Optional[Path] = OUT,
) -> None:
    """Networks of every family: speed and results of hybridize's choice against MXNet's modes.

    Exits with 1 if a network disagrees or fails; one that is slower is a figure.
    """
    from benchmarks import networks as benchmark

    pace = benchmark.QUICK if quick else benchmark.FULL
    work = partial(benchmark.run, names_of(nets, "--nets"), pace=pace, out=out, resume=resume, time_limit=time_limit)
    carry_out(
        work,
        as_json,
        out,
        benchmark.show,
        holds=lambda found: not any(found["figures"][name] for name in ("disagree", "failed")),
    )
