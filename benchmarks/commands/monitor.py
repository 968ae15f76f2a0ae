"""``python -m benchmarks monitor``."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Optional

import typer

from gluontune.cli._options import JSON_OPTION
from gluontune.cli.bench import OUT, carry_out

__all__ = ["register"]


def register(app: typer.Typer) -> None:
    app.command()(monitor)


def monitor(
    part: Optional[list[str]] = typer.Option(
        None, "--part", help="slowdown, attribution, whatif or verdicts; repeatable (default: all)."
    ),
    rounds: Optional[int] = typer.Option(
        None, "--rounds", min=1, help="Pairs of slices (150), or runs of each situation (20)."
    ),
    only: Optional[list[str]] = typer.Option(None, "--only", help="Of the verdicts, only this situation; repeatable."),
    dataset: str = typer.Option("sample", "--dataset", help="What the real trainings use."),
    resume: bool = typer.Option(False, "--resume", help="Go on with what --out holds."),
    as_json: bool = JSON_OPTION,
    out: Optional[Path] = OUT,
) -> None:
    """The monitor: its overhead, the sum of phases, and how often predictions and verdicts are right."""
    from benchmarks import monitoring as benchmark

    carry_out(
        partial(benchmark.run, parts=part, rounds=rounds, only=only, dataset=dataset, out=out, resume=resume),
        as_json,
        out,
        benchmark.show,
        holds=lambda found: all(part["holds"] for part in found["parts"].values()),
    )
