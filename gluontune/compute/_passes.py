"""A network run forward and backward as numpy arrays, to compare two ways to run it; the net stays unchanged.

Gradients are checked for gross faults, not for rounding: a kernel that reads data in the wrong layout raises nothing
and computes something else.
"""

from __future__ import annotations

import contextlib
import inspect
import math
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from gluontune.compute._traversal import walk
from gluontune.compute.process import refuse_endangered, started_dtype
from gluontune.core.arrays import flat, gaps, size, worst
from gluontune.core.errors import UsageError, first_line
from gluontune.runtime import as_nd_array, mxnet, put_values

_SMALL = 0.01  # of the largest gradient


def run(net: Any, inputs: tuple[Any, ...], training: bool) -> tuple[list[Any], list[Any]]:
    """Outputs and gradients (of parameters) of one pass, from the same weights and averages; in training mode.

    Prediction mode returns no gradients: behind a max pooling, MXNet 1.9.1's are uninitialized memory.
    """
    mx = mxnet()
    with _same_averages(net):
        with mx.autograd.record(train_mode=training) if training else mx.autograd.pause(train_mode=False):
            outputs = [as_nd_array(o) for o in flat(net(*inputs))]
            heads = [o.astype("float32").square().sum() for o in outputs if o.dtype not in (np.int64, np.bool_)]
        if not training:
            return [_numpy(o) for o in outputs], []
        parameters = [p for p in net.collect_params().values() if p.grad_req != "null" and p._grad is not None]
        for gradient in (as_nd_array(g) for p in parameters for g in p.list_grad()):
            mx.nd.zeros_like(gradient, out=gradient)  # Parameter.zero_grad() of 1.9.1 refuses mx.np's arrays
        if parameters:
            refuse_endangered(heads)
            mx.autograd.backward(heads)
        gradients = [_numpy(g) for p in parameters for g in p.list_grad()]
        return [_numpy(o) for o in outputs], gradients


def varies(net: Any, inputs: tuple[Any, ...], training: bool) -> bool:
    """Whether two calls on the same input give different outputs."""
    first, again = (run(net, inputs, training)[0] for _ in range(2))
    numbers = [[np.nan_to_num(a, nan=0.5) for a in outputs] for outputs in (first, again)]
    moved = [not np.array_equal(np.isnan(a), np.isnan(b)) for a, b in zip(first, again)]
    return any(moved) or worst(numbers[0], numbers[1]) > 1e-6  # a NaN in both runs is not random


@contextlib.contextmanager
def without_dropout(net: Any, wanted: bool) -> Iterator[None]:
    """In this context, if ``wanted``, the dropout layers of ``net`` drop nothing, to compare training mode.

    Compiled graphs keep their rates: put the net into its mode inside.
    """
    held = [
        (block, name, vars(block)[name])
        for _, block in walk(net)
        for name in ("_rate", "_dropout")  # of Dropout and of recurrent layers
        if wanted and isinstance(block, mxnet().gluon.HybridBlock) and isinstance(vars(block).get(name), float)
    ]
    try:
        for block, name, _ in held:
            vars(block)[name] = 0.0
        yield
    finally:
        for block, name, rate in held:
            vars(block)[name] = rate


def gradient_gap(mine: list[Any], theirs: list[Any]) -> float:
    """As :func:`worst`, with small gradients, which are rounding, relative to the largest."""
    return worst(mine, theirs, _SMALL * max(map(size, theirs), default=0.0))


@contextlib.contextmanager
def _same_averages(net: Any) -> Iterator[None]:
    """Running averages are restored after the pass, so that every pass starts from the same."""
    parameters = [p for p in net.collect_params().values() if p.grad_req == "null" and p._data]
    saved = [(array, array.copy()) for p in parameters for array in p._data]
    try:
        yield
    finally:
        mxnet().nd.waitall()  # static graphs update them unseen by the engine
        for array, copy in saved:
            put_values(array, copy)
        mxnet().nd.waitall()


def _numpy(array: Any) -> Any:
    return array.astype("float32").asnumpy()


GROSS = {"bfloat16": 0.5}  # of an array's largest gradient; a wrong layout gives about 1
GROSS_FLOAT32 = 0.05
SMALL = 1e-3  # arrays whose gradients are below this share of the net's largest may be all rounding


class GradientCheck:
    """Gradients of a net's plain steps, to compare with those of other ways to run it.

    A net that draws random numbers, or adds its gradients up, is not compared: its gradients differ each time.
    """

    def __init__(self, net: Any):
        parameters = net.collect_params().items()
        self._trained = {k: p for k, p in parameters if p.grad_req == "write" and p._grad_stype == "default"}
        self._plain: list[dict[str, Any]] = []

    def note(self) -> None:
        """Store the gradients after a plain step; the check needs two such steps."""
        self._plain = [*self._plain, self._now()][-2:]

    def differing(self) -> str:
        """The first parameter with a gradient far from that of the plain steps, or ""."""
        if len(self._plain) < 2 or first_gross(*self._plain) is not None:
            return ""
        return first_gross(self._now(), self._plain[1]) or ""

    def _now(self) -> dict[str, Any]:
        return {k: p.list_grad()[0].astype("float32").asnumpy() for k, p in self._trained.items()}


