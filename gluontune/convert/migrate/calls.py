"""A trace of a Gluon net in which each operator has the number of its block's call."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from gluontune.compute._traversal import walk
from gluontune.compute.tracing import check_stable, repaired, trace_failure
from gluontune.convert.bridge.convert import refuse_unknown
from gluontune.convert.bridge.names import is_free
from gluontune.convert.bridge.source import Source, parameters_of
from gluontune.convert.graph.symbol import Graph, Node, read_symbol
from gluontune.core.arrays import flat, mapped
from gluontune.core.errors import GluontuneError, UsageError, clean
from gluontune.runtime import mxnet, uses_np

#: The hidden attribute with the number of an operator's call.
CALL = "__gluontune_call__"
Entry = tuple[int, int]


@dataclass
class Call:
    """One call of a block.

    Args:
        path: of the block, such as ``features.1.body`` ("" is the net). kind: the block's class.
        parent: the caller, None for the net. graph: the net's, if known.
        takes: the net's arguments. gives: the result: entries of the graph in lists.
        outs: its entries that others read, in order. number: of the call.
        nodes: numbers of its own operators. children: inner calls.
    """

    path: str
    kind: str
    parent: Call | None = None
    takes: Any = None
    gives: Any = None
    graph: Graph = field(default_factory=lambda: Graph([], []))
    outs: list[Entry] = field(default_factory=list)
    number: int = 0
    nodes: list[int] = field(default_factory=list)
    children: list[Call] = field(default_factory=list)

    def all_nodes(self) -> Iterator[int]:
        for call in self.all_calls():
            yield from call.nodes

    def all_calls(self) -> Iterator[Call]:
        yield self
        for child in self.children:
            yield from child.all_calls()

    def flatten(self) -> None:
        """Take the operators of all inner calls."""
        self.nodes, self.children = sorted(self.all_nodes()), []


@dataclass
class Trace:
    """The calls of a net's blocks.

    Args:
        calls: the net's, in predict mode and in training mode. blocks: both graphs as blocks of MXNet's.
        source: the predict mode's graph, and all arrays. names: of each parameter by structure (``0.weight``).
        modes: the calls are the net's in both modes; else they are parts of a step, a method each.
    """

    calls: list[Call]
    blocks: list[Any]
    source: Source
    names: dict[str, str]
    modes: bool = True


def trace_calls(net: Any, sample: tuple[Any, ...]) -> Trace:
    """Trace a block in both modes, without its cached graph.

    Args:
        net: an initialized ``HybridBlock``. sample: its arguments: arrays, or lists of them (states).

    Raises:
        GluontuneError: it cannot be traced; the message has the line of the block.
    """
    mx = mxnet()
    if isinstance(net, mx.gluon.SymbolBlock) or not isinstance(net, mx.gluon.HybridBlock):
        why = (
            "has lost its blocks, from which the classes are made" if hasattr(net, "_cached_graph") else "has no graph"
        )
        raise UsageError(f"migrate takes a HybridBlock; a {type(net).__name__} {why}")
    count = len(flat(sample))
    inputs = ["data"] if count == 1 else [f"data{i}" for i in range(count)]
    made = [mx.sym.var(name) for name in inputs]
    variables = [v.as_np_ndarray() for v in made] if uses_np(net) else made
    right: Callable[[Any], Any] = repaired if uses_np(net) else lambda symbol: symbol
    calls, blocks = [], []
    for mode in (mx.autograd.predict_mode, mx.autograd.train_mode):
        noted: list[Call] = []
        finished: list[Call] = []
        with mode():
            # First without recording: a CustomOp would end the process.
            found = _called(net, nested(sample, iter(variables)))
            graph = read_symbol(mx.sym.Group(flat(found)).tojson())
            refuse_unknown(graph)
            if "Custom" in graph.operators():
                raise GluontuneError("migrate cannot write a CustomOp; gt.bridge.to_torch converts it")
            with _recorded(net, noted, finished):
                _called(net, nested(sample, iter(variables)))
            if mode is mx.autograd.train_mode:
                traces = [found, noted[0].gives, _called(net, nested(sample, iter(variables)))]
                check_stable(net, *(mx.sym.Group(flat(trace)) for trace in traces))
        noted[0].takes = _opened(nested(sample, iter(variables)))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # "Cannot decide type for the following arguments", the inputs
            blocks.append(mx.gluon.SymbolBlock(right(mx.sym.Group(flat(noted[0].gives))), made))
        blocks[-1].collect_params = net.collect_params
        calls.append(_placed(noted, finished, mx, right))
    wanted = {name for call in calls for name in call.graph.variables()}
    arrays, frozen = parameters_of(net, wanted)
    names = {p.name: name for name, p in reversed(list(net._collect_params_with_prefix().items()))}
    for name in (*names.values(), *(call.path for top in calls for call in top.all_calls())):
        odd = [part for part in name.split(".") if name and not is_free(part)]
        if odd:
            raise GluontuneError(
                f"{clean(name, 80)!r}: a PyTorch module cannot have an attribute {clean(odd[0], 80)!r}; rename it in "
                "the block"
            )
    return Trace(calls, blocks, Source(calls[0].graph, arrays, inputs, frozen), names)


def _called(net: Any, arguments: tuple[Any, ...]) -> Any:
    cached, net._cached_graph = getattr(net, "_cached_graph", ()), ()
    try:
        return net(*arguments)
    except Exception as error:
        raise GluontuneError(
            f"{type(net).__name__} cannot be traced{trace_failure(error)}. Give migrate a sample of all that it takes; "
            "a hybrid_forward must use F for all that it computes"
        ) from error
    finally:
        net._cached_graph = cached


def nested(nest: Any, items: Iterator[Any]) -> Any:
    """The same lists and tuples with other items.

    >>> nested((1, [2, 3]), iter("abc"))
    ('a', ['b', 'c'])
    """
    return mapped(lambda item: None if item is None else next(items), nest)


@contextmanager
def _recorded(net: Any, calls: list[Call], finished: list[Call]) -> Iterator[None]:
    """In this context each call of a block of ``net`` is recorded, and operators have its number.

    Args:
        calls: gets the calls in order of their start, finished: of their end.
    """
    mx = mxnet()
    paths = {id(block): path for path, block in walk(net)}
    stack: list[Call] = []
    plain = mx.gluon.Block.__call__

    def noted(block: Any, *args: Any, **others: Any) -> Any:
        scope = getattr(mx.AttrScope._current, "value", None)
        inside = scope is not None and "__subgraph_name__" in scope._attr  # the body of a loop
        if id(block) not in paths or inside:
            return plain(block, *args, **others)
        call = Call(paths[id(block)], type(block).__name__, stack[-1] if stack else None, number=len(calls))
        if call.parent is not None:
            call.parent.children.append(call)
        stack.append(call)
        calls.append(call)
        try:
            with mx.AttrScope(**{CALL: str(call.number)}):
                call.gives = plain(block, *args, **others)
                finished.append(call)
                return call.gives
        finally:
            stack.pop()

    def noted_np(block: Any, *args: Any, **others: Any) -> Any:
        with mx.util.np_shape(True), mx.util.np_array(True):
            return noted(block, *args, **others)

    # A class under mx.util.use_np has a __call__ around the inherited one.
    originals = {mx.gluon.Block: plain}
    for _, block in walk(net):
        for kind in type(block).__mro__:
            method = vars(kind).get("__call__")
            if method is not None and inspect.unwrap(method) is plain:
                originals[kind] = method
    for kind in originals:
        kind.__call__ = noted if kind is mx.gluon.Block else noted_np
    try:
        yield
    finally:
        for kind, method in originals.items():
            kind.__call__ = method


def _placed(calls: list[Call], finished: list[Call], mx: Any, right: Callable[[Any], Any]) -> Call:
    """The net's call with the graph, and each operator that the net's outputs need in its call.

    The graph is written in the order of the calls' ends, so that two calls of a block have the same order.
    """
    net = calls[0]
    nests = [*[_opened(call.gives) for call in finished], net.takes]
    graph = read_symbol(right(mx.sym.Group(flat(nests))).tojson())
    heads = iter(graph.outputs)
    for call, nest in zip(finished, nests):
        call.gives, call.graph = nested(nest, heads), graph
    net.takes = nested(net.takes, heads)
    read = needed(calls, graph)
    for number, node in enumerate(graph.nodes):
        if node.op is not None and number in read:
            calls[int(node.hidden.get(CALL, "0"))].nodes.append(number)
    return net


def entries(nest: Any) -> Iterator[Entry]:
    if isinstance(nest, list):
        for item in nest:
            yield from entries(item)
    elif nest is not None:
        yield nest


def _opened(nest: Any) -> Any:
    """Lists of symbols with one output each, from lists, tuples and symbols with several."""
    if isinstance(nest, (list, tuple)):
        return [_opened(item) for item in nest]
    count = 1 if nest is None else len(nest.list_outputs())
    return nest if count == 1 else [nest[i] for i in range(count)]


def needed(calls: list[Call], graph: Graph) -> set[int]:
    """The operators that the net's outputs need, and each call's entries that others read (``outs``).

    All calls of a block have the same ``outs``, because they share their code.
    """
    chains = [_chain(calls, node) for node in graph.nodes]
    found: set[int] = set()
    waiting: list[tuple[Entry, tuple[int, ...]]] = [(entry, ()) for entry in entries(calls[0].gives)]
    while waiting:
        while waiting:
            entry, reader = waiting.pop()
            for number in chains[entry[0]]:
                if number not in reader and entry not in calls[number].outs:
                    calls[number].outs.append(entry)
            if entry[0] not in found:
                found.add(entry[0])
                waiting += [(other, chains[entry[0]]) for other in graph.nodes[entry[0]].inputs]
        places: dict[str, set[int]] = {}
        for call in calls:
            order = {entry: place for place, entry in reversed(list(enumerate(entries(call.gives))))}
            call.outs = sorted(call.outs, key=lambda entry, at=order: (at.get(entry, len(at)), entry))  # type: ignore[misc]
            if call.parent is not None:
                found_at = {i for i, entry in enumerate(entries(call.gives)) if entry in call.outs}
                places.setdefault(call.path, set()).update(found_at)
        for number, call in enumerate(calls):
            if call.outs and call.parent is not None:
                mine = list(entries(call.gives))
                more = [mine[i] for i in places[call.path] if i < len(mine) and mine[i] not in call.outs]
                waiting += [(entry, ()) for entry in more if number in chains[entry[0]]]
    return found


def _chain(calls: list[Call], node: Node) -> tuple[int, ...]:
    """The numbers of an operator's calls, without the net's; empty for a variable."""
    found: list[int] = []
    call = calls[int(node.hidden.get(CALL, "0"))] if node.op is not None else calls[0]
    while call.parent is not None:
        found.append(call.number)
        call = call.parent
    return tuple(found)
