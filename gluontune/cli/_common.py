"""What the commands share: the ``--json`` option, the consoles, a recipe from a file and flags."""

from __future__ import annotations

import contextlib
import json
import sys
from collections.abc import Iterator, Mapping
from contextvars import ContextVar
from typing import Any

import typer
from rich.console import Console
from rich.segment import Segment

from gluontune.errors import UsageError
from gluontune.reading import parse_yaml
from gluontune.texts import printable

__all__ = [
    "JSON_OPTION",
    "TIME_LIMIT_OPTION",
    "debugging",
    "emit",
    "names_of",
    "parse_settings",
    "show_traceback",
    "stderr",
    "stdout",
    "stdout_reserved",
]

JSON_OPTION = typer.Option(False, "--json", help="One JSON document on stdout; all else goes to stderr.")

TIME_LIMIT_OPTION = typer.Option(
    600.0, "--time-limit", help="Seconds after which a silent training process counts as hung."
)


class Terminal(Console):
    """A console where texts of others (names of files, classes and rungs, errors) are text: no control characters."""

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


@contextlib.contextmanager
def stdout_reserved() -> Iterator[None]:
    """While it lasts, whatever a library prints goes to stderr, so that stdout holds JSON alone."""
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


#: Whether ``--debug`` was given.
debugging: ContextVar[bool] = ContextVar("debugging", default=False)


def names_of(text: str | None, option: str) -> list[str] | None:
    """The names between commas; None where the option is not given.

    >>> names_of("a, b,", "--rungs"), names_of(None, "--rungs")
    (['a', 'b'], None)

    Raises:
        UsageError: none is named, which is not to be taken for all, nor for the option's absence.
    """
    if text is None:
        return None
    names = [part.strip() for part in text.split(",") if part.strip()]
    if not names:
        raise UsageError(f"{option} {text!r} names nothing: name one or more, or leave it out")
    return names


def show_traceback(error: Mapping[str, Any] | None) -> None:
    """With ``--debug``: where in its process a run failed, on stderr.

    Args:
        error: of a RunResult or of a rung.
    """
    if debugging.get() and error and error.get("traceback"):
        print(printable(error["traceback"]), file=sys.stderr, end="")
