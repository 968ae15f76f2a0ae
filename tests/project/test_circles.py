"""No two modules import each other: imports for types count, and those within functions."""

from __future__ import annotations

import ast
import functools
import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


@functools.cache
def modules():
    """Each module of gluontune with its syntax tree."""
    found = {}
    for path in sorted((ROOT / "gluontune").rglob("*.py")):
        parts = path.relative_to(ROOT).with_suffix("").parts
        name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
        found[name] = ast.parse(path.read_text(encoding="utf-8"))
    return found


def names_handed_on(tree):
    """The names of a room's face, which imports nothing before it is asked: each with the module that has it."""
    listed = [node for node in tree.body if isinstance(node, ast.If) and "lazy.attach" in ast.unparse(node.orelse)]
    if not listed:
        return None
    found = {}
    for node in ast.walk(listed[0]):
        if isinstance(node, ast.ImportFrom):
            found.update({alias.asname or alias.name: (node.module, alias.name) for alias in node.names})
    return found


def imports(trees):
    """The modules that each module imports, anywhere in it."""
    faces = {name: names for name, tree in trees.items() if (names := names_handed_on(tree)) is not None}

    def home(module, name):
        if f"{module}.{name}" in trees:
            return f"{module}.{name}"
        if name in faces.get(module, {}):
            return home(*faces[module][name])
        return module

    graph = {}
    for name, tree in trees.items():
        nodes = list(ast.walk(tree)) if name not in faces else []
        found, rooms = set(), {}
        for node in nodes:
            if isinstance(node, ast.ImportFrom) and node.module:
                homes = {alias.asname or alias.name: home(node.module, alias.name) for alias in node.names}
                rooms.update({known: place for known, place in homes.items() if place in faces})
                found |= set(homes.values())
            elif isinstance(node, ast.Import):
                found |= {alias.name for alias in node.names}
        for node in nodes:  # compute.hybridize, after `from gluontune import compute`
            if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id in rooms:
                found.add(home(rooms[node.value.id], node.attr))
        graph[name] = (found & set(trees)) - {name}
    return graph


def circles(graph):
    """The strongly connected components of more than one module (Tarjan's algorithm)."""
    number, low, stack, found = {}, {}, [], []

    def visit(name):
        number[name] = low[name] = len(number)
        stack.append(name)
        for other in sorted(graph[name]):
            if other not in number:
                visit(other)
                low[name] = min(low[name], low[other])
            elif other in stack:
                low[name] = min(low[name], number[other])
        if low[name] == number[name]:
            members = {stack.pop()}
            while name not in members:
                members.add(stack.pop())
            if len(members) > 1:
                found.append(members)

    for name in sorted(graph):
        if name not in number:
            visit(name)
    return found


def test_no_modules_import_each_other():
    assert [sorted(members) for members in circles(imports(modules()))] == []


def test_a_circle_would_be_seen():
    graph = {"a": {"b"}, "b": {"c"}, "c": {"a", "d"}, "d": set(), "e": {"a"}}
    assert circles(graph) == [{"a", "b", "c"}]
    tree = ast.parse("def late():\n    from gluontune.b import thing\n")
    assert imports({"gluontune.a": tree, "gluontune.b": ast.parse("")})["gluontune.a"] == {"gluontune.b"}


def test_each_module_that_a_text_names_is_there():
    """In strings of code that a child runs, ``-m MODULE`` and documentation, too, where no linter looks."""
    rooms = {path.name for path in (ROOT / "gluontune").iterdir() if (path / "__init__.py").is_file()}
    known, lost = modules(), []
    for folder in ("gluontune", "benchmarks", "tools", "tests", "docs", "notebooks"):
        for path in sorted((ROOT / folder).rglob("*")):
            if path.suffix not in (".py", ".md", ".j2", ".template", ".ipynb"):
                continue
            for room, name in set(re.findall(r"(?<![\w/.])gluontune\.(\w+)\.(\w+)", path.read_text("utf-8"))):
                if room in rooms and f"gluontune.{room}.{name}" not in known:
                    source = (ROOT / "gluontune" / room / "__init__.py").read_text("utf-8")
                    lost += [] if re.search(rf"\b{name}\b", source) else [f"{path.name}: gluontune.{room}.{name}"]
    assert lost == []
