"""What the commands print: the consoles, results as JSON or text, exit codes."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, redirect_stdout
from contextvars import ContextVar
from typing import Any

from rich.console import Console
from rich.segment import Segment

from gluontune.core.errors import printable


class Terminal(Console):
    """A console that removes control characters from foreign texts (names of files, classes and rungs, errors)."""

    def __init__(self, **options: Any):
        super().__init__(markup=False, emoji=False, **options)

    def render(self, renderable: Any, options: Any = None) -> Iterator[Segment]:
        for segment in super().render(renderable, options):
            text = segment.text if segment.control else printable(segment.text)
            yield segment if text is segment.text else Segment(text, segment.style)


stdout = Terminal()
stderr = Terminal(stderr=True)


def emit(document: Any) -> None:
    """Print the one JSON document of a ``--json`` command."""
    sys.__stdout__.write(json.dumps(document, indent=2, allow_nan=False) + "\n")  # type: ignore[union-attr]
    sys.__stdout__.flush()  # type: ignore[union-attr]


def say(*lines: Any, to: Console | None = None) -> None:
    """Print lines unwrapped and unstyled, for logs and for copying."""
    for line in lines:
        (to or stdout).print(line, highlight=False, soft_wrap=True)


def say_table(headings: Sequence[str], rows: Iterable[Sequence[str]], to: Console | None = None) -> None:
    """Print a table."""
    from rich.table import Table

    table = Table(*headings)
    for row in rows:
        table.add_row(*row)
    (to or stdout).print(table)


def deliver(document: Any, as_json: bool, show: Callable[[], None]) -> None:
    """Print a command's result, as JSON or by ``show``."""
    emit(document) if as_json else show()


def finish(found: Mapping[str, Any], as_json: bool, show: Callable[[], None], succeeded: bool = True) -> int:
    """Deliver the document of a study, with the way to resume an interrupted one. Returns the exit code."""
    deliver(found, as_json, show)
    if not found["complete"]:
        say("interrupted: the same command with --resume goes on", to=stderr)
        return 130
    return 0 if succeeded else 1


def finish_part(found: Mapping[str, Any], part: str, as_json: bool) -> int:
    """The same for a part of a study."""
    text = f"part {part}: {len(found['done'])} rows; when all parts have ended, the same with --resume, without --part"
    return finish(found, as_json, lambda: say(text))


def first_of(lines: Sequence[str]) -> list[str]:
    """The first :data:`SHOWN` of many lines, and the number of the others."""
    more = [f"… and {len(lines) - SHOWN:,} more (--json lists all)"] if len(lines) > SHOWN else []
    return [*lines[:SHOWN], *more]


def stdout_reserved() -> AbstractContextManager[Any]:
    """Redirect libraries' output to stderr, so that stdout has only JSON."""
    return redirect_stdout(sys.stderr)


#: How many of many lines a terminal shows.
SHOWN = 20

#: Whether ``--debug`` was given.
debugging: ContextVar[bool] = ContextVar("debugging", default=False)

#: Settings that `launch` passes to `train`: the hosts or the rendezvous of the ranks.
launched: ContextVar[Mapping[str, Any]] = ContextVar("launched", default={})  # noqa: B039 (nobody writes into it)


def show_traceback(error: Mapping[str, Any] | None) -> None:
    """With ``--debug``: where in its process a run failed, on stderr; ``error`` is a RunResult's or a rung's."""
    if debugging.get() and error and error.get("traceback"):
        print(printable(error["traceback"]), file=sys.stderr, end="")
