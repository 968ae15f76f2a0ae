"""The engines that execute a job: a folder each, with a card of plain data that declares what its engine cannot do.

A card is read without mxnet and torch: the recipe's rules and the launcher read it before a process starts.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from gluontune.recipe.registry import Registry

__all__ = ["ENGINES", "EngineCard"]


@dataclass(frozen=True)
class EngineCard:
    """The card of an engine for the rest of gluontune.

    Args:
        title: of the library, for messages. session: ``module:class`` of its :class:`gluontune.engines.base.Engine`.
        contradictions: limits of the engine: the recipe's fields, the condition, and the way out.
        commands: of its processes, besides the commands of every engine.
        meeting: the environment variable with the address where its ranks connect, if they do so themselves.
        shared: the variables with the paths of memory that its ranks of one machine share.
    """

    title: str
    session: str
    contradictions: tuple[tuple[tuple[str, ...], Callable[[Any], bool], str], ...] = ()
    commands: tuple[str, ...] = ()
    meeting: str = ""
    shared: tuple[str, ...] = ()


#: By the recipe's ``backend``.
ENGINES: Registry[EngineCard] = Registry("backend")

for _module in sorted(pkgutil.iter_modules(__path__), key=lambda module: module.name):
    if _module.ispkg:
        ENGINES.add(_module.name, EngineCard(**importlib.import_module(f"{__name__}.{_module.name}").CARD))
