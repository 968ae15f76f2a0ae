"""The registry of exercises, and the one call that checks an answer."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from gluontune.registry import Registry

__all__ = ["EXERCISES", "Exercise", "RIGHT", "check", "close", "exercise", "hint_for"]


@dataclass(frozen=True)
class Exercise:
    """One exercise.

    Args:
        checker: takes the answer and what was given; returns None if it is right, else a hint.
        takes: ``number``, ``text`` or ``function``.
    """

    checker: Callable[..., str | None]
    takes: str = "number"


RIGHT = ": right."  # follows the name of an exercise that is solved
EXERCISES: Registry[Exercise] = Registry("exercise")


def exercise(name: str, takes: str = "number") -> Callable[[Callable[..., str | None]], Callable[..., str | None]]:
    """Decorator that adds a checker under ``name``."""

    def add(checker: Callable[..., str | None]) -> Callable[..., str | None]:
        EXERCISES.add(name, Exercise(checker, takes))
        return checker

    return add


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


def close(answer: float, truth: float, share: float = 0.03) -> bool:
    """Equal but for rounding: within ``share`` of the truth."""
    return math.isclose(answer, truth, rel_tol=share, abs_tol=1e-9)


def hint_for(answer: float, *known: tuple[float | tuple[float, ...], str], otherwise: str) -> str:
    """What to say of a wrong answer.

    Args:
        known: wrong answers that a mistake leads to (one, or several), each with the hint for that mistake; the first
            that is :func:`close` counts. otherwise: the hint for all else.

    >>> hint_for(99.9, (50, "half"), ((100, 200), "twice"), otherwise="no idea")
    'twice'
    """
    for wrong, hint in known:
        if any(close(answer, value) for value in (wrong if isinstance(wrong, tuple) else (wrong,))):
            return hint
    return otherwise
