"""What the subcommands of ``gluontune bench`` share: options, and the frame around a measurement."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import typer

from gluontune.cli._common import emit, stdout, stdout_reserved
from gluontune.cli._progress import status_line

__all__ = ["ONLY", "OUT", "PEERS", "RESUME", "ROUNDS", "SECONDS", "carry_out", "ours_ran"]

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
    from gluontune.files import writable_folder, write_json

    if out is not None:
        writable_folder(out.absolute().parent)
    with stdout_reserved(), status_line() as say:
        found = work(say=say)
    if out is not None:
        write_json(out, found)
    if as_json:
        emit(found)
    else:
        show(found, stdout)
    if not holds(found):
        raise typer.Exit(1)
