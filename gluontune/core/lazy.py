"""Public names imported on first use, so that ``import gluontune`` stays light.

A room lists its names once, as imports ``as`` a name (or assignments) under ``if TYPE_CHECKING:``, for type checkers.
"""

from __future__ import annotations

import ast
import importlib
from collections.abc import Callable
from pathlib import Path
from typing import Any


def homes(file: str) -> dict[str, tuple[str, str]]:
    """The public names of the room whose ``__init__`` is ``file``, each with its module and its name there."""
    imported: dict[str, tuple[str, str]] = {}
    public: dict[str, tuple[str, str]] = {}
    body = ast.parse(Path(file).read_bytes()).body
    listed = next(line for line in body if isinstance(line, ast.If) and ast.unparse(line.test) == "TYPE_CHECKING")
    for line in listed.body:
        if isinstance(line, ast.ImportFrom):
            for alias in line.names:
                imported[alias.asname or alias.name] = (line.module or "", alias.name)
                if alias.asname is not None:
                    public[alias.asname] = imported[alias.asname]
        elif isinstance(line, ast.Assign) and isinstance(line.value, ast.Name):
            public.update({ast.unparse(target): imported[line.value.id] for target in line.targets})
    return public


def attach(package: str, file: str) -> tuple[Callable[[str], Any], Callable[[], list[str]], list[str]]:
    """A room's ``__getattr__``, ``__dir__`` and ``__all__``, from ``__name__`` and ``__file__`` of its ``__init__``.

    >>> import gluontune
    >>> find, names, public = attach("gluontune", gluontune.__file__)
    >>> find("Recipe").__name__, "Recipe" in public
    ('Recipe', True)
    """
    known = homes(file)
    public = sorted(known)

    def find(name: str) -> Any:
        if name not in known:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        module, attribute = known[name]
        if module == package:  # a module of the room
            return importlib.import_module(f"{package}.{attribute}")
        return getattr(importlib.import_module(module), attribute)

    return find, lambda: sorted(public), public
