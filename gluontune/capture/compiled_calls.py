"""Compiled graphs, such as a SymbolBlock's, called operator by operator, so that a handler sees each."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from gluontune.capture.operators import Operators


class CompiledCalls:
    """The graphs of ``mxnet.nd.CachedOp`` objects.

    Args:
        operators: with hooks.
    """

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
