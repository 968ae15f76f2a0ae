"""Values in lists and tuples of any nesting."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


def flat(value: Any) -> list[Any]:
    """The items of ``value`` in order; without None.

    >>> flat([1, (2, None), [3]])
    [1, 2, 3]
    """
    if isinstance(value, (list, tuple)):
        return [item for part in value for item in flat(part)]
    return [] if value is None else [value]


def mapped(change: Callable[[Any], Any], value: Any) -> Any:
    """``value`` with each of its items changed.

    >>> mapped(lambda x: x + 1, [1, (2, 3)])
    [2, (3, 4)]
    """
    if not isinstance(value, (list, tuple)):
        return change(value)
    items = [mapped(change, item) for item in value]
    return type(value)(*items) if hasattr(value, "_fields") else type(value)(items)
