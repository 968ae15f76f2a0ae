"""What the subcommands of ``gluontune bench`` share: options, and the frame around a measurement."""

from __future__ import annotations

import inspect
import typing
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, Optional

import typer

from gluontune.cli._common import JSON_OPTION, emit, stdout, stdout_reserved
from gluontune.cli._progress import status_line

__all__ = ["ONLY", "OUT", "PEERS", "RESUME", "ROUNDS", "SECONDS", "benchmark", "carry_out", "ours_ran", "parts_of"]

PEERS = typer.Option(None, "--peers", help="The peers' environment (default: .peers, from make peers).")
ROUNDS = typer.Option(9, "--rounds", min=1, help="Interleaved rounds; from 9 on one disturbed is left out.")
SECONDS = typer.Option(1.0, "--seconds", min=0.05, help="Length of each contender's slice of a round.")
OUT = typer.Option(None, "--out", help="Write the JSON document to this file, too.")
RESUME = typer.Option(False, "--resume", help="Go on with what the interrupted run for --out has measured.")
ONLY = typer.Option(
    None, "--only", help="Measure only the contender of this name, or those whose names hold it; repeatable."
)


#: By the name of what a benchmark takes: its type and its flag.
TERMS = {
    "rounds": (int, ROUNDS), "seconds": (float, SECONDS), "only": (Optional[list[str]], ONLY),
    "peers": (Optional[Path], PEERS), "resume": (bool, RESUME), "as_json": (bool, JSON_OPTION),
    "out": (Optional[Path], OUT),
}  # fmt: skip


def benchmark(*names: str) -> Callable[[Callable[..., Any]], Callable[..., None]]:
    """Give a command the :data:`TERMS` of these names, ``--json`` and ``--out``.

    The command returns what shows the document, what makes it once it has these terms, and perhaps what must hold.
    """

    def with_terms(command: Callable[..., Any]) -> Callable[..., None]:
        def wrapper(**values: Any) -> None:
            as_json, terms = values.pop("as_json"), {name: values.pop(name) for name in (*names, "out")}
            show, work, *holds = command(**values)
            carry_out(partial(work, **terms), as_json, terms["out"], show, *holds)

        kind = inspect.Parameter.KEYWORD_ONLY
        hints = typing.get_type_hints(command)
        taken = [p.replace(annotation=hints[n], kind=kind) for n, p in inspect.signature(command).parameters.items()]
        for name in (*names, "as_json", "out"):
            hint, option = TERMS[name]
            taken.append(inspect.Parameter(name, kind, default=option, annotation=hint))
        wrapper.__signature__ = inspect.Signature(taken)  # type: ignore[attr-defined]
        wrapper.__annotations__ = {p.name: p.annotation for p in taken}
        wrapper.__doc__, wrapper.__name__ = command.__doc__, command.__name__
        return wrapper

    return with_terms


def ours_ran(found: dict[str, Any]) -> bool:
    """Whether a contender of ours could be measured."""
    return bool(found["ours"])


def carry_out(
    work: Callable[..., dict[str, Any]],
    as_json: bool,
    out: Path | None,
    show: Callable[[dict[str, Any], Any], None],
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
    if as_json:
        emit(found)
    else:
        show(found, stdout)
    if not holds(found):
        raise typer.Exit(1)


def parts_of(text: str | None) -> list[str] | None:
    """The names between commas.

    >>> parts_of("a, b,")
    ['a', 'b']
    """
    return [part.strip() for part in text.split(",") if part.strip()] if text else None
