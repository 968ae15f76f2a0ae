"""The block, line, reason and usual cure for the exception of a failed trace."""

from __future__ import annotations

import inspect
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gluontune.compute._traversal import walk
from gluontune.core.errors import first_line
from gluontune.runtime import mxnet


@dataclass(frozen=True)
class Finding:
    """An obstacle to compiling.

    Args:
        severity: ``error`` (compiling fails or changes the result) or ``warning`` (a part stays imperative).
        path: of the block in the network, such as ``features.2.body``; ``""`` is the network itself.
        block: its class.
        where: ``file:line`` of the user's code, if known.
        reason: the cause.
        cure: the usual way out.
        detail: the first line of MXNet's message, or the size of a difference.
    """

    severity: str
    path: str
    block: str
    where: str
    reason: str
    cure: str
    detail: str = ""


# pattern of a failed trace's message, reason, cure
_REASONS = (
    (
        "would end the process",
        "a deconvolution's weight is computed, or used more than once",
        "Call it in float64: F.Deconvolution of inputs and weights that F.cast has made so, see docs/mxnet-faults.md.",
    ),
    (
        r"__bool__|__nonzero__|truth value",
        "control flow depends on the data",
        "Use F.where, F.contrib.cond or F.contrib.while_loop, or move the decision out of the network.",
    ),
    (
        r"'_?Symbol' object has no attribute '(shape|size|ndim|context|ctx|dtype|stype)'",
        "it asks a Symbol for what only an NDArray has",
        "Use shapes without numbers: F.reshape with 0, -1 … -4, F.slice_like, F.broadcast_like, F.shape_array.",
    ),
    (
        r"asnumpy|asscalar|wait_to_read|__float__|__int__|__index__|__len__|has no len\(\)|float\(\)|int\(\)",
        "it takes a value out of the network into Python",
        "Compute it with F operators, or return it as another output and look at it outside.",
    ),
    (
        r"__setitem__|Assigning to NDArrays|item assignment|__i(add|sub|mul|div|truediv|mod|pow)__|_inplace",
        "it changes an array in place",
        "Make a new array: F.where, F.concat, F.scatter_nd, x = x + y in place of x += y.",
    ),
    (
        r"must have NDArray type|NDArray type|expected NDArray|Symbol.*numpy|no attribute 'handle'|_ctypes.*Symbol",
        "it calls mx.nd (or numpy) on a Symbol",
        "Call the same operator through F, the first argument of hybrid_forward.",
    ),
    (
        r"getitem|indices|slice|Index|iterable|iterate",
        "it indexes or iterates over a Symbol",
        "Use F.slice_axis, F.slice, F.split or F.take.",
    ),
    (
        r"infer_shape|Shape inconsistent|shape|Incompatible",
        "the shapes do not fit once the whole graph is compiled",
        "Give in_channels or in_units where a shape cannot be inferred, and check reshapes with fixed numbers.",
    ),
)


def explain(net: Any, error: BaseException) -> Finding:
    """The block where tracing failed (the innermost of the net) and the user's line (outside mxnet)."""
    paths = {id(block): path for path, block in walk(net)}
    library = str(Path(str(mxnet().__file__)).parent)
    path, block, where = "", type(net).__name__, ""
    trace = error.__traceback__
    while trace is not None:
        code, owner = trace.tb_frame.f_code, trace.tb_frame.f_locals.get("self")
        own_line = not code.co_filename.startswith((library, "<", str(Path(__file__).parent)))
        if id(owner) in paths and code.co_name in ("hybrid_forward", "forward"):
            path, block = paths[id(owner)], type(owner).__name__
        if own_line:
            where = f"{code.co_filename}:{trace.tb_lineno}"
        trace = trace.tb_next
    message = f"{type(error).__name__}: {error}"
    for pattern, reason, cure in _REASONS:
        if re.search(pattern, message):
            return Finding("error", path, block, where, reason, cure, first_line(error))
    cure = "hybrid_forward must use nothing but F's operators on its inputs."
    return Finding("error", path, block, where, "tracing it with Symbols failed", cure, first_line(error))


def source(kind: type, method: str) -> str:
    code = getattr(inspect.unwrap(getattr(kind, method, None)), "__code__", None)  # type: ignore[arg-type]
    return f"{code.co_filename}:{code.co_firstlineno}" if code else ""
