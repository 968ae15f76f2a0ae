"""Options that several commands have, and what their words mean: lists of names and numbers."""

from __future__ import annotations

import contextlib
import math
from typing import Any

import typer

from gluontune.core.errors import UsageError


def option(default: Any, text: str, *flags: str, **how: Any) -> Any:
    """An option of a command; its flag is its parameter's name, unless ``flags`` are given."""
    return typer.Option(default, *flags, help=text, **how)


def argument(default: Any, text: str, **how: Any) -> Any:
    """An argument of a command; ``...`` as its default makes it required."""
    return typer.Argument(default, help=text, **how)


JSON_OPTION = option(False, "One JSON document on stdout; all else goes to stderr.", "--json")
TIME_LIMIT_OPTION = option(600.0, "Seconds after which a silent training process counts as hung.", "--time-limit")

#: Stands for a frozen record of options, whose fields describe themselves.
RECORD: Any = None


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
    if (names := names_of(text, option)) is None:
        return None
    with contextlib.suppress(ValueError):
        values = [kind(name) for name in names]
        if all(0 < value < math.inf if least is None else least <= value for value in values):
            return values
    numbers = "whole numbers" if kind is int else "numbers"
    bound = "above 0" if least is None else f"of at least {least}"
    raise UsageError(f"{option} {text!r}: give {numbers} {bound}, such as {option} {example}")
