"""Predictions of learners, compared with measurements, and answers to exercises.

An exercise gives a hint that fits the mistake, not only "wrong".

>>> EXERCISES["break-even"].takes, "omp-threads" in EXERCISES
('number', True)
"""

from __future__ import annotations

import math
from typing import Any

from gluontune.core.errors import UsageError
from gluontune.course.exercises import arithmetic, blocks, checkers, steps  # noqa: F401  (they register)
from gluontune.course.exercises._registry import EXERCISES, Exercise

__all__ = ["EXERCISES", "RIGHT", "Exercise", "check", "compare", "predict"]

RIGHT = ": right."  # follows the name of an exercise that is solved


class Passed(int):
    """Whether an answer is right; a notebook does not display it below the printed text."""

    def __repr__(self) -> str:
        return str(bool(self))

    def _ipython_display_(self) -> None:
        """Display nothing."""


def check(exercise: str, answer: Any, **given: Any) -> Passed:
    """Check an answer; prints what is right or a hint, and returns whether it is right.

    Args:
        exercise: a name of ``EXERCISES``.
        answer: the learner's; ``...`` means not yet tried.
        given: arguments of the exercise, such as ``result=``.

    >>> check("usable-cores", ...)
    usable-cores: not answered yet. Put your answer in place of the three dots.
    False
    """
    entry = EXERCISES[exercise]
    if answer is ...:
        print(f"{exercise}: not answered yet. Put your answer in place of the three dots.")
        return Passed(False)
    if refusal := _refused(answer, entry.takes):
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


_PREDICTED: dict[str, float] = {}


def predict(question: str, value: Any) -> None:
    """Write a prediction down; the lesson compares it later.

    Args:
        question: as the lesson asks it.
        value: a number; ``...``, as the lesson comes, is no prediction yet.

    Raises:
        UsageError: something else than a number.

    >>> predict("images a second", 500)
    written down: images a second = 500
    >>> predict("cores busy", ...)
    cores busy: no prediction yet. Put a number in place of ... and run this cell again.
    """
    if value is ...:
        _PREDICTED.pop(question, None)
        print(f"{question}: no prediction yet. Put a number in place of ... and run this cell again.")
        return
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
        raise UsageError(f"predict({question!r}, {value!r}): give a number; a wrong one teaches as much")
    _PREDICTED[question] = float(value)
    print(f"written down: {question} = {value:g}")


def compare(question: str, measured: float) -> str:
    """A sentence that compares the measured value with the prediction.

    >>> predict("cores busy", 2)
    written down: cores busy = 2
    >>> compare("cores busy", 1.0)
    'You predicted 2, measured is 1: half of it.'
    >>> compare("never asked", 3)
    'Measured is 3; nothing was predicted for never asked.'
    """
    if question not in _PREDICTED:
        return f"Measured is {measured:,.4g}; nothing was predicted for {question}."
    predicted = _PREDICTED[question]
    ratio = measured / predicted if min(predicted, measured) > 0 else None
    if predicted == measured or (ratio is not None and 0.9 <= ratio <= 1.1):
        text = "well guessed"
    elif ratio is None:
        text = "off"
    elif 0.45 <= ratio <= 0.55:
        text = "half of it"
    else:
        text = f"{ratio:.1f} times as much" if ratio > 1 else f"{100 * ratio:.0f} % of it"
    return f"You predicted {predicted:,.4g}, measured is {measured:,.4g}: {text}."
