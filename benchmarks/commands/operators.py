"""``python -m benchmarks operators``."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any, Optional

import typer

from gluontune.cli._options import JSON_OPTION, names_of
from gluontune.cli._recipe import takes_recipe
from gluontune.cli.bench import OUT, carry_out
from gluontune.recipe import Recipe

__all__ = ["register"]


def register(app: typer.Typer) -> None:
    app.command("operators", help=operators.__doc__)(takes_recipe(operators))


def operators(
    recipe: Recipe,
    given: dict[str, Any],
    kind: Optional[list[str]] = typer.Option(
        None, "--kind", help="product, convolution, recurrent or all-reduce; repeatable (default: all)."
    ),
    types: Optional[str] = typer.Option(
        None, "--types", help="Comma-separated: float32,bfloat16,float16 (default: all three)."
    ),
    sizes: str = typer.Option("both", "--sizes", help="job: the net's own; list: DeepBench's; both."),
    sum_over: int = typer.Option(2, "--sum-over", min=1, help="Devices of one process in the all-reduce."),
    rounds: int = typer.Option(9, "--rounds", min=1, help="Interleaved rounds."),
    slice_seconds: float = typer.Option(0.3, "--slice", min=0.001, help="Seconds of each case in a round."),
    quick: bool = typer.Option(False, "--quick", help="A short list, three short rounds: a minute or two."),
    html: Optional[Path] = typer.Option(None, "--html", help="Write the page with the roofline, too."),
    out: Optional[Path] = OUT,
    as_json: bool = JSON_OPTION,
) -> None:
    """Operators at the sizes of the recipe's net, as a share of this machine's measured peak and roofline.

    After DeepBench: matrix products, convolutions, recurrent layers and all-reduce, forward and training, in each
    data type that runs here; a type that an operator lacks is a row. The flags below describe the recipe.
    """
    from benchmarks import operators as benchmark
    from benchmarks.pages.operators import operators_view
    from gluontune.report.study import write_study

    measure = partial(
        benchmark.run,
        recipe,
        kinds=kind,
        dtypes=names_of(types, "--types"),
        sizes=sizes,
        devices=sum_over,
        rounds=rounds,
        seconds=slice_seconds,
        quick=quick,
    )

    def work(**more: Any) -> dict[str, Any]:
        found = measure(**more)
        if html is not None:
            write_study(html, operators_view(found, "operators"), found)
        return found

    def show(found: dict[str, Any], console: Any) -> None:
        benchmark.show(found, console)
        if html is not None:
            console.print(f"{html} shows it", markup=False)

    carry_out(work, as_json, out, show)
