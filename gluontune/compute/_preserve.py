"""Trying things on a user's network, and leaving it as it was."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

from gluontune.compute._traversal import walk
from gluontune.errors import UsageError
from gluontune.runtime import mxnet, put_values

__all__ = ["HYBRID_STATE", "capture", "check_initialized", "preserved", "restore"]

HYBRID_STATE = (
    "_active",
    "_flags",
    "_backend",
    "_backend_opts",
    "_cached_graph",
    "_cached_op",
    "_cached_op_args",
    "_in_format",
    "_out_format",
    "_call_cached_op",
    "_callback",
    "_monitor_all",
)


def check_initialized(net: Any) -> None:
    """Raise a UsageError that names a parameter which was never initialized."""
    if not isinstance(net, mxnet().gluon.Block):
        raise UsageError(f"net is a {type(net).__name__}: give a Gluon block")
    for name, parameter in net.collect_params().items():
        if parameter._data is None and not parameter._deferred_init:
            raise UsageError(f"parameter {name} was never initialized: call net.initialize() first")


@contextlib.contextmanager
def preserved(net: Any) -> Iterator[None]:
    """While it lasts, anything may be done to ``net``; then classes, modes, compiled graphs, weights,
    running averages, gradients and what is pending of them are what they were before.

    Parameters whose shape is still unknown get it during the work, as they would in any first call.
    """
    # Compiled with static_alloc, backward writes running averages behind the engine's back: reading one
    # does not wait for it, only waitall does.
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
    """How each block runs: class, mode, compiled graph. :func:`restore` sets it again, without compiling."""
    return [
        (block, type(block), {key: vars(block)[key] for key in HYBRID_STATE if key in vars(block)})
        for _, block in walk(net)
    ]


def restore(blocks: list[tuple[Any, type, dict[str, Any]]]) -> None:
    """Set what :func:`capture` took."""
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
