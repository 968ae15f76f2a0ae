"""A module of the project before it is text."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

__all__ = ["Part"]


@dataclass
class Part:
    """A module: how it is made.

    Args:
        kind: the class; of one of the project's own, its group's key, until it has a name.
        values: settings of a layer by name. parts: modules inside (name, part), in order.
        text: the forward method's lines, of a class of the project's own. base: the class that it derives from.
        extra, late: further lines of ``__init__``, before the modules and after. before: put behind the input.
    """

    kind: str
    values: tuple[tuple[str, Any], ...] = ()
    parts: list[tuple[str, Part]] = field(default_factory=list)
    text: tuple[str, ...] = ()
    extra: tuple[str, ...] = ()
    base: str = ""
    before: str = ""
    late: tuple[str, ...] = ()

    @property
    def own(self) -> bool:
        return bool(self.text)

    def key(self) -> Any:
        """Alike for parts that differ in nothing but numbers."""
        inside = tuple((name, part.key()) for name, part in self.parts)
        settings = tuple((name, None if type(v) is int else v) for name, v in self.values)
        return self.kind, settings, inside, self.text, self.extra, self.late, self.base

    def numbers(self) -> list[tuple[str, int]]:
        """All whole numbers inside, in order, with their names."""
        found = [(name, value) for name, value in self.values if type(value) is int]
        for _, part in self.parts:
            found += part.numbers()
        return found
