"""Methods of MXNet's as hooks have them: some do less or note more, compiled graphs are called operator by operator."""

from __future__ import annotations

import functools
import json
import threading
from collections.abc import Sequence
from typing import Any

from gluontune.capture.operators import Operators
from gluontune.core.nests import mapped

TAKES = "_gluontune_takes"  # of a block that the script compiles: what it was called with, or nothing yet
COMPILES = "_gluontune_compiles"  # of a block that MXNet would call as a compiled graph
SETS = "_gluontune_sets"  # how often an attribute of a block was given another value


def without_store(before: Any, trainer: Any) -> None:
    """A store of one device adds nothing but calls that Python does not see."""
    store = trainer._kvstore_params["kvstore"]
    if len(trainer._contexts) == 1 and "dist" not in str(getattr(store, "type", store)):
        trainer._kvstore_params.update(kvstore=None, update_on_kvstore=None)
    before(trainer)


def inert(before: Any, block: Any, active: bool = True, *args: Any, **kwargs: Any) -> None:
    """A block that is hybridized stays imperative: each operator is seen."""
    before(block, False)
    waiting = [block]
    while waiting:
        each = waiting.pop()
        each.__dict__[COMPILES] = bool(active)
        waiting += each._children.values()
    if active:
        block.__dict__.setdefault(TAKES, None)


def counting(before: Any, block: Any, name: str, value: Any) -> None:
    """Count attributes that change."""
    values = block.__dict__
    if values.get(name, values) is not value:
        values[SETS] = values.get(SETS, 0) + 1
    before(block, name, value)


def noted(hooks: Any, before: Any, block: Any, *args: Any) -> Any:
    """Note what a block takes that the script compiles: ``export`` writes its graph."""
    if block.__dict__.get(TAKES, args) is None:
        block.__dict__[TAKES] = mapped(lambda each: type(each)(None) if hasattr(each, "asnumpy") else each, args)
    if not hooks.active:
        return before(block, *args)
    return hooks.handler.block(block, args, functools.partial(before, block, *args))


def mode_noted(hooks: Any, at: int, before: Any, on: bool) -> Any:
    """Set a mode of a thread, and note it of the one with hooks: to ask MXNet takes longer."""
    was = before(on)
    if threading.get_ident() == hooks.thread:
        hooks.modes[at] = bool(on)
    return was


def modes_noted(hooks: Any, before: Any, *args: Any) -> Any:
    """Set both modes."""
    was = before(*args)
    if threading.get_ident() == hooks.thread:
        hooks.modes[:] = [hooks.mx.autograd.is_recording(), hooks.mx.autograd.is_training()]
    return was


class CompiledCalls:
    """The graphs of ``mxnet.nd.CachedOp`` objects, called by operators with hooks."""

    def __init__(self, operators: Operators):
        self.operators = operators
        self.graphs: dict[int, tuple[Any, dict[str, Any], list[str]]] = {}

    def made(self, compiled: Any, symbol: Any) -> None:
        """Remember the symbol that was compiled."""
        self.graphs[id(compiled)] = (compiled, json.loads(symbol.tojson()), symbol.list_inputs())

    def why_not(self, compiled: Any) -> str:
        """Why a graph cannot be called so, or nothing."""
        known = self.graphs.get(id(compiled))
        if known is None:
            return "a graph that was compiled before"
        called = [node for node in known[1]["nodes"] if node["op"] != "null"]
        odd = [n["op"] for n in called if n.get("subgraphs") or n["op"] not in self.operators.handles]
        return f"a compiled graph with {odd[0]}" if odd else ""

    def call(self, compiled: Any, arrays: Sequence[Any]) -> Any:
        """What the compiled graph returns."""
        _, graph, names = self.graphs[id(compiled)]
        given = dict(zip(names, arrays))
        values: list[Sequence[Any]] = []
        for node in graph["nodes"]:
            if node["op"] == "null":
                values.append([given[node["name"]]])
                continue
            inputs = [values[at][place] for at, place, *_ in node["inputs"]]
            attrs = {key: value for key, value in node.get("attrs", {}).items() if not key.startswith("__")}
            values.append(self.operators(node["op"], inputs, attrs, None, compiled.is_np_sym))
        found = [values[at][place] for at, place, *_ in graph["heads"]]
        return found[0] if len(found) == 1 else found
