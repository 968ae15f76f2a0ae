"""What the subcommands of ``gluontune bench`` share: options, and the frame around a measurement."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import typer

from gluontune.cli._common import deliver, names_in, stdout, stdout_reserved
from gluontune.cli._progress import status_line

__all__ = ["ONLY", "OUT", "PEERS", "RESUME", "ROUNDS", "SECONDS", "carry_out", "measure", "ours_ran", "parts_of"]

PEERS = typer.Option(None, "--peers", help="The peers' environment (default: .peers, from make peers).")
ROUNDS = typer.Option(9, "--rounds", min=1, help="Interleaved rounds; from 9 on one disturbed is left out.")
SECONDS = typer.Option(1.0, "--seconds", min=0.05, help="Length of each contender's slice of a round.")
OUT = typer.Option(None, "--out", help="Write the JSON document to this file, too.")
RESUME = typer.Option(False, "--resume", help="Go on with what the interrupted run for --out has measured.")
ONLY = typer.Option(
    None, "--only", help="Measure only the contender of this name, or those whose names hold it; repeatable."
)


def ours_ran(found: dict[str, Any]) -> bool:
    """Whether a contender of ours could be measured."""
    return bool(found["ours"])


def carry_out(
    work: Callable[..., dict[str, Any]],
    as_json: bool,
    out: Path | None,
    show: Callable[[dict[str, Any], Any], None],
    *,
    holds: Callable[[dict[str, Any]], bool] = ours_ran,
) -> None:
    """Call ``work(say=…)`` with a status line, save its document, and print it.

    Exit code 1 where the document does not say what ``holds`` looks for.
    """
    from gluontune.core.files import writable_folder, write_json

    if out is not None:
        writable_folder(out.absolute().parent)
    with stdout_reserved(), status_line() as say:
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
    """Carry out ``run(…)`` of a benchmark with a command's own options, which have the names of its arguments.

    Args:
        name: of a module of ``gluontune.search.bench``. leave: options that are no arguments; ``changed`` are others.
        holds: takes the module and its document.
    """
    benchmark = importlib.import_module(f"gluontune.search.bench.{name}")
    given = {key: value for key, value in options.items() if key not in ("as_json", *leave.split())} | changed
    enough = ours_ran if holds is None else partial(holds, benchmark)
    carry_out(partial(benchmark.run, **given), options["as_json"], options["out"], benchmark.show, holds=enough)


def parts_of(text: str | None) -> list[str] | None:
    """The names between commas; None where there is none.

    >>> parts_of("a, b,")
    ['a', 'b']
    """
    return names_in(text) or None
