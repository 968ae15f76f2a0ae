"""Common parts of the commands: the ``--json`` option, the consoles, output, lists of names and numbers."""

from __future__ import annotations

import contextlib
import json
import math
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextvars import ContextVar
from typing import Any

import typer
from rich.console import Console
from rich.segment import Segment

from gluontune.core.errors import UsageError, printable
from gluontune.core.reading import parse_yaml


def option(default: Any, text: str, *flags: str, **how: Any) -> Any:
    """An option of a command; its flag is its parameter's name, unless ``flags`` are given."""
    return typer.Option(default, *flags, help=text, **how)


def argument(default: Any, text: str, **how: Any) -> Any:
    """An argument of a command; ``...`` as its default makes it required."""
    return typer.Argument(default, help=text, **how)


JSON_OPTION = option(False, "One JSON document on stdout; all else goes to stderr.", "--json")

TIME_LIMIT_OPTION = option(600.0, "Seconds after which a silent training process counts as hung.", "--time-limit")


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


def names_of(text: str | None, option: str, may_be_none: bool = False) -> list[str] | None:
    """The names between commas; None if the option is not given; none at all only if that ``may_be_none``.

    >>> names_of("a, b,", "--rungs"), names_of(None, "--rungs")
    (['a', 'b'], None)
    """
    if text is None:
        return None
    names = [part.strip() for part in text.split(",") if part.strip()]
    if not names and not may_be_none:
        raise UsageError(f"{option} {text!r} names nothing: name one or more, or leave it out")
    return names


def numbers_of(
    text: str | None, option: str, example: str, kind: type = int, least: int | None = None
) -> list[Any] | None:
    """The numbers between commas, at least ``least``, else above 0; None if the option is not given.

    >>> numbers_of("3, 5", "--seeds", "0,1,2", least=0), numbers_of(None, "--seeds", "0,1,2")
    ([3, 5], None)
    """
    names = names_of(text, option)
    if names is None:
        return None
    with contextlib.suppress(ValueError):
        values = [kind(name) for name in names]
        if all(0 < value < math.inf if least is None else least <= value for value in values):
            return values
    numbers = "whole numbers" if kind is int else "numbers"
    bound = "above 0" if least is None else f"of at least {least}"
    raise UsageError(f"{option} {text!r}: give {numbers} {bound}, such as {option} {example}")


@contextlib.contextmanager
def stdout_reserved() -> Iterator[None]:
    """Redirect libraries' output to stderr, so that stdout has only JSON."""
    with contextlib.redirect_stdout(sys.stderr):
        yield


def parse_settings(settings: list[str], option: str = "--set", example: str = "epochs=3") -> dict[str, Any]:
    """``["epochs=3", "dtype=bfloat16"]`` as a mapping; values are read as YAML.

    >>> parse_settings(["epochs=3", "train_samples=null", "dtype=bfloat16"])
    {'epochs': 3, 'train_samples': None, 'dtype': 'bfloat16'}
    """
    values = {}
    for setting in settings:
        name, equals, text = setting.partition("=")
        if not equals or not name:
            raise UsageError(f"{option} {setting!r}: write FIELD=VALUE, such as {option} {example}")
        try:
            values[name.strip()] = parse_yaml(text)
        except ValueError as error:
            raise UsageError(f"{option} {setting!r}: the value is not valid YAML") from error
    return values


#: Stands for a frozen record of options, whose fields describe themselves.
RECORD: Any = None

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
