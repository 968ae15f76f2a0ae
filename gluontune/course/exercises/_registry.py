"""The registry of exercises: the right answer, and a hint for each typical mistake."""

from __future__ import annotations

import contextlib
import functools
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Union

import numpy as np

from gluontune.recipe.registry import Registry

Checker = Callable[..., Union[str, None]]
Wrong = Union[float, tuple[float, ...], Callable[[float], bool]]


@dataclass(frozen=True)
class Exercise:
    """One exercise."""

    checker: Checker  # takes the answer and the arguments; returns None if it is right, else a hint
    takes: str  # number, text or function
    solution: str  # a right answer, as an expression of a learner; lines above it define its names


EXERCISES: Registry[Exercise] = Registry("exercise")


class Hint(Exception):
    """The hint for a wrong answer, raised within a checker."""


def exercise(name: str, solution: str, takes: str = "function") -> Callable[[Checker], Checker]:
    """Decorator that adds a checker under ``name``."""

    def add(checker: Checker) -> Checker:
        @functools.wraps(checker)
        def hinting(*given: Any, **more: Any) -> str | None:
            try:
                return checker(*given, **more)
            except Hint as hint:
                return str(hint)

        EXERCISES.add(name, Exercise(hinting, takes, solution.strip()))
        return hinting

    return add


@contextlib.contextmanager
def calling(given: str, *known: tuple[str, str]) -> Iterator[None]:
    """A block that calls the learner's answer with ``given``: an exception becomes a :class:`Hint`.

    ``known`` are parts of errors' messages, each with its hint.
    """
    try:
        yield
    except Exception as error:
        lines = str(error).splitlines()
        usual = f"Called with {given} it fails: {type(error).__name__}: {lines[0] if lines else ''}"
        raise Hint(next((hint for part, hint in known if part in str(error)), usual)) from error


def alike(answer: np.ndarray, *known: tuple[Any, str | None], otherwise: str, atol: float = 1e-4) -> str | None:
    """The hint of the first of the ``known`` arrays that the answer equals (None: it is right), or ``otherwise``."""
    for values, hint in known:
        if np.shape(values) == answer.shape and np.allclose(answer, values, atol=atol):
            return hint
    return otherwise


def number(
    name: str, truth: float, solution: str, *known: tuple[Wrong, str], otherwise: str, within: float = 0.03
) -> None:
    """Add an exercise whose answer is a known number; ``known`` and ``otherwise`` as for :func:`hint_for`.

    ``within``: relative tolerance of the answer; 0 requires the exact number, also for mistakes.
    """

    @exercise(name, solution, "number")
    def checker(answer: float) -> str | None:
        right = close(answer, truth, within) if within else answer == truth
        return None if right else hint_for(answer, *known, otherwise=otherwise, within=0.03 if within else 0.0)


def close(answer: float, truth: float, share: float = 0.03) -> bool:
    """Whether the answer is within ``share`` of the truth."""
    return math.isclose(answer, truth, rel_tol=share, abs_tol=1e-9)


def near(truth: float, share: float = 0.03) -> Callable[[float], bool]:
    """A function that recognizes answers :func:`close` to a mistake."""
    return lambda answer: close(answer, truth, share)


def hint_for(answer: float, *known: tuple[Wrong, str], otherwise: str, within: float = 0.03) -> str:
    """The hint for a wrong answer; ``otherwise`` if none of the ``known`` mistakes matches.

    A mistake is its result, several, or a function that recognizes them.

    >>> hint_for(99.9, (50, "half"), ((100, 200), "twice"), otherwise="no idea")
    'twice'
    """
    for wrong, hint in known:
        values = wrong if isinstance(wrong, tuple) else () if callable(wrong) else (wrong,)
        if any(close(answer, v, within) if within else answer == v for v in values):
            return hint
        if callable(wrong) and wrong(answer):
            return hint
    return otherwise


def values_of(values: Any) -> np.ndarray:
    """An NDArray, or what numpy makes of it, in float64."""
    return np.asarray(values.asnumpy() if hasattr(values, "asnumpy") else values, np.float64)
