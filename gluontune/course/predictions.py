"""Predictions: written down before measuring, held against the figure afterwards."""

from __future__ import annotations

import math
from typing import Any

from gluontune.core.errors import UsageError

__all__ = ["compare", "predict"]

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
    """A sentence that holds the measured value against what was predicted.

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
    return f"You predicted {predicted:,.4g}, measured is {measured:,.4g}: {_words(predicted, measured)}."


def _words(predicted: float, measured: float) -> str:
    if predicted <= 0 or measured <= 0:
        return "well guessed" if predicted == measured else "off"
    ratio = measured / predicted
    if 0.9 <= ratio <= 1.1:
        return "well guessed"
    if 0.45 <= ratio <= 0.55:
        return "half of it"
    return f"{ratio:.1f} times as much" if ratio > 1 else f"{100 * ratio:.0f} % of it"
