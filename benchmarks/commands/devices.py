"""``python -m benchmarks devices``."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Optional

import typer

from gluontune.cli._options import JSON_OPTION
from gluontune.cli.bench import OUT, RESUME, carry_out

__all__ = ["register"]


def register(app: typer.Typer) -> None:
    app.command()(devices)


def devices(
    recipe: Optional[Path] = typer.Option(None, "--recipe", help="YAML file of a recipe [default: the usual best]."),
    dataset: str = typer.Option("cifar10", "--dataset", help="Without --recipe."),
    net: str = typer.Option("cifar_resnet20_v1", "--net", help="Without --recipe."),
    batch_size: int = typer.Option(128, "--batch-size", min=1, help="Images of one update, over all ranks."),
    ranks: int = typer.Option(2, "-n", "--ranks", min=2, help="Of each engine; they share the cores out."),
    only: Optional[list[str]] = typer.Option(
        None, "--only", help="shared-memory, horovod, kvstore or ddp; repeatable."
    ),
    rounds: int = typer.Option(9, "--rounds", min=1, help="Interleaved rounds."),
    seconds: float = typer.Option(4.0, "--seconds", min=0.05, help="Length of each contender's slice."),
    resume: bool = RESUME,
    as_json: bool = JSON_OPTION,
    out: Optional[Path] = OUT,
) -> None:
    """Ranks against one process on the same cores and global batch: shared memory, Horovod, parameter server, DDP."""
    from benchmarks import devices as benchmark
    from gluontune.core.errors import UsageError
    from gluontune.recipe import Recipe

    engines = tuple(dict.fromkeys(only or benchmark.ENGINES))
    if not set(engines) <= set(benchmark.ENGINES):
        raise UsageError(f"--only {' '.join(engines)}: choose from {', '.join(benchmark.ENGINES)}")
    if recipe is not None:
        base = Recipe.from_yaml(recipe)
        base = base.override(engine="local", num_devices=1, batch_size_per_device=batch_size)
    else:
        base = benchmark.best_recipe(dataset, net, batch_size)

    work = partial(
        benchmark.run, base, ranks=ranks, engines=engines, rounds=rounds, seconds=seconds, out=out, resume=resume
    )
    carry_out(work, as_json, out, benchmark.show)
