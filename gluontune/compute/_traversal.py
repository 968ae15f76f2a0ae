"""Walking a network, and watching one forward pass of it without leaving a trace."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from gluontune.errors import UsageError
from gluontune.runtime import as_net_array, mxnet, uses_np

__all__ = ["Seen", "as_imperative", "clear_caches", "flat", "sample_of", "walk", "watch"]


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
    """What one block took and gave in a forward pass, by call: its arrays, and its arguments as they were."""

    inputs: list[list[Any]]
    outputs: list[list[Any]]
    arguments: list[tuple[Any, ...]]

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
    _check_inputs(inputs)
    seen: dict[int, Seen] = {}
    handles = []
    parameters = net.collect_params().values()
    unknown = [(p, dict(vars(p))) for p in parameters if p._data is None]

    def note(block: Any, args: Any, out: Any) -> None:
        entry = seen.setdefault(id(block), Seen([], [], []))
        entry.inputs.append(_arrays(args))
        entry.outputs.append(_arrays(out))
        entry.arguments.append(tuple(args))

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
        raise UsageError(
            f"net fails on this input before any hybridization: {first_line(error)}{_mixed_kinds(net)}"
        ) from error
    finally:
        for handle in handles:
            handle.detach()
    return seen


def sample_of(net: Any, inputs: tuple[Any, ...]) -> tuple[Any, ...]:
    """The arguments of one call of ``net``, from what the user gave as sample inputs.

    One list or tuple alone may stand for one argument (the net takes a list) or for all of them; what the net
    takes is found by trying. Arrays become the kind that the net computes with.

    Raises:
        UsageError: no array among them, or the net takes neither.
    """
    _check_inputs(inputs)
    given = tuple(as_net_array(value, net) for value in inputs)
    if len(given) != 1 or not isinstance(given[0], (list, tuple)):
        return given
    several = tuple(given[0])
    errors = []
    for arguments in (given, several):
        try:
            watch(net, *arguments)
        except UsageError as error:
            errors.append(error)
        else:
            return arguments
    raise errors[-1]


def _mixed_kinds(net: Any) -> str:
    """What to add to an error where a network's arrays and the active semantics are of different kinds."""
    built, active = uses_np(net), uses_np()
    if built == active:
        return ""
    if built:
        return "; its parameters are mx.np arrays, but npx.set_np() is not active in this thread: call it first"
    return "; its parameters are mx.nd arrays, made before npx.set_np() was called: call it before building the net"


def _check_inputs(inputs: tuple[Any, ...]) -> None:
    """Sample inputs must be NDArrays: anything else fails deep inside MXNet with an obscure message."""
    nd = mxnet().nd.NDArray
    for place, value in enumerate(inputs):
        if value is not None and not any(isinstance(a, nd) for a in _arrays(value)):
            raise UsageError(
                f"sample input {place} is a {type(value).__name__}: give an mx.nd.NDArray as the network takes it "
                "(or an mx.np array)"
            )


def flat(value: Any) -> list[Any]:
    """The items of nested lists and tuples, in order, without None."""
    if isinstance(value, (list, tuple)):
        return [item for part in value for item in flat(part)]
    return [] if value is None else [value]


def _arrays(value: Any) -> list[Any]:
    """The arrays of nested lists and tuples, in order."""
    if isinstance(value, (list, tuple)):
        return [array for item in value for array in _arrays(item)]
    return [value] if hasattr(value, "wait_to_read") else []
