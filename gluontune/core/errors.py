"""Errors that gluontune raises for its users: one or two lines that name the file or field, the value, and the way out.

Also foreign texts made safe for a terminal, a page or a line of source.
"""

from __future__ import annotations

import difflib
import json
import math
import unicodedata
from collections.abc import Iterable
from typing import Any


def printable(text: str) -> str:
    r"""Foreign text with a mark in place of each control character except newline and tab.

    >>> printable("a\x1b[31m\nb")
    'a�[31m\nb'
    """
    if text.isprintable():
        return text
    return "".join(c if c in "\n\t" else _shown(c) for c in text)


def clean(text: Any, limit: int = 400) -> str:
    r"""Foreign text on one line, without control characters, cut at ``limit`` characters.

    Names and messages come from users and libraries: an escape sequence must not reach a terminal,
    nor a character that XML forbids reach a figure, nor a line break a line of source.

    >>> clean("a\x1b[31m\nb")
    'a�[31m b'
    """
    head = str(text)[: 16 * limit]
    line = " ".join("".join(c if c.isspace() else _shown(c) for c in head).split())
    return line if len(line) <= limit else line[: limit - 1].rstrip() + "…"


def remark(text: Any) -> str:
    r"""Foreign text for a comment or a docstring of source: on one line, and nothing in it ends it."""
    return clean(text).replace('"', "'").replace("\\", "/")


def _shown(character: str) -> str:
    """``character``; if it must not be shown, the value of a byte that is not UTF-8, else U+FFFD."""
    if "\ud800" <= character <= "\udfff":
        return f"\\u{ord(character):04x}"
    # Cc are controls; the bidirectional overrides (in Cf) reorder their neighbours.
    bidirectional = "\u202a" <= character <= "\u202e" or "\u2066" <= character <= "\u2069"
    unfit = bidirectional or unicodedata.category(character) in ("Cc", "Cn", "Zl", "Zp")
    return "\ufffd" if unfit else character


def literal(value: Any) -> str:
    r"""A value as Python source; a printable text in double quotes.

    >>> print(literal('a"b'), literal("a\n"), literal((1, None)), literal("é"), literal(float("inf")))
    "a\"b" 'a\n' (1, None) "é" float("inf")
    """
    if isinstance(value, float) and not math.isfinite(value):
        return f'float("{value}")'
    plain = isinstance(value, str) and value.isprintable()
    return json.dumps(value, ensure_ascii=False) if plain else repr(value)


_LONGEST = 4000  # characters of a message: a quoted value may have millions


class GluontuneError(Exception):
    """An error that the user can mend. ``exit_code`` is the exit code of the command line."""

    __module__ = "gluontune.errors"
    exit_code = 1

    def __init__(self, *parts: Any):
        super().__init__(*(_message(part) if isinstance(part, str) else part for part in parts))


def _message(text: str) -> str:
    return printable(text if len(text) <= _LONGEST else text[: _LONGEST - 1] + "…")


class UsageError(GluontuneError, ValueError):
    """A value that can never work: an unknown name, a contradiction, a number out of range."""

    __module__ = "gluontune.errors"
    exit_code = 2


class UnknownNameError(UsageError, KeyError):
    """A name without a registry entry; the message offers the nearest ones."""

    __module__ = "gluontune.errors"

    def __init__(self, kind: str, name: str, known: Iterable[str]):
        known = sorted(known)
        hint = did_you_mean(name, known)
        super().__init__(f"unknown {kind} {name!r}: {hint and hint + ' '}Known: {', '.join(known)}")

    def __str__(self) -> str:  # KeyError would show the repr
        return str(self.args[0])


def first_line(error: BaseException) -> str:
    """The first informative line of an error, of at most 300 characters: MXNet's may stand below a traceback.

    >>> first_line(ValueError("3 is odd\\nsee above")), first_line(ValueError())
    ('3 is odd', 'ValueError')
    >>> first_line(RuntimeError("Traceback (most recent call last):\\n  File 'a.cc', line 9\\nMXNetError: no kernel"))
    'MXNetError: no kernel'
    """
    passed_over = ("Stack trace", "Traceback", "File ")
    lines = [line.strip() for line in str(error).splitlines()]
    lines = [line for line in lines if line and not line.startswith(passed_over)]
    picked = next((line for line in lines if line.startswith(("MXNetError", "Error in operator"))), "")
    return printable(picked or (lines[0] if lines else type(error).__name__))[:300]


def nearest(name: str, known: Iterable[str], n: int = 2) -> list[str]:
    """At most ``n`` known names closest to ``name``, best first."""
    lowered = {str(k).lower(): str(k) for k in known}
    return [lowered[m] for m in difflib.get_close_matches(str(name).lower(), lowered, n=n, cutoff=0.55)]


def did_you_mean(name: Any, known: Iterable[str]) -> str:
    """A question with the known names closest to ``name``, or "" if none is close.

    >>> did_you_mean("hybridised", ["naive", "hybridized"])
    "did you mean 'hybridized'?"
    """
    close = nearest(str(name), known)
    return f"did you mean {' or '.join(map(repr, close))}?" if close else ""
