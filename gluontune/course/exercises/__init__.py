"""Exercises: each checks an answer and gives a hint that fits the mistake, not only "wrong".

>>> EXERCISES["break-even"].takes, "omp-threads" in EXERCISES
('number', True)
"""

from __future__ import annotations

from gluontune.course.exercises import (  # noqa: F401  (they register)
    composing,
    compute,
    data,
    devices,
    engine,
    finale,
    inference,
    machine,
    optimization,
)
from gluontune.course.exercises._registry import EXERCISES, Exercise, check

__all__ = ["EXERCISES", "Exercise", "check"]
