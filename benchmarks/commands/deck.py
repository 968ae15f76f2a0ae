"""``python -m benchmarks deck``."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Optional

import typer

from gluontune.cli._options import JSON_OPTION
from gluontune.cli.bench import OUT, RESUME, SECONDS, carry_out

__all__ = ["register"]


def register(app: typer.Typer) -> None:
    app.command()(deck)


def deck(
    only: Optional[list[str]] = typer.Option(None, "--only", help="Only these networks; repeatable."),
    batch_size: int = typer.Option(128, "--batch-size", min=1, help="Images in a step of the throughput."),
    rounds: int = typer.Option(3, "--rounds", min=1, help="Interleaved rounds; their steps are long."),
    seconds: float = SECONDS,
    resume: bool = RESUME,
    as_json: bool = JSON_OPTION,
    out: Optional[Path] = OUT,
) -> None:
    """oneDNN off and on, over the networks of the seed deck's table: latency, throughput, and the outputs' delta."""
    from benchmarks import deck as benchmark

    work = partial(benchmark.run, only, batch_size=batch_size, rounds=rounds, seconds=seconds, out=out, resume=resume)
    carry_out(work, as_json, out, benchmark.show)
