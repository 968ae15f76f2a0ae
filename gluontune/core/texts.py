"""Foreign texts, above all names, made safe for a terminal, a page or a line of source."""

from __future__ import annotations

import json
import math
import unicodedata
from typing import Any


def printable(text: str) -> str:
    r"""Foreign text with a mark in place of each control character except newline and tab.

    >>> printable("a\x1b[31m\nb")
    'a�[31m\nb'
    """
    if text.isprintable():
        return text
    return "".join(c if c in "\n\t" or _fit(c) else _mark(c) for c in text)


def clean(text: Any, limit: int = 400) -> str:
    r"""Foreign text on one line, without control characters, cut at ``limit`` characters.

    Names and messages come from users and libraries: an escape sequence must not reach a terminal,
    nor a character that XML forbids reach a figure, nor a line break a line of source.

    >>> clean("a\x1b[31m\nb")
    'a�[31m b'
    """
    head = str(text)[: 16 * limit]
    line = " ".join("".join(c if c.isspace() or _fit(c) else _mark(c) for c in head).split())
    return line if len(line) <= limit else line[: limit - 1].rstrip() + "…"


def remark(text: Any) -> str:
    r"""Foreign text for a comment or a docstring of source: on one line, and nothing in it ends it.

    >>> remark('a"b.py\n') , remark("a\\N{x}")
    ("a'b.py", 'a/N{x}')
    """
    return clean(text).replace('"', "'").replace("\\", "/")


def _mark(character: str) -> str:
    """The replacement of a character that must not be shown: the value of a byte that is not UTF-8, else U+FFFD."""
    return f"\\u{ord(character):04x}" if "\ud800" <= character <= "\udfff" else "\ufffd"


def _fit(character: str) -> bool:
    # Cc and Cs are controls and lone surrogates; the bidirectional overrides (in Cf) reorder their neighbours.
    bidirectional = "\u202a" <= character <= "\u202e" or "\u2066" <= character <= "\u2069"
    return not bidirectional and unicodedata.category(character) not in ("Cc", "Cs", "Cn", "Zl", "Zp")


def literal(value: Any) -> str:
    r"""A value as Python source; a printable text in double quotes.

    >>> print(literal('a"b'), literal("a\n"), literal((1, None)), literal("é"), literal(float("inf")))
    "a\"b" 'a\n' (1, None) "é" float("inf")
    """
    if isinstance(value, float) and not math.isfinite(value):
        return f'float("{value}")'
    plain = isinstance(value, str) and value.isprintable()
    return json.dumps(value, ensure_ascii=False) if plain else repr(value)
