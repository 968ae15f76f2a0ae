"""The source of operators and all that it uses, copied from this package to a separate file."""

from __future__ import annotations

import ast
import functools
import importlib
import inspect
import re
import textwrap
from collections.abc import Mapping
from types import CodeType
from typing import Any

from gluontune.runtime.pytorch import torch

_OWN = "gluontune."
_GIVEN = {"torch", "F", "Any"}
_HEADER = '''"""What MXNet's operators mean in PyTorch, those of this net. Taken from gluontune (Apache-2.0)."""

from __future__ import annotations

'''


def has_source(run: Any) -> bool:
    """Whether it is a function or class of gluontune, or one made by such a function."""
    return str(getattr(run, "__module__", "")).startswith(_OWN)


def copied(named: Mapping[str, Any], header: str = _HEADER, more: str = "") -> str:
    """The text of a module with these functions and classes by name, all that they use of gluontune, and ``more``."""
    work = _Copy()
    lines = []
    for name, run in sorted(named.items()):
        text = work.text(run)
        made = ast.parse(text, mode="eval").body
        if isinstance(made, ast.Lambda):
            text = f"def {name}({ast.unparse(made.args)}):\n    return {ast.unparse(made.body)}"
        lines += [text if text.startswith("def ") else f"{name} = {text}"] if text != name else []
    body = "\n\n".join([*work.parts.values(), *lines, *([more] if more else [])])
    body = _bare_generators(body.replace("torch()", "torch"))  # the library in place of the function
    read = {node.id for node in ast.walk(ast.parse(body)) if isinstance(node, ast.Name)}
    libraries = sorted(line for line in work.imports if line.startswith("import numpy"))
    ours = sorted(work.imports - set(libraries))
    libraries += [line for line, name in (("import torch", "torch"), ("import torch.nn.functional as F", "F"))
                  if name in read]  # fmt: skip
    names = {module: set(taken) for module, taken in work.names.items()}
    for module, name in (("typing", "Any"), ("collections.abc", "Callable")):
        if re.search(rf"\b{name}\b", body):
            names.setdefault(module, set()).add(name)
    froms = {f"from {module} import {', '.join(sorted(taken))}" for module, taken in names.items() if taken}
    parts = [part for part in ("\n".join([*ours, *sorted(froms)]), "\n".join(libraries)) if part]
    gap = "\n\n\n" if body.startswith(("def ", "class ")) else "\n\n"
    return header + "\n\n".join(parts) + gap + body.replace("GluontuneError", "ValueError") + "\n"


def _bare_generators(text: str) -> str:
    """A text without the second brackets that Python unparses generators with.

    >>> _bare_generators("tuple((f(t) for t in x)) + ((1, 2),)")
    'tuple(f(t) for t in x) + ((1, 2),)'
    """
    for match in reversed(list(re.finditer(r"(?<=\w)\(\((?=[^\n]* for )", text))):
        begin = match.end() - 1
        depth, end = 0, begin
        for end in range(begin, len(text)):
            depth += {"(": 1, ")": -1}.get(text[end], 0)
            if not depth:
                break
        inner = text[begin : end + 1]
        if text[end + 1 : end + 2] == ")" and isinstance(ast.parse(inner, mode="eval").body, ast.GeneratorExp):
            text = text[:begin] + inner[1:-1] + text[end + 1 :]
    return text


class _Copy:
    """Statements of gluontune's modules, each after those that it uses."""

    def __init__(self) -> None:
        self.parts: dict[tuple[str, str], str] = {}
        self.imports: set[str] = set()
        self.names: dict[str, set[str]] = {}  # from other modules

    def text(self, value: Any) -> str:
        """The text of a value: a name, or for a function made by another the call that makes it."""
        if not callable(value):
            return repr(value)
        module, name = str(getattr(value, "__module__", "")), getattr(value, "__qualname__", "")
        if not module.startswith(_OWN):
            place = "F" if getattr(torch().nn.functional, value.__name__, None) is value else "torch"
            return f"{place}.{value.__name__}"
        if inspect.isfunction(value) and value.__code__.co_name == "<lambda>":
            found = _File(module).lambda_of(value)
            self._names(module, found)
            return ast.unparse(found)
        if name.isidentifier():
            self.take(module, name)
            return str(name)
        maker = name.partition(".")[0]
        self.take(module, maker)
        free = inspect.getclosurevars(value).nonlocals
        wanted = inspect.signature(getattr(importlib.import_module(module), maker)).parameters
        return f"{maker}({', '.join(f'{k}={self.text(free[k])}' for k in wanted)})"

    def _names(self, module: str, tree: Any) -> None:
        for used in sorted({n.id for n in ast.walk(tree) if isinstance(n, ast.Name)}):
            self.take(module, used)

    def take(self, module: str, name: str) -> None:
        statement = _File(module).defined.get(name)
        if statement is None or name in _GIVEN or (module, name) in self.parts:
            return
        source = getattr(statement, "module", None) or ""
        if isinstance(statement, ast.Import):
            self.imports.add(ast.unparse(statement))
        elif source.startswith(_OWN):
            if "errors" not in source:
                self.take(source, name)
        elif isinstance(statement, ast.ImportFrom):
            if name != "Callable":
                self.names.setdefault(source, set()).add(name)
        else:
            if isinstance(statement, (ast.FunctionDef, ast.ClassDef)):
                statement.decorator_list = []
            self.parts[(module, name)] = ""  # for recursion
            self._names(module, statement)
            del self.parts[(module, name)]
            self.parts[(module, name)] = textwrap.dedent(ast.unparse(statement))


@functools.cache
class _File:
    """A module's statements by their defined names."""

    def __init__(self, name: str):
        self.text = inspect.getsource(importlib.import_module(name))
        self.defined: dict[str, Any] = {}
        for statement in ast.parse(self.text).body:
            for name in _names(statement):
                self.defined.setdefault(name, statement)

    def lambda_of(self, value: Any) -> ast.Lambda:
        """The lambda of a function: the one in its line with the same code."""
        code = value.__code__
        for node in ast.walk(ast.parse(self.text)):
            if isinstance(node, ast.Lambda) and node.lineno == code.co_firstlineno:
                constants = compile(ast.Expression(node), "", "eval").co_consts  # the code, and defaults
                other = next(one for one in constants if isinstance(one, CodeType))
                if (other.co_code, other.co_names, other.co_consts) == (code.co_code, code.co_names, code.co_consts):
                    return node
        raise ValueError(f"no text of a lambda in line {code.co_firstlineno}")


def _names(statement: Any) -> list[str]:
    if isinstance(statement, (ast.FunctionDef, ast.ClassDef)):
        return [statement.name]
    if isinstance(statement, (ast.Import, ast.ImportFrom)):
        return [(alias.asname or alias.name).split(".")[0] for alias in statement.names]
    targets = getattr(statement, "targets", [getattr(statement, "target", None)])
    return [t.id for t in targets if isinstance(t, ast.Name)]
