"""The source of operators, taken out of this package with all that it reads, for a file of its own."""

from __future__ import annotations

import ast
import importlib
import inspect
import re
import textwrap
from collections.abc import Iterable
from typing import Any

__all__ = ["copied", "has_source"]

_OWN = "gluontune."
_GIVEN = {"torch", "F", "Any"}
_HEADER = '''"""What MXNet's operators mean in PyTorch, those of this net. Taken from gluontune (Apache-2.0)."""

from __future__ import annotations

'''


def has_source(run: Any) -> bool:
    """Whether it is a function or class of a module of ours, written at the top level."""
    return str(getattr(run, "__module__", "")).startswith(_OWN) and run.__qualname__.isidentifier()


def copied(runs: Iterable[Any], header: str = _HEADER) -> str:
    """A module that holds these functions and classes and all that they need from ours.

    Args:
        header: its first lines.
    """
    files: dict[str, _File] = {}
    parts: dict[tuple[str, str], str] = {}
    imports: set[str] = set()
    for run in sorted(runs, key=lambda r: (r.__module__, r.__qualname__)):
        _take(run.__module__, run.__qualname__, files, parts, imports)
    body = "\n\n".join(parts.values()).replace("torch()", "torch")  # runtime.pytorch.torch gives the library
    typed = [name for name in ("Any", "Callable") if re.search(rf"\b{name}\b", body)]
    libraries = [line for line, name in (("import torch", "torch"), ("import torch.nn.functional as F", "F"))
                 if re.search(rf"\b{name}\.", body)]  # fmt: skip
    imports.update([f"from typing import {', '.join(typed)}"] if typed else [])
    head = "\n".join(sorted(imports, key=lambda line: (line.startswith("from"), line)))
    return (
        header
        + head
        + "\n\n"
        + "\n".join(libraries)
        + ("\n\n\n" if body.startswith(("def ", "class ")) else "\n\n")
        + body.replace("GluontuneError", "ValueError")
        + "\n"
    )


class _File:
    """A module's statements by the names that they define."""

    def __init__(self, name: str):
        self.text = inspect.getsource(importlib.import_module(name))
        self.defined: dict[str, Any] = {}
        for statement in ast.parse(self.text).body:
            for name in _names(statement):
                self.defined.setdefault(name, statement)


def _names(statement: Any) -> list[str]:
    if isinstance(statement, (ast.FunctionDef, ast.ClassDef)):
        return [statement.name]
    if isinstance(statement, (ast.Import, ast.ImportFrom)):
        return [(alias.asname or alias.name).split(".")[0] for alias in statement.names]
    targets = getattr(statement, "targets", [getattr(statement, "target", None)])
    return [t.id for t in targets if isinstance(t, ast.Name)]


def _take(module: str, name: str, files: Any, parts: Any, imports: set[str]) -> None:
    if module not in files:
        files[module] = _File(module)
    statement = files[module].defined.get(name)
    if statement is None or name in _GIVEN or (module, name) in parts:
        return
    if isinstance(statement, ast.ImportFrom) and (statement.module or "").startswith(_OWN):
        if "errors" not in (statement.module or ""):
            _take(statement.module or "", name, files, parts, imports)
        return
    if isinstance(statement, (ast.Import, ast.ImportFrom)):
        if name != "Callable":
            imports.add(ast.unparse(statement))
        return
    if isinstance(statement, (ast.FunctionDef, ast.ClassDef)):
        statement.decorator_list = []
    parts[(module, name)] = ""  # it may read itself
    for used in {n.id for n in ast.walk(statement) if isinstance(n, ast.Name)}:
        _take(module, used, files, parts, imports)
    del parts[(module, name)]
    parts[(module, name)] = textwrap.dedent(ast.unparse(statement))
