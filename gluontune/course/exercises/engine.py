"""Exercises of the lesson 13: two engines, one net."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from gluontune.course.exercises._registry import close, exercise


@exercise("variance-ratio")
def _variance_ratio(answer: float) -> str | None:
    """16 / 15."""
    if close(answer, 16 / 15, 0.001):
        return None
    if close(answer, 15 / 16, 0.001):
        return "Turn the fraction over: who divides by less keeps more."
    if close(answer, 17 / 16, 0.001):
        return "PyTorch divides by one less than the number of values, not MXNet by one more."
    if close(answer, 1):
        return "Nearly, with many values; with 16 the difference can be seen."
    return "MXNet divides the squares by 16, PyTorch by 15."


@exercise("write-hard-sigmoid", takes="function")
def _write_hard_sigmoid(answer: Callable[..., Any]) -> str | None:
    """min(max(0.2 x + 0.5, 0), 1)."""
    x = np.linspace(-6, 6, 49)
    try:
        found = np.asarray(answer(x), float)
    except Exception as error:
        return f"Called with a numpy array it fails: {error}"
    if found.shape != x.shape:
        return f"For an array of shape {x.shape} it gives one of shape {found.shape}."
    if np.allclose(found, np.clip(0.2 * x + 0.5, 0, 1), atol=1e-6):
        return None
    if np.allclose(found, np.clip(x / 6 + 0.5, 0, 1), atol=1e-6):
        return "That is PyTorch's: MXNet multiplies by 0.2, which is not 1/6."
    if np.allclose(found, 0.2 * x + 0.5, atol=1e-6):
        return "Below 0 and above 1 it is cut off."
    if found.min() < 0 or found.max() > 1:
        return "No value may be below 0 or above 1."
    return "0.2 times x, plus 0.5; what is below 0 becomes 0, what is above 1 becomes 1."


@exercise("migration-weeks")
def _migration_weeks(answer: float) -> str | None:
    """30 / (60 - 60 / 1.5)."""
    if close(answer, 1.5, 0.01):
        return None
    if close(answer, 0.75, 0.01):
        return "40 hours are what a week takes afterwards; how many are saved?"
    if close(answer, 1, 0.01) or close(answer, 0.5, 0.01):
        return "1.5 times as fast does not save half of the time: 60 hours become 60 / 1.5."
    if close(answer, 20):
        return "So many hours are saved each week; after how many weeks are they 30?"
    return "60 hours a week become 60 / 1.5 = 40. How often must the difference be saved to make 30?"
