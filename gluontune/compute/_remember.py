"""Outcomes of races on this machine, cached by a digest of all that they depend on."""

from __future__ import annotations

import contextlib
import hashlib
import inspect
import json
import os
from collections.abc import Callable, Sequence
from dataclasses import fields
from pathlib import Path
from types import CodeType
from typing import Any

from gluontune import __version__
from gluontune.compute._traversal import as_imperative, walk
from gluontune.compute.mode import topmost_hybrid
from gluontune.compute.process import started_dtype
from gluontune.compute.race import SETTINGS, Trial
from gluontune.compute.tracing import trace_of
from gluontune.core.arrays import flat
from gluontune.core.errors import GluontuneError
from gluontune.core.files import cache_dir, read_sealed, write_sealed
from gluontune.runtime import machine_facts, mxnet

SCHEMA = 2  # of the cached documents
# Prefixes of environment variables that change the speed of a step.
_SETTINGS = (
    "OMP_", "KMP_", "GOMP_", "MKL_", "DNNL_", "ONEDNN_", "OPENBLAS_", "MXNET_", "MALLOC_", "GLIBC_TUNABLES",
    "LD_PRELOAD", "CUDA_", "NVIDIA_",
)  # fmt: skip
_MACHINE = ("os", "architecture", "libc", "cpu", "memory_limit_mib", "gpus", "gpu_driver", "packages")


def fingerprint(
    net: Any, batches: Sequence[tuple[Any, ...]], loss: Callable[..., Any] | None, names: Sequence[str]
) -> str:
    """A digest of all that a race's outcome depends on but the weights' values: graph, shapes, machine, versions.

    Names with a process's counters of blocks are left out, so that the next process gets the same digest.
    """
    facts = machine_facts()
    parts = {
        "schema": SCHEMA, "gluontune": __version__, "mxnet": mxnet().__version__, "dtype": started_dtype(),
        "candidates": [list(names), list(SETTINGS)],
        "inputs": [[_array(a) for a in flat(batch)] for batch in batches], "net": _structure(net),
        "graphs": [_graph(root, batches[0] if root is net else None) for root in topmost_hybrid(net)],
        "loss": _callable(loss), "machine": {key: facts[key] for key in _MACHINE},
        "environment": {k: v for k, v in sorted(os.environ.items()) if k.startswith(_SETTINGS)},
    }  # fmt: skip
    text = json.dumps(parts, sort_keys=True, default=str)
    return hashlib.blake2b(text.encode(), digest_size=20).hexdigest()


def recall(key: str) -> dict[str, Any] | None:
    """The cached race: ``trials``, ``chosen`` (one of them), ``notes``, ``complete`` and ``budget_s``.

    None if the file differs in any way from what :func:`keep` writes.
    """
    found = read_sealed(_path(key))
    if found is None or found["key"] != key:
        return None
    trials = [Trial(**{**row, "rewrites": tuple(row["rewrites"])}) for row in found["trials"]]
    return {**found, "trials": trials, "chosen": trials[found["chosen"]]}


def keep(key: str, trials: Sequence[Trial], chosen: Trial, notes: list[str], complete: bool, budget_s: float) -> None:
    """Cache a race; a folder that cannot be written is no error."""
    document = {
        "key": key, "trials": [{name: getattr(trial, name) for name in _FIELDS} for trial in trials],
        "chosen": list(trials).index(chosen), "notes": notes, "complete": complete, "budget_s": budget_s,
    }  # fmt: skip
    with contextlib.suppress(GluontuneError):
        write_sealed(_path(key), document)


def _path(key: str) -> Path:
    return cache_dir() / "hybridize" / f"{key}.json"


_FIELDS = [f.name for f in fields(Trial) if not f.name.startswith("_")]


def _array(array: Any) -> Any:
    if not hasattr(array, "shape"):
        return type(array).__name__
    return [list(array.shape), str(array.dtype), str(getattr(array, "context", "")), type(array).__name__]


_PLAIN = (int, float, str)
# Names and attributes that a hybridized forward sets: neither changes the result.
_IGNORED = (
    "_prefix", "_name", "_alias", "_empty_prefix", "_active", "_backend", "_profiler_scope_name", "_in_format",
    "_out_format",
)  # fmt: skip


def _structure(net: Any) -> list[Any]:
    """Each block's path, class, code of its forward, attributes as MXNet prints them, and parameters."""
    rows = []
    for path, block in walk(net):
        kind = type(block)
        code = [
            _callable(inspect.unwrap(vars(base).get(name)))  # type: ignore[arg-type]
            for base in kind.__mro__
            if not base.__module__.startswith(("mxnet.", "builtins"))
            for name in ("forward", "hybrid_forward")
        ]
        settings = repr(block) if not block._children else ""
        settings += json.dumps(
            {k: v for k, v in vars(block).items() if k not in _IGNORED and isinstance(v, _PLAIN)},
            sort_keys=True,  # restoring a net after a race changes the order
        )
        parameters = [[list(p.shape or ()), str(p.dtype), p.grad_req] for p in block._reg_params.values()]
        rows.append([path, kind.__module__, kind.__qualname__, code, settings, parameters])
    return rows


def _graph(root: Any, inputs: tuple[Any, ...] | None) -> Any:
    """Operators and attributes of the traced graph without names; None if it cannot be traced."""
    if inputs is None:
        return None
    try:
        with as_imperative(root):
            symbol = trace_of(root, inputs)
        graph = json.loads(symbol.tojson(remove_amp_cast=False))
        # An input's third number counts earlier traces of running statistics.
        nodes = [[n["op"], n.get("attrs"), [i[:2] for i in n["inputs"]]] for n in graph["nodes"] if n["op"] != "null"]
        variables = [i for i, n in enumerate(graph["nodes"]) if n["op"] == "null"]
        return [nodes, variables, graph["heads"]]
    except Exception:  # tracing runs the user's code
        return None


def _callable(value: Any) -> Any:
    """The code and names of a function, or a block's structure."""
    if value is None:
        return None
    if hasattr(value, "_children") and hasattr(value, "_reg_params"):
        return _structure(value)
    call = inspect.getattr_static(type(value), "__call__", None)  # an object that is called
    code = getattr(value, "__code__", None) or getattr(call, "__code__", None)
    names = [str(getattr(value, name, "")) for name in ("__module__", "__qualname__")]
    return [type(value).__qualname__, *names, _code(code) if isinstance(code, CodeType) else None]


def _code(code: CodeType) -> list[Any]:
    return [code.co_code.hex(), list(code.co_names), [_constant(c) for c in code.co_consts]]


def _constant(value: Any) -> Any:
    if isinstance(value, CodeType):
        return _code(value)
    return sorted(map(repr, value)) if isinstance(value, frozenset) else repr(value)  # a set's order is random
