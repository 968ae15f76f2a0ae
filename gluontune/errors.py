"""Errors that gluontune raises for its users.

Each message is one or two lines that name the file or field, the value, and the way out.
The command line prints them without a traceback and exits with ``exit_code``.
"""

from __future__ import annotations

import difflib
import unicodedata
from collections.abc import Iterable
from typing import Any

__all__ = ["GluontuneError", "UnknownNameError", "UsageError", "clean", "nearest", "printable"]

_LONGEST = 4000  # characters of a message: a value of somebody's that is told in it may have millions


def printable(text: str) -> str:
    r"""Foreign text in which each control character but newline and tab is a mark: none reaches a terminal.

    >>> printable("a\x1b[31m\nb")
    'a�[31m\nb'
    """
    if text.isprintable():
        return text
    return "".join(c if c in "\n\t" or _fit(c) else "\ufffd" for c in text)


def clean(text: Any, limit: int = 400) -> str:
    r"""Foreign text on one line, without control characters, cut at ``limit`` characters.

    Names and messages come from users and libraries: an escape sequence must not reach a terminal,
    nor a character that XML forbids reach a figure, nor a line break a line of source.

    >>> clean("a\x1b[31m\nb")
    'a�[31m b'
    """
    head = str(text)[: 16 * limit]
    line = " ".join("".join(c if c.isspace() or _fit(c) else "\ufffd" for c in head).split())
    return line if len(line) <= limit else line[: limit - 1].rstrip() + "…"


def _fit(character: str) -> bool:
    # Cc and Cs are controls and lone surrogates; the bidirectional overrides (in Cf) reorder their neighbours.
    bidirectional = "\u202a" <= character <= "\u202e" or "\u2066" <= character <= "\u2069"
    return not bidirectional and unicodedata.category(character) not in ("Cc", "Cs", "Cn", "Zl", "Zp")


class GluontuneError(Exception):
    """Something that the user can mend. ``exit_code`` is what the command line returns."""

    exit_code = 1

    def __init__(self, *told: Any):
        super().__init__(*(_message(part) if isinstance(part, str) else part for part in told))


def _message(text: str) -> str:
    return printable(text if len(text) <= _LONGEST else text[: _LONGEST - 1] + "…")


class UsageError(GluontuneError, ValueError):
    """A value that can never work: an unknown name, a contradiction, a number out of range."""

    exit_code = 2


class UnknownNameError(UsageError, KeyError):
    """A name that no registry entry carries; the message offers the nearest ones."""

    def __init__(self, kind: str, name: str, known: Iterable[str]):
        known = sorted(known)
        close = nearest(name, known)
        hint = f"did you mean {' or '.join(repr(c) for c in close)}? " if close else ""
        super().__init__(f"unknown {kind} {name!r}: {hint}Known: {', '.join(known)}")

    def __str__(self) -> str:  # KeyError would show the repr
        return str(self.args[0])


def nearest(name: str, known: Iterable[str], n: int = 2) -> list[str]:
    """The at most ``n`` known names closest to ``name``, best first.

    >>> nearest("hybridised", ["naive", "hybridized", "records"])
    ['hybridized']
    """
    lowered = {str(k).lower(): str(k) for k in known}
    return [lowered[m] for m in difflib.get_close_matches(str(name).lower(), lowered, n=n, cutoff=0.55)]
