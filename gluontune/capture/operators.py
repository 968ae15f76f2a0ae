"""MXNet's operators by name, past its generated functions."""

from __future__ import annotations

import ctypes
import importlib
import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from gluontune.convert.graph.schemas import known_schema


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
