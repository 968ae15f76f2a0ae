"""Registries: the one place where a rung, an optimizer, a data set, a loader or a check is added."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from typing import Any, Callable, Generic, TypeVar

from gluontune.core.errors import UnknownNameError

T = TypeVar("T")


def resolve(path: str) -> Any:
    """Import the object that ``"package.module:attribute"`` names.

    Entries have such strings, so that a listing imports nothing.

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
        """Remove an entry, such as one of a plug-in."""
        del self._entries[name]

    def alias(self, other: str, name: str) -> None:
        """Make ``other`` a second name of the entry ``name``, which listings omit."""
        self._aliases[other] = name

    def register(self, name: str) -> Callable[[T], T]:
        """Decorator form of :meth:`add`."""
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
