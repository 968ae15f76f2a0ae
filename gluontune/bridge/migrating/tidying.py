"""Python text in the common layout: long lines broken, blank lines between classes."""

from __future__ import annotations

import ast
import re

__all__ = ["same_meaning", "tidied"]

_WIDTH = 100


def tidied(text: str) -> str:
    """Break calls that are too long, one argument a line, and leave two blank lines between definitions.

    What it gives is parsed back: where it would mean something else, the text comes back as it was.
    """
    lines = [part for line in text.splitlines() for part in _broken(line.rstrip())]
    joined = "\n".join(lines)
    joined = re.sub(r"\n+(?=(class|def|@)[ \w])", "\n\n\n", joined)
    joined = re.sub(r"\n+(?=    (?:def |@\w))", "\n\n", joined)
    joined = re.sub(r"(\n *@[^\n]*)\n+(?= *(?:def|class) )", r"\1\n", joined)
    joined = re.sub(r"(\n(?:class|@)[^\n]*:)\n\n(?=    def )", r"\1\n", joined)
    joined = joined.strip() + "\n"
    return joined if same_meaning(joined, text) else text


def same_meaning(one: str, other: str) -> bool:
    """Whether two texts are the same program.

    >>> same_meaning("x[a]", "x[\\n    a\\n]"), same_meaning("x[a]", "x[\\n    a,\\n]")
    (True, False)
    """
    try:
        return ast.dump(ast.parse(one)) == ast.dump(ast.parse(other))
    except SyntaxError:
        return False


def _broken(line: str) -> list[str]:
    if len(line) <= _WIDTH or line.lstrip().startswith(("#", '"', "def ", "class ", ">>> ")):
        return [line]
    indent = len(line) - len(line.lstrip())
    start = _opening(line)
    if start is None:
        return [line]
    inner, end = (line[start + 1 : line.rindex(line_close(line, start))], line[line.rindex(line_close(line, start)) :])
    made = [line[: start + 1]]
    if re.search(r"\sfor\s.+\sin\s", _outside(inner)):  # a comprehension, whose commas part no arguments
        return [*made, " " * (indent + 4) + inner.strip(), " " * indent + end]
    pieces = _split(inner)
    # behind a name [x] is an index and (x) a call; elsewhere (x) is x: a comma would make tuples of both
    after = re.search(r"[\w)\]}]$", line[:start]) is not None
    comma = "," if len(pieces) > 1 or inner.rstrip().endswith(",") or (line[start] == "(") == after else ""
    for piece in pieces:
        made += _broken(" " * (indent + 4) + piece + comma)
    return [*made, " " * indent + end]


def line_close(line: str, start: int) -> str:
    return {"(": ")", "[": "]", "{": "}"}[line[start]]


def _opening(line: str) -> int | None:
    """The bracket that holds the end of the line."""
    stack: list[int] = []
    found = None
    quote = ""
    for place, letter in enumerate(line):
        if quote:
            quote = "" if letter == quote else quote
        elif letter in "'\"":
            quote = letter
        elif letter in "([{":
            stack.append(place)
        elif letter in ")]}" and stack:
            opened = stack.pop()
            if not stack:
                found = opened
    tail = line[found:] if found is not None else ""
    return found if found is not None and tail.rstrip(",").endswith((")", "]", "}")) else None


def _outside(text: str) -> str:
    """What of a text stands in no bracket.

    >>> _outside("f(a, b) for a, b in zip(x, y)")
    'f for a, b in zip'
    """
    while (less := re.sub(r"[(\[{][^()\[\]{}]*[)\]}]", "", text)) != text:
        text = less
    return text


def _split(text: str) -> list[str]:
    pieces, depth, start, quote = [], 0, 0, ""
    for place, letter in enumerate(text):
        if quote:
            quote = "" if letter == quote else quote
        elif letter in "'\"":
            quote = letter
        elif letter in "([{":
            depth += 1
        elif letter in ")]}":
            depth -= 1
        elif letter == "," and depth == 0:
            pieces.append(text[start:place].strip())
            start = place + 1
    return [p for p in [*pieces, text[start:].strip()] if p]
