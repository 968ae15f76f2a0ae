"""MXNet's operators by name, past its generated functions; methods that do less, or note more, under hooks."""

from __future__ import annotations

import ctypes
import functools
import importlib
import json
import threading
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from gluontune.convert.graph.schemas import known_schema
from gluontune.core.arrays import mapped


class Operators:
    """Calls operators as MXNet's generated functions do; where hooks are in force, they see it."""

    def __init__(self, mx: Any):
        self.register = importlib.import_module("mxnet.ndarray.register")
        self.handles = {name: handle for handle, name in _all_names(mx)}

    def __call__(
        self, name: str, inputs: Sequence[Any], attrs: Mapping[str, Any], out: Any = None, is_np: bool = False
    ) -> Any:
        """The results, a list; or ``out``, an array or a list of arrays, to which they are written."""
        given = list(attrs), list(attrs.values())
        return self.register._imperative_invoke(self.handles[name], inputs, *given, out, is_np, True)


def result_types(mx: Any, name: str, attrs: Mapping[str, str], dtypes: Sequence[str]) -> list[str]:
    """The types of an operator's results as MXNet infers them, by name.

    Args:
        mx: the mxnet module. attrs: as MXNet's text. dtypes: of the inputs.

    >>> from gluontune.runtime import mxnet
    >>> result_types(mxnet(), "_plus_scalar", {"scalar": "1.5"}, ["int32"])
    ['int32']
    """
    count = len(dtypes)
    nodes: list[dict[str, Any]] = [{"op": "null", "name": f"x{i}", "inputs": []} for i in range(count)]
    nodes.append({"op": name, "name": "y", "attrs": dict(attrs), "inputs": [[i, 0, 0] for i in range(count)]})
    document = {"nodes": nodes, "arg_nodes": list(range(count)), "heads": [[count, 0, 0]],
                "attrs": {"mxnet_version": ["int", 10901]}}  # MXNet prints that it upgrades older ones  # fmt: skip
    whole = mx.sym.load_json(json.dumps(document)).get_internals()
    types = whole.infer_type(**{f"x{i}": np.dtype(dtype) for i, dtype in enumerate(dtypes)})[1]
    return [np.dtype(kind).name for output, kind in zip(whole.list_outputs(), types) if output.startswith("y_")]


class EmptyHandles:
    """Handles of arrays without memory, on the CPU, as ``_new_alloc_handle`` makes them; its words are kept."""

    def __init__(self, mx: Any):
        self._make = importlib.import_module("mxnet.ndarray.ndarray")._new_alloc_handle
        self._mx, self._create, self._handle = mx, mx.base._LIB.MXNDArrayCreateEx, mx.base.NDArrayHandle
        self._check, self._plain = mx.base.check_call, not mx.ndarray.ndarray._int64_enabled()
        self._known: dict[tuple[Any, str], tuple[Any, ...]] = {}

    def __call__(self, shape: tuple[int, ...], dtype: str) -> Any:
        """A new handle of a shape and a type."""
        words = self._known.get((shape, dtype))
        if words is None:
            kind = np.dtype(dtype).type
            if not self._plain or np.prod(shape, dtype=float) >= 2**31:
                return self._make(shape, self._mx.cpu(), True, kind)
            number = self._mx.ndarray.ndarray._DTYPE_NP_TO_MX[kind]
            buffer = (ctypes.c_uint * len(shape))(*shape)
            one, none = ctypes.c_int(1), ctypes.c_int(0)
            words = self._known[shape, dtype] = (
                buffer, ctypes.c_uint(len(shape)), one, none, one, ctypes.c_int(number))  # fmt: skip
        found = self._handle()
        self._check(self._create(*words, ctypes.byref(found)))
        return found


def operator_names(mx: Any) -> dict[int, str]:
    """Operators' names by the number that generated functions call them by: of its aliases the one in MXNet's table."""
    return {handle: canonical(name) or name for handle, name in reversed(list(_all_names(mx)))}


def _all_names(mx: Any) -> Iterator[tuple[int, str]]:
    base = mx.base
    size, names = ctypes.c_uint(), ctypes.POINTER(ctypes.c_char_p)()
    base.check_call(base._LIB.MXListAllOpNames(ctypes.byref(size), ctypes.byref(names)))
    for i in range(size.value):
        handle, name = ctypes.c_void_p(), names[i].decode()
        base.check_call(base._LIB.NNGetOpHandle(names[i], ctypes.byref(handle)))
        yield handle.value or 0, name


def canonical(name: str) -> str | None:
    """An operator's name in MXNet's table, or None.

    >>> canonical("normal"), canonical("my_operator")
    ('_random_normal', None)
    """
    known = known_schema(name)
    return known.name if known else None


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

    def __init__(self, mx: Any):
        self.operators = Operators(mx)
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