def first_gross(mine: dict[Any, Any], plain: dict[Any, Any]) -> Any:
    """The first key whose gradients differ grossly, or None."""
    limit = GROSS.get(started_dtype() or "", GROSS_FLOAT32)
    least = SMALL * max(map(size, plain.values()), default=0.0)
    for key, apart in gaps(mine, plain).items():
        if apart > limit and (apart == math.inf or size(plain[key]) > least):
            return key
    return None


HYBRID_STATE = (
    "_active", "_flags", "_backend", "_backend_opts", "_cached_graph", "_cached_op", "_cached_op_args", "_in_format",
    "_out_format", "_call_cached_op", "_callback", "_monitor_all",
)  # fmt: skip


def check_initialized(net: Any) -> None:
    """Raise a UsageError that names a parameter which was never initialized."""
    if not isinstance(net, mxnet().gluon.Block):
        raise UsageError(f"net is a {type(net).__name__}: give a Gluon block")
    for name, parameter in net.collect_params().items():
        if parameter._data is None and not parameter._deferred_init:
            raise UsageError(f"parameter {name} was never initialized: call net.initialize() first")


@contextlib.contextmanager
def preserved(net: Any) -> Iterator[None]:
    """Restores ``net`` after any work on it: classes, modes, compiled graphs, weights, running averages, gradients.

    Parameters whose shape is still unknown get it during the work, as in any first call.
    """
    # Compiled with static_alloc, backward writes running averages outside the engine: only waitall waits for that.
    mxnet().nd.waitall()
    blocks = capture(net)
    parameters = [parameter for parameter in net.collect_params().values() if parameter._data is not None]
    arrays = [saved for parameter in parameters for saved in _copies(parameter)]
    try:
        yield
    finally:
        mxnet().nd.waitall()
        restore(blocks)
        for array, copy, fresh in arrays:
            put_values(array, copy)
            if fresh is not None:
                array._fresh_grad = fresh
        mxnet().nd.waitall()


def capture(net: Any) -> list[tuple[Any, type, dict[str, Any]]]:
    """Class, mode and compiled graph of each block; :func:`restore` sets them again without compiling."""
    return [
        (block, type(block), {key: vars(block)[key] for key in HYBRID_STATE if key in vars(block)})
        for _, block in walk(net)
    ]


def restore(blocks: list[tuple[Any, type, dict[str, Any]]]) -> None:
    """Set the state that :func:`capture` returned."""
    for block, kind, state in blocks:
        block.__class__ = kind
        for key in HYBRID_STATE:
            vars(block).pop(key, None)
        vars(block).update(state)


def _copies(parameter: Any) -> list[tuple[Any, Any, bool | None]]:
    saved: list[tuple[Any, Any, bool | None]] = [
        (array, array.copy(), array._fresh_grad if parameter._grad is not None else None) for array in parameter._data
    ]
    return saved + [(array, array.copy(), None) for array in parameter._grad or []]


@dataclass(frozen=True)
class Finding:
    """An obstacle to compiling.

    Args:
        severity: ``error`` (compiling fails or changes the result) or ``warning`` (a part stays imperative).
        path: of the block in the network, such as ``features.2.body``; ``""`` is the network itself. block: its class.
        where: ``file:line`` of the user's code, if known. reason: the cause. cure: the usual way out.
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
    ("would end the process", "a deconvolution's weight is computed, or used more than once",
     "Call it in float64: F.Deconvolution of inputs and weights that F.cast has made so, see docs/mxnet-faults.md."),
    (r"__bool__|__nonzero__|truth value", "control flow depends on the data",
     "Use F.where, F.contrib.cond or F.contrib.while_loop, or move the decision out of the network."),
    (r"'_?Symbol' object has no attribute '(shape|size|ndim|context|ctx|dtype|stype)'",
     "it asks a Symbol for what only an NDArray has",
     "Use shapes without numbers: F.reshape with 0, -1 … -4, F.slice_like, F.broadcast_like, F.shape_array."),
    (r"asnumpy|asscalar|wait_to_read|__float__|__int__|__index__|__len__|has no len\(\)|float\(\)|int\(\)",
     "it takes a value out of the network into Python",
     "Compute it with F operators, or return it as another output and look at it outside."),
    (r"__setitem__|Assigning to NDArrays|item assignment|__i(add|sub|mul|div|truediv|mod|pow)__|_inplace",
     "it changes an array in place",
     "Make a new array: F.where, F.concat, F.scatter_nd, x = x + y in place of x += y."),
    (r"must have NDArray type|NDArray type|expected NDArray|Symbol.*numpy|no attribute 'handle'|_ctypes.*Symbol",
     "it calls mx.nd (or numpy) on a Symbol",
     "Call the same operator through F, the first argument of hybrid_forward."),
    (r"getitem|indices|slice|Index|iterable|iterate", "it indexes or iterates over a Symbol",
     "Use F.slice_axis, F.slice, F.split or F.take."),
    (r"infer_shape|Shape inconsistent|shape|Incompatible", "the shapes do not fit once the whole graph is compiled",
     "Give in_channels or in_units where a shape cannot be inferred, and check reshapes with fixed numbers."),
)  # fmt: skip


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
