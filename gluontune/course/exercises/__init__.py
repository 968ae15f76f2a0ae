"""Exercises: each checks an answer and gives a hint that fits the mistake, not only "wrong".

>>> EXERCISES["break-even"].takes, "omp-threads" in EXERCISES
('number', True)
"""

from __future__ import annotations

import math
from typing import Any

from gluontune.course.exercises import arithmetic, checkers  # noqa: F401  (they register)
from gluontune.course.exercises._registry import EXERCISES, Exercise

__all__ = ["EXERCISES", "RIGHT", "Exercise", "check"]

RIGHT = ": right."  # follows the name of an exercise that is solved


class Passed(int):
    """Whether an answer is right, as True and False are; a notebook does not repeat it below what was said."""

    def __repr__(self) -> str:
        return str(bool(self))

    def _ipython_display_(self) -> None:
        """Nothing to add."""


def check(exercise: str, answer: Any, **given: Any) -> Passed:
    """Check an answer; prints what is right or a hint, and returns whether it is right.

    Args:
        exercise: a name of ``EXERCISES``.
        answer: the learner's; ``...`` means not yet tried.
        given: what the exercise needs, such as ``result=``.

    >>> check("usable-cores", ...)
    usable-cores: not answered yet. Put your answer in place of the three dots.
    False
    """
    entry = EXERCISES[exercise]
    if answer is ...:
        print(f"{exercise}: not answered yet. Put your answer in place of the three dots.")
        return Passed(False)
    refusal = _refused(answer, entry.takes)
    if refusal:
        print(f"{exercise}: {refusal}")
        return Passed(False)
    hint = entry.checker(float(answer) if entry.takes == "number" else answer, **given)
    print(f"{exercise}{RIGHT}" if hint is None else f"{exercise}: not yet. {hint}")
    return Passed(hint is None)


def _refused(answer: Any, takes: str) -> str | None:
    if takes == "function":
        return None if callable(answer) else f"{answer!r} is not a function; the answer is one, without calling it."
    if takes == "text":
        return None if isinstance(answer, str) else f"{answer!r} is not text; the answer is a name in quotes."
    try:
        number = math.nan if isinstance(answer, (bool, str)) else float(answer)
    except (TypeError, ValueError):
        number = math.nan
    return None if math.isfinite(number) else f"{answer!r} is not a number; the answer is one."
