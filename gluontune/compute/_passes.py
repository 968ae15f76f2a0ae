"""One pass of a network, forward and backward, as numpy arrays: to compare two ways to run it."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import numpy as np

from gluontune.compute._traversal import flat, walk
from gluontune.gaps import size, worst
from gluontune.runtime import as_nd_array, mxnet, put_values

__all__ = ["gradient_gap", "run", "varies", "without_dropout"]

_SMALL = 0.01  # of the largest gradient


def run(net: Any, inputs: tuple[Any, ...], training: bool) -> tuple[list[Any], list[Any]]:
    """Outputs and gradients (of parameters) of one pass, from the same weights and averages; in training mode.

    In prediction mode there are no gradients: what MXNet 1.9.1 gives behind a max pooling is what the memory held.
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
            mx.autograd.backward(heads)
        gradients = [_numpy(g) for p in parameters for g in p.list_grad()]
        return [_numpy(o) for o in outputs], gradients


def varies(net: Any, inputs: tuple[Any, ...], training: bool) -> bool:
    """Whether two calls on the same input give different outputs."""
    first, again = (run(net, inputs, training)[0] for _ in range(2))
    numbers = [[np.nan_to_num(a, nan=0.5) for a in outputs] for outputs in (first, again)]
    moved = [not np.array_equal(np.isnan(a), np.isnan(b)) for a, b in zip(first, again)]
    return any(moved) or worst(numbers[0], numbers[1]) > 1e-6  # a NaN that comes each time is nothing drawn


@contextlib.contextmanager
def without_dropout(net: Any, wanted: bool) -> Iterator[None]:
    """While it lasts, the dropout layers of ``net`` drop nothing, so that training mode can be compared; if ``wanted``.

    What was compiled keeps the rates that it was compiled with: put the net into its mode inside.
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
    """As :func:`worst`; of a gradient that is small beside the others', which is rounding, relative to those."""
    return worst(mine, theirs, _SMALL * max(map(size, theirs), default=0.0))


@contextlib.contextmanager
def _same_averages(net: Any) -> Iterator[None]:
    """Running averages come back after each pass, so that every pass starts from the same."""
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
