"""Walking a network, and watching one forward pass of it without leaving a trace."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from gluontune.errors import UsageError
from gluontune.runtime import mxnet

__all__ = ["Seen", "as_imperative", "check_inputs", "clear_caches", "walk", "watch"]


def walk(net: Any) -> Iterator[tuple[str, Any]]:
    """Each block of ``net`` once, with its path: ``features.0.body.1``; the net itself is ``""``."""
    known: set[int] = set()
    stack = [("", net)]
    while stack:
        path, block = stack.pop()
        if id(block) in known:
            continue
        known.add(id(block))
        yield path, block
        children = [(f"{path}.{name}" if path else str(name), c) for name, c in block._children.items()]
        stack.extend(reversed(children))


def clear_caches(net: Any) -> None:
    """Forget compiled graphs, so that the next call compiles what the network is now."""
    for _, block in walk(net):
        if hasattr(block, "_clear_cached_op"):
            block._clear_cached_op()


@contextlib.contextmanager
def as_imperative(net: Any) -> Iterator[None]:
    """While it lasts, every block runs imperatively; compiled graphs and settings come back afterwards."""
    blocks = [block for _, block in walk(net) if hasattr(block, "_active")]
    before = [(block, block._active) for block in blocks]
    try:
        for block in blocks:
            block._active = False
        yield
    finally:
        for block, active in before:
            block._active = active


@dataclass
class Seen:
    """What one block took and gave in a forward pass: shapes and identities of its arrays, by call."""

    inputs: list[list[Any]]
    outputs: list[list[Any]]

    def input_shapes(self) -> list[tuple[int, ...]]:
        return [call[0].shape for call in self.inputs if call and hasattr(call[0], "shape")]

    def output_shapes(self) -> list[tuple[int, ...]]:
        return [call[0].shape for call in self.outputs if call and hasattr(call[0], "shape")]


def watch(net: Any, *inputs: Any) -> dict[int, Seen]:
    """Run ``net`` forward once, imperatively and in prediction mode, and note each block's arrays.

    Running averages, random states of dropout and compiled graphs stay as they are; parameters whose
    shape was still unknown get it, as they would in any first call that works.

    Returns:
        by ``id(block)``; a block that was not called is missing.

    Raises:
        UsageError: the net fails on these inputs (wrong shape or type, never initialized).
    """
    check_inputs(inputs)
    seen: dict[int, Seen] = {}
    handles = []
    parameters = net.collect_params().values()
    unknown = [(p, dict(vars(p))) for p in parameters if p._data is None]

    def note(block: Any, args: Any, out: Any) -> None:
        entry = seen.setdefault(id(block), Seen([], []))
        entry.inputs.append(_arrays(args))
        entry.outputs.append(_arrays(out))

    try:
        for _, block in walk(net):
            handles.append(block.register_forward_hook(note))
        with as_imperative(net), mxnet().autograd.pause(train_mode=False):
            out = net(*inputs)
            for array in _arrays(out):
                array.wait_to_read()
    except Exception as error:
        from gluontune.compute._diagnose import first_line

        for parameter, state in unknown:  # shapes inferred from a wrong input would stay in the net
            vars(parameter).update(state)
        raise UsageError(f"net fails on this input before any hybridization: {first_line(error)}") from error
    finally:
        for handle in handles:
            handle.detach()
    return seen


def check_inputs(inputs: tuple[Any, ...]) -> None:
    """Sample inputs must be NDArrays: anything else fails deep inside MXNet with an obscure message."""
    nd = mxnet().nd.NDArray
    for place, value in enumerate(inputs):
        if value is not None and not any(isinstance(a, nd) for a in _arrays(value)):
            raise UsageError(
                f"sample input {place} is a {type(value).__name__}: give an mx.nd.NDArray as the network takes it"
            )


def _arrays(value: Any) -> list[Any]:
    """The arrays of nested lists and tuples, in order."""
    if isinstance(value, (list, tuple)):
        return [array for item in value for array in _arrays(item)]
    return [value] if hasattr(value, "wait_to_read") else []
