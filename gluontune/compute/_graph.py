"""Rewrites of the traced graph: what stands in a block's own code, where no layer's class reaches.

A block is given a class made for it, which derives from its own and changes the graph after Gluon has
traced it. Imperative mode traces nothing, so there such a rewrite does nothing.

Imported only where mxnet is needed.
"""

from __future__ import annotations

import functools
import json
from typing import Any

from gluontune.runtime import mxnet

_SUM = "elemwise_add"
_FREE_OUTPUT = ("BatchNorm", "Convolution")  # their backward does not read what they gave


class OrderedSums:
    """What ``with_ordered_sums`` mixes into a block's class."""

    plain: type
    _cached_graph: Any

    def _get_graph(self, *args: Any) -> Any:
        if not self._cached_graph:
            inputs, out = super()._get_graph(*args)  # type: ignore[misc]
            self._cached_graph = inputs, order_sums(out)[0]
        return self._cached_graph

    def __reduce_ex__(self, protocol: Any) -> Any:
        return _remake, (self.plain,), self.__dict__


@functools.cache
def with_ordered_sums(plain: Any) -> type:
    """A class like ``plain``, of the same name, whose graph has its sums ordered."""
    names = {"plain": plain, "__module__": plain.__module__, "__qualname__": plain.__qualname__}
    return type(plain.__name__, (OrderedSums, plain), names)


def plain_class(block: Any) -> type:
    """The class of ``block`` as it was before its graph was rewritten."""
    kind = type(block)
    return kind.plain if issubclass(kind, OrderedSums) else kind


def order_sums(symbol: Any) -> tuple[Any, int]:
    """``symbol`` with the operands of some sums exchanged, and of how many.

    They are exchanged where the second operand may be overwritten (nobody else reads it) and the first
    may not. Addition commutes exactly, so that no bit of the result changes.

    >>> mx = mxnet()
    >>> x = mx.sym.relu(mx.sym.var("x"))
    >>> y = mx.sym.BatchNorm(x, name="norm")
    >>> order_sums(x + y)[1], order_sums(y + x)[1]
    (1, 0)
    """
    graph = json.loads(symbol.tojson(remove_amp_cast=False))
    nodes = graph["nodes"]
    readers: dict[tuple[int, int], int] = {}
    for entry in [*graph["heads"], *(i for node in nodes for i in node["inputs"])]:
        readers[entry[0], entry[1]] = readers.get((entry[0], entry[1]), 0) + 1

    def is_free(entry: list[int]) -> bool:
        return nodes[entry[0]]["op"] in _FREE_OUTPUT and readers[entry[0], entry[1]] == 1

    count = 0
    for node in nodes:
        if node["op"] == _SUM and is_free(node["inputs"][1]) and not is_free(node["inputs"][0]):
            node["inputs"].reverse()
            count += 1
    if not count:
        return symbol, 0
    ordered = mxnet().sym.load_json(json.dumps(graph, ensure_ascii=False))
    return ordered.as_np_ndarray() if isinstance(symbol, mxnet().sym.np._Symbol) else ordered, count


def _remake(plain: type) -> Any:
    """For pickle and copy, which find no class by the name of one that was made here."""
    kind: Any = with_ordered_sums(plain)
    return kind.__new__(kind)
