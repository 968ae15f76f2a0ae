"""What is known of a program's arrays: owners, views, entries, the tape."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple


class Owner(NamedTuple):
    """What an array belongs to.

    Args:
        kind: ``parameter``, ``gradient`` (of a parameter) or ``variable`` (of ``attach_grad``).
        name: as sources have it. array: the array itself. req: how gradients go to a variable.
        parameter: Gluon's, or None.
    """

    kind: str
    name: str
    array: Any
    req: str = "null"
    parameter: Any = None


class View(NamedTuple):
    """How an array that shares another's memory follows from it.

    Args:
        operators: with their attributes, in order. between: the shape of what all but the last one give.
        shape, dtype: the view's. recording, training: as it was made.
    """

    operators: list[tuple[str, dict[str, str]]]
    between: tuple[int, ...]
    shape: tuple[int, ...]
    dtype: str
    recording: bool
    training: bool


class Held:
    """An array of the program's, the value that it holds, and what it is a view of; a gradient's has no array."""

    def __init__(self, array: Any, value: int, base: Held | None = None, view: View | None = None):
        self.array, self.value, self.base, self.view = array, value, base, view
        self.version, self.seen = 0, base.version if base else 0


@dataclass
class Tape:
    """What gradients can pass through in the step under way.

    Args:
        values: that a variable went into, while recording. closed: those whose tape, or a part of it, a backward
            pass has used up.
        reached: variables that a backward pass has reached, by id. overwritten: names of variables by values of old.
        left_open: values that no backward pass had used when the step could have ended, with what made them.
        waited: how often the step went on for what was then not used, by what made it.
        statistics: running statistics by the output of their BatchNorm.
    """

    values: set[int] = field(default_factory=set)
    closed: set[int] = field(default_factory=set)
    reached: set[int] = field(default_factory=set)
    overwritten: dict[int, str] = field(default_factory=dict)
    left_open: list[tuple[int, Any]] = field(default_factory=list)
    waited: Counter[Any] = field(default_factory=Counter)
    statistics: dict[int, Any] = field(default_factory=dict)


class Alias(NamedTuple):
    """An array that shares the memory of ``base``; without a view, that of the gradient of ``base``, a variable.

    ``run`` makes the view by MXNet; it refers to the base.
    """

    array: Any
    base: Any
    view: View | None = None
    run: Callable[[], Any] | None = None


def referred(alias: Alias) -> list[int]:
    """The ids of the arrays that an alias refers to, each as often as it does."""
    return [id(alias.array), *[id(alias.base)] * (1 if alias.run is None else 2)]
