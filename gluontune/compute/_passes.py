"""A network run forward and backward as numpy arrays, to compare two ways to run it; the net stays unchanged.

Gradients are checked for gross faults, not for rounding: a kernel that reads data in the wrong layout raises nothing
and computes something else.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator
from typing import Any

import numpy as np

from gluontune.compute._traversal import walk
from gluontune.compute.deconvolution import refuse_endangered
from gluontune.compute.process import started_dtype
from gluontune.core.arrays import flat, gaps, size, worst
from gluontune.core.errors import UsageError
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
        if len(self._plain) < 2:
            return ""
        first, plain = self._plain
        if first_gross(first, plain) is not None:
            return ""
        return first_gross(self._now(), plain) or ""

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
    arrays = [_copies(parameter) for parameter in net.collect_params().values() if parameter._data is not None]
    try:
        yield
    finally:
        mxnet().nd.waitall()
        restore(blocks)
        for saved in arrays:
            for array, copy, fresh in saved:
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
