"""Public names that are imported when they are first used, so that ``import gluontune`` stays light."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import Any

__all__ = ["find"]


def find(package: str, homes: Mapping[str, str], name: str) -> Any:
    """What a room's module ``__getattr__`` returns.

    Args:
        package: the room, ``__name__`` of its ``__init__``.
        homes: public name to the room's module that defines it, or to ``"module:attribute"``.
        name: what was asked for.

    Raises:
        AttributeError: not a public name of the room.

    >>> find("json", {"Decoder": "decoder:JSONDecoder"}, "Decoder").__name__
    'JSONDecoder'
    """
    if name not in homes:
        raise AttributeError(f"module {package!r} has no attribute {name!r}")
    module, _, attribute = homes[name].partition(":")
    return getattr(importlib.import_module(f"{package}.{module}"), attribute or name)
