"""Pictures at the begin of lessons: the files beside this one, which ``python -m tools.pictures`` draws."""

from __future__ import annotations

import html
from pathlib import Path

from gluontune.core.errors import UsageError, did_you_mean
from gluontune.course.figures import Markup, captioned

_FOLDER = Path(__file__).parent


def picture(name: str) -> Markup:
    """A picture of the course by its name.

    Args:
        name: such as ``"ring"``; the error for an unknown one lists all.

    Raises:
        UsageError: no such picture.

    >>> "A ring all-reduce" in str(picture("ring"))
    True
    >>> picture("rign")
    Traceback (most recent call last):
        ...
    gluontune.errors.UsageError: picture('rign'): did you mean 'ring'? there are ...
    """
    known = sorted(path.stem for path in _FOLDER.glob("*.svg"))
    if name not in known:
        hint = did_you_mean(name, known)
        raise UsageError(f"picture({name!r}): {hint and hint + ' '}there are {', '.join(known)}")
    svg = (_FOLDER / f"{name}.svg").read_text(encoding="utf-8").strip()
    return captioned(svg, html.unescape(svg.partition("<title>")[2].partition("</title>")[0]))
