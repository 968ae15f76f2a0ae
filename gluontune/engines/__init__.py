"""The engines that execute a job: a folder each, which declares here, as plain data, what its engine cannot do.

Neither mxnet nor torch is imported to read a card: the recipe's rules and the launcher read it before a process starts.
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
    """What the rest of gluontune knows of an engine.

    Args:
        title: of the library, for messages. session: ``module:class`` of its :class:`gluontune.engines.base.Engine`.
        contradictions: what it cannot do: the recipe's fields, when they are at odds, and the way out.
        commands: what its processes do besides the commands of every engine.
        meeting: the environment variable that tells its ranks where they meet, if they meet by themselves.
        shared: the variables that name memory which its ranks of one machine share.
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
