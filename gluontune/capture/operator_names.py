"""Names of MXNet's operators, and the numbers that its generated functions call them by."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from typing import Any

from gluontune.convert.graph.schemas import known_schema


def operator_names(mx: Any) -> dict[int, str]:
    """Operators' names by the number that generated functions call them by: of its aliases the one in MXNet's table."""
    return {handle: canonical(name) or name for handle, name in reversed(list(all_names(mx)))}


def all_names(mx: Any) -> Iterator[tuple[int, str]]:
    base = mx.base
    size, names = ctypes.c_uint(), ctypes.POINTER(ctypes.c_char_p)()
    base.check_call(base._LIB.MXListAllOpNames(ctypes.byref(size), ctypes.byref(names)))
    for i in range(size.value):
        handle, name = ctypes.c_void_p(), names[i].decode()
        base.check_call(base._LIB.NNGetOpHandle(names[i], ctypes.byref(handle)))
        yield handle.value or 0, name


def canonical(name: str) -> str | None:
    """An operator's name in MXNet's table, or None.

    >>> canonical("normal"), canonical("my_operator")
    ('_random_normal', None)
    """
    known = known_schema(name)
    return known.name if known else None
