"""A Gluon net traced so that each operator knows the call of the block that made it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from gluontune.bridge.names import is_free
from gluontune.bridge.source import Source, open_source
from gluontune.compute.tracing import place_of_branch
from gluontune.errors import GluontuneError
from gluontune.texts import clean

__all__ = ["Call", "trace_calls"]

_KEY = "__gluontune_call__"


@dataclass
class Call:
    """One call of a block.

    Args:
        path: of the block, as ``features.1.body`` ("" is the net). kind: the block's class.
        parent: the call that made this one, None for the net's.
        nodes: numbers of the operators that it made itself. children: the calls that it made.
    """

    path: str
    kind: str
    parent: Call | None = None
    nodes: list[int] = field(default_factory=list)
    children: list[Call] = field(default_factory=list)

    def all_nodes(self) -> Iterator[int]:
        yield from self.nodes
        for child in self.children:
            yield from child.all_nodes()


def trace_calls(net: Any, inputs: int = 1) -> tuple[Call, Source, dict[str, str]]:
    """Trace a block anew, whatever it has kept.

    Args:
        net: an initialized ``HybridBlock``. inputs: how many arrays it takes.

    Returns:
        The call of the net, its graph with arrays, and of each parameter its name by structure (``0.weight``).

    Raises:
        GluontuneError: it cannot be traced; the message has the line of the block.
    """
    calls: list[Call] = []
    kept, net._cached_graph = getattr(net, "_cached_graph", ()), ()
    try:
        with _recorded(net, calls):
            source = open_source(net, None, inputs)
    finally:
        net._cached_graph = kept
    if source.training is not None:
        raise GluontuneError(
            f"{place_of_branch(net)}: asks for the mode, and computes something else in training than in prediction: "
            "migrate writes one forward. gt.bridge.to_torch has both"
        )
    if not calls:
        raise GluontuneError(f"{type(net).__name__} was not called while it was traced")
    for number, node in enumerate(source.graph.nodes):
        if node.op is not None:
            calls[int(node.hidden.get(_KEY, "0"))].nodes.append(number)
    names = {p.name: name for name, p in reversed(list(net._collect_params_with_prefix().items()))}
    for name in (*names.values(), *(call.path for call in calls)):
        odd = [part for part in name.split(".") if name and not is_free(part)]
        if odd:
            raise GluontuneError(
                f"{clean(name, 80)!r}: a PyTorch module cannot have an attribute {clean(odd[0], 80)!r}; rename it in "
                "the block"
            )
    return calls[0], source, names


def _paths(block: Any, path: str = "") -> Iterator[tuple[int, str]]:
    yield id(block), path
    for name, child in block._children.items():
        yield from _paths(child, f"{path}.{name}" if path else name)


@contextmanager
def _recorded(net: Any, calls: list[Call]) -> Iterator[None]:
    """While inside, each call of a block of ``net`` is noted, and operators carry its number."""
    from gluontune.runtime import mxnet

    mx = mxnet()
    paths: dict[int, str] = {}
    for key, path in _paths(net):
        paths.setdefault(key, path)
    stack: list[Call] = []
    plain = mx.gluon.Block.__call__

    def noted(block: Any, *args: Any, **others: Any) -> Any:
        if id(block) not in paths:
            return plain(block, *args, **others)
        call = Call(paths[id(block)], type(block).__name__, stack[-1] if stack else None)
        if call.parent is not None:
            call.parent.children.append(call)
        stack.append(call)
        calls.append(call)
        try:
            with mx.AttrScope(**{_KEY: str(len(calls) - 1)}):
                return plain(block, *args, **others)
        finally:
            stack.pop()

    mx.gluon.Block.__call__ = noted
    try:
        yield
    finally:
        mx.gluon.Block.__call__ = plain
