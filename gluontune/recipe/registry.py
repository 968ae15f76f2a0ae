"""Registries: the one place where a rung, an optimizer, a data set, a loader or a check is added."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Callable, Generic, TypeVar

from gluontune.core.errors import UnknownNameError

T = TypeVar("T")


def resolve(path: str) -> Any:
    """The object that ``"package.module:attribute"`` names; with such entries a listing imports nothing.

    >>> resolve("math:gcd")(12, 18)
    6
    """
    module, _, attribute = path.partition(":")
    return getattr(importlib.import_module(module), attribute)


class Registry(Generic[T]):
    """Named entries in the order in which they were added.

    >>> units = Registry("unit")
    >>> units.add("ms", 1e-3)
    0.001
    >>> units["ms"], units.names(), "s" in units
    (0.001, ['ms'], False)
    >>> units["mss"]
    Traceback (most recent call last):
    gluontune.errors.UnknownNameError: unknown unit 'mss': did you mean 'ms'? Known: ms
    """

    def __init__(self, kind: str):
        self.kind = kind
        self._entries: dict[str, T] = {}
        self._aliases: dict[str, str] = {}

    def add(self, name: str, entry: T) -> T:
        """Add ``entry`` under ``name``; a second entry of the same name is a programming error."""
        if name in self._entries:
            raise ValueError(f"{self.kind} {name!r} is registered twice")
        self._entries[name] = entry
        return entry

    def remove(self, name: str) -> None:
        del self._entries[name]

    def alias(self, other: str, name: str) -> None:
        """Make ``other`` a second name of the entry ``name``, which listings omit."""
        self._aliases[other] = name

    def register(self, name: str) -> Callable[[T], T]:
        return lambda entry: self.add(name, entry)

    def __getitem__(self, name: str) -> T:
        try:
            return self._entries[self._aliases.get(name, name)]
        except (KeyError, TypeError):
            raise UnknownNameError(self.kind, str(name), self._entries) from None

    def __contains__(self, name: object) -> bool:
        return name in self._entries or name in self._aliases

    def __iter__(self) -> Iterator[T]:
        return iter(self._entries.values())

    def __len__(self) -> int:
        return len(self._entries)

    def names(self) -> list[str]:
        return list(self._entries)

    def items(self) -> list[tuple[str, T]]:
        return list(self._entries.items())


@dataclass(frozen=True)
class Parameter:
    """A number in bounds, true or false, or one of some choices.

    Args:
        kind: ``float``, ``int`` or ``bool``.
        low, high: smallest and largest value, or None.
        above, below: exclusive bounds.
        optional: None is allowed, ``none`` in a text.
        choices: the allowed texts, in place of a number.

    >>> rate = Parameter(low=0, below=1)
    >>> rate.fault(0.5), rate.fault(1), Parameter(int, 1).fault(2.0)
    ('', 'a number of at least 0 and below 1', 'a whole number of at least 1')
    """

    kind: type = float
    low: float | None = None
    high: float | None = None
    above: float | None = None
    below: float | None = None
    optional: bool = False
    choices: tuple[str, ...] = ()

    def fault(self, value: Any) -> str:
        """A description of the allowed values, or "" if ``value`` is one of them."""
        if self.choices:
            return "" if value in self.choices else f"one of {', '.join(self.choices)}"
        if self.kind is bool:
            return "" if isinstance(value, bool) else "true or false"
        if value is None and self.optional:
            return ""
        kinds = (int,) if self.kind is int else (int, float)
        right = isinstance(value, kinds) and not isinstance(value, bool) and abs(value) <= sys.float_info.max
        if (
            right
            and (self.low is None or value >= self.low)
            and (self.high is None or value <= self.high)
            and (self.above is None or value > self.above)
            and (self.below is None or value < self.below)
        ):
            return ""
        noun = "a whole number" if self.kind is int else "a number"
        if self.low is not None and self.high is not None:
            return f"{noun} from {self.low:g} to {self.high:g}"
        least = f" of at least {self.low:g}" if self.above is None else f" above {self.above:g}"
        return f"{noun}{least}{'' if self.below is None else f' and below {self.below:g}'}"
