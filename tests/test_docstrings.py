"""Each public name that the site's reference shows has a complete docstring.

Complete means, for each function and class in the ``__all__`` of a room:

- a first sentence that ends,
- every parameter (of a dataclass: every field) named in it, by its own name,
- ``Raises:`` where its body raises an error of ours,
- of a function, an example that runs: its name stands in a doctest of the package or in a script of ``examples/``.
"""

from __future__ import annotations

import inspect
import re
from pathlib import Path

import gluontune

ROOT = Path(__file__).resolve().parents[1]
_SOURCE = (ROOT / "docs" / "_reference.py").read_text(encoding="utf-8")
#: Rooms for gluontune's own authors, which the site leaves out.
INNER = set(re.findall(r'"(\w+)"', re.search(r"^INNER = \{(.*?)\}", _SOURCE, re.M)[1]))
_RAISED = re.compile(r"^\s+raise (?:UsageError|GluontuneError|ValueError|UnknownNameError)\b", re.M)


def public_names():
    for room in sorted(set(gluontune.__all__) - INNER):
        module = getattr(gluontune, room)
        if not inspect.ismodule(module):
            continue
        for name in module.__all__:
            thing = getattr(module, name)
            ours = getattr(thing, "__module__", "").startswith("gluontune")
            if ours and (inspect.isfunction(thing) or inspect.isclass(thing)):
                yield f"{room}.{name}", thing


def lacks(thing):
    """What a docstring does not say, its example apart."""
    text = inspect.getdoc(thing) or ""
    found = [] if re.match(r"[^\n].*?[.:;,)]", text, re.S) else ["a first sentence"]
    try:
        parameters = inspect.signature(thing).parameters.values()
    except (TypeError, ValueError):
        parameters = ()
    for parameter in parameters:
        hidden = parameter.name.startswith("_") or parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD)
        if not hidden and not re.search(rf"\b{parameter.name}\b", text):
            found.append(parameter.name)
    if inspect.isfunction(thing) and "Raises:" not in text and _RAISED.search(inspect.getsource(thing)):
        found.append("Raises")
    return found


def run_code():
    """The code of all doctests and example scripts."""
    code = [path.read_text(encoding="utf-8") for path in (ROOT / "examples").glob("*.py")]
    for path in (ROOT / "gluontune").rglob("*.py"):
        code += re.findall(r"^\s*(?:>>>|\.\.\.) (.*)$", path.read_text(encoding="utf-8"), re.M)
    return "\n".join(code)


NAMES = dict(public_names())


def test_no_public_name_lacks_a_word():
    assert len(NAMES) > 200
    incomplete = {name: found for name, thing in NAMES.items() if (found := lacks(thing))}
    assert not incomplete


def test_a_docstring_that_lacks_something_is_found():
    def half(images, *, size=2):
        """Halves images."""
        raise ValueError(size)

    assert lacks(half) == ["size", "Raises"]
    half.__doc__ = ""
    assert lacks(half) == ["a first sentence", "images", "size", "Raises"]


def test_each_function_is_shown_in_code_that_runs():
    code = run_code()
    unseen = {
        name
        for name, thing in NAMES.items()
        if inspect.isfunction(thing) and not re.search(rf"\b({name.partition('.')[2]}|{thing.__name__})\b", code)
    }
    assert not unseen
