"""What the site changes in docstrings: doctests become code blocks, and Sphinx's roles plain code."""

from __future__ import annotations

import re
from typing import Any

import griffe

_ROLE = re.compile(r":(?:mod|data|func|class|meth|attr):(?=`)")


def readable(text: str) -> str:
    """A docstring in Markdown.

    >>> print(readable("See :func:`f`.\\n\\n>>> f(1)\\n2\\n\\nMore."))
    See `f`.
    <BLANKLINE>
    ```pycon
    >>> f(1)
    2
    ```
    <BLANKLINE>
    More.
    """
    lines: list[str] = []
    inside, margin = False, ""
    for line in _ROLE.sub("", text).split("\n"):
        starts = line.lstrip().startswith(">>>")
        if inside and not line.strip():
            lines.append(f"{margin}```")
            inside = False
        if starts and not inside:
            margin = line[: len(line) - len(line.lstrip())]
            lines.append(f"{margin}```pycon")
            inside = True
        lines.append(line)
    return "\n".join([*lines, f"{margin}```"] if inside else lines)


class Readable(griffe.Extension):
    """Applies :func:`readable` to every docstring."""

    def on_object(self, *, obj: Any, **kwargs: Any) -> None:
        if obj.docstring is not None:
            obj.docstring.value = readable(obj.docstring.value)
