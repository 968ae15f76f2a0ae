"""The blocks of a network, of ``mx.nd`` or ``mx.np``, and the arrays of one forward pass without side effects."""

from __future__ import annotations

import contextlib
import functools
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from gluontune.core.arrays import flat, mapped
from gluontune.core.errors import UsageError, first_line
from gluontune.runtime import as_nd_array, as_net_array, mxnet, uses_np


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
    """Drop compiled graphs, so that the next call compiles the present network."""
    for _, block in walk(net):
        if hasattr(block, "_clear_cached_op"):
            block._clear_cached_op()


@contextlib.contextmanager
def as_imperative(net: Any) -> Iterator[None]:
    """In this context every block runs imperatively; compiled graphs and settings come back afterwards."""
    before = [(block, block._active) for _, block in walk(net) if hasattr(block, "_active")]
    try:
        for block, _ in before:
            block._active = False
        yield
    finally:
        for block, active in before:
            block._active = active


@dataclass
class Seen:
    """Input and output arrays of one block in a forward pass, by call, and its arguments."""

    inputs: list[list[Any]]
    outputs: list[list[Any]]
    arguments: list[tuple[Any, ...]]

    @property
    def taken(self) -> set[int]:
        """Identities of the first inputs."""
        return {id(call[0]) for call in self.inputs if call}

    @property
    def given(self) -> set[int]:
        """Identities of the first outputs."""
        return {id(call[0]) for call in self.outputs if call}

    def input_shapes(self) -> list[tuple[int, ...]]:
        return [call[0].shape for call in self.inputs if call and hasattr(call[0], "shape")]

    def output_shapes(self) -> list[tuple[int, ...]]:
        return [call[0].shape for call in self.outputs if call and hasattr(call[0], "shape")]


def watch(net: Any, *inputs: Any) -> dict[int, Seen]:
    """Run ``net`` forward once, imperatively and in prediction mode, and record each block's arrays.

    Running averages, random states of dropout and compiled graphs stay unchanged; parameters with an unknown shape
    get it, as in any first call that works.

    Returns:
        by ``id(block)``; a block that was not called is missing.

    Raises:
        UsageError: the net fails on these inputs (wrong shape or type, never initialized).
    """
    _check_inputs(inputs)
    seen: dict[int, Seen] = {}
    parameters = net.collect_params().values()
    unknown = [(p, dict(vars(p))) for p in parameters if p._data is None]

    def note(block: Any, args: Any, out: Any) -> None:
        entry = seen.setdefault(id(block), Seen([], [], []))
        entry.inputs.append(_arrays(args))
        entry.outputs.append(_arrays(out))
        entry.arguments.append(tuple(args))

    handles = [block.register_forward_hook(note) for _, block in walk(net)]
    try:
        with as_imperative(net), mxnet().autograd.pause(train_mode=False):
            out = net(*inputs)
            for array in _arrays(out):
                array.wait_to_read()
    except Exception as error:
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
    """The arguments of one call of ``net``, from the user's sample inputs.

    A single list or tuple may be one argument (the net takes a list) or all of them: the one that works is taken.
    Arrays become the kind that the net computes with.
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
    """An addition to an error if a network's arrays and the active semantics are of different kinds, or ""."""
    built, active = uses_np(net), uses_np()
    if built == active:
        return ""
    if built:
        return "; its parameters are mx.np arrays, but npx.set_np() is not active in this thread: call it first"
    return "; its parameters are mx.nd arrays, made before npx.set_np() was called: call it before building the net"


def _check_inputs(inputs: tuple[Any, ...]) -> None:
    """Refuse sample inputs other than NDArrays, which fail deep inside MXNet with an obscure message."""
    nd = mxnet().nd.NDArray
    for place, value in enumerate(inputs):
        if value is not None and not any(isinstance(a, nd) for a in _arrays(value)):
            raise UsageError(
                f"sample input {place} is a {type(value).__name__}: give an mx.nd.NDArray as the network takes it "
                "(or an mx.np array)"
            )


def batch_size(inputs: tuple[Any, ...]) -> int:
    """The length of the first axis that all arrays share, or 0."""
    arrays = flat(inputs)
    size = arrays[0].shape[0] if arrays and arrays[0].shape else 0
    return size if all(a.shape and a.shape[0] == size for a in arrays) else 0


def first_samples(value: Any, count: int) -> Any:
    """The first ``count`` samples of each array, in the same nesting; what is no array stays."""
    return mapped(lambda item: item[:count] if hasattr(item, "shape") else item, value)


def _arrays(value: Any) -> list[Any]:
    return [item for item in flat(value) if hasattr(item, "wait_to_read")]


_inside = threading.local()  # .np: a forward of a network of mx.np is running with old arrays


def either_kind(forward: Any) -> Any:
    """A ``hybrid_forward`` written with operators of ``mx.nd``, usable by networks of ``mx.np`` too.

    Most operators of ``npx`` are the old ones by another name, and some old ones are missing; so arrays and symbols
    change their kind at the boundary, which costs nothing.
    """

    @functools.wraps(forward)
    def hybrid_forward(self: Any, F: Any, *args: Any, **parameters: Any) -> Any:
        if not mxnet().util.is_np_array():
            return forward(self, F, *args, **parameters)
        before, _inside.np = getattr(_inside, "np", False), True
        try:
            with mxnet().util.np_array(False):
                out = forward(self, F, *map(_old, args), **{k: _old(v) for k, v in parameters.items()})
        finally:
            _inside.np = before
        return _new(out)

    return hybrid_forward


def as_called(forward: Any, F: Any, *args: Any, **parameters: Any) -> Any:
    """Call Gluon's ``hybrid_forward`` from one of :func:`either_kind`, with the network's kind of array."""
    if not getattr(_inside, "np", False):
        return forward(F, *args, **parameters)
    _inside.np = False
    try:
        with mxnet().util.np_array(True):
            return _old(forward(F, *map(_new, args), **{k: _new(v) for k, v in parameters.items()}))
    finally:
        _inside.np = True


def _old(value: Any) -> Any:
    return value.as_nd_ndarray() if isinstance(value, mxnet().sym.Symbol) else as_nd_array(value)


def _new(value: Any) -> Any:
    return value.as_np_ndarray() if hasattr(value, "as_np_ndarray") else value
