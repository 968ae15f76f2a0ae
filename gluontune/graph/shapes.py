"""Shapes of all arrays of a graph from those of its inputs, as MXNet infers them, without mxnet."""

from __future__ import annotations

import importlib
import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Callable, Optional

from gluontune.errors import GluontuneError, UsageError
from gluontune.graph.symbol import Graph, Node, sizes_of
from gluontune.registry import Registry
from gluontune.texts import clean

__all__ = ["RULES", "Shape", "ShapeRule", "Shapes", "infer_shapes", "merged", "rule"]

#: Sizes; -1 is one that is not known yet.
Shape = tuple[int, ...]
MaybeShape = Optional[Shape]
Run = Callable[[Mapping[str, Any], list[MaybeShape]], Sequence[MaybeShape]]
Back = Callable[[Mapping[str, Any], list[MaybeShape], list[MaybeShape]], None]


@dataclass(frozen=True)
class ShapeRule:
    """What is known of one operator.

    Args:
        name: MXNet's. run: takes attributes and the inputs' shapes, fills those that follow, returns the outputs'.
        needs: so many of the first inputs' shapes must be known in full before ``run`` is asked; -1: all.
        back: takes the outputs' shapes, too, and fills the inputs' that follow from them.
    """

    name: str
    run: Run
    needs: int = 1
    back: Back | None = None


RULES: Registry[ShapeRule] = Registry("operator with a shape rule")


def rule(*names: str, needs: int = 1, back: Back | None = None) -> Callable[[Run], Run]:
    """Register a function of attributes and inputs' shapes as the shape rule of one or more operators.

    Args:
        needs, back: as of :class:`ShapeRule`.

    >>> @rule("my_halved")
    ... def halved(attrs, shapes):
    ...     return [(shapes[0][0] // 2, *shapes[0][1:])]
    >>> RULES["my_halved"].run({}, [(4, 3)])
    [(2, 3)]
    >>> del RULES._entries["my_halved"]
    """

    def add(run: Run) -> Run:
        for name in names:
            RULES.add(name, ShapeRule(name, run, needs, back))
        return run

    return add


def merged(a: MaybeShape, b: MaybeShape) -> MaybeShape:
    """What two partly known shapes of one array say together.

    Raises:
        ValueError: they contradict each other.

    >>> merged((2, -1), (-1, 3)), merged(None, (4,))
    ((2, 3), (4,))
    """
    if a is None or b is None:
        return b if a is None else a
    if len(a) != len(b) or any(x != y and -1 not in (x, y) for x, y in zip(a, b)):
        raise ValueError(f"{a} and {b} are not alike")
    return tuple(max(x, y) for x, y in zip(a, b))


@dataclass(frozen=True)
class Shapes:
    """What :func:`infer_shapes` found.

    Args:
        variables: by name: inputs, parameters, auxiliary states. outputs: of the graph, in order.
        nodes: of each node, its outputs'. A shape that does not follow from the inputs is None.
    """

    variables: dict[str, MaybeShape]
    outputs: list[MaybeShape]
    nodes: list[tuple[MaybeShape, ...]]


def infer_shapes(graph: Graph, inputs: Mapping[str, Sequence[int]]) -> Shapes:
    """The shapes of all arrays: parameters follow from the inputs and the layers' attributes.

    Args:
        graph: of :func:`read_symbol`. inputs: shapes by name; of parameters, too, where they shall be held.

    Raises:
        UsageError: a name that the graph does not have. GluontuneError: shapes that do not fit a layer (it is
            named), or an operator without a shape rule.

    >>> from gluontune.graph.symbol import read_symbol
    >>> graph = read_symbol('''{"nodes": [{"op": "null", "name": "data", "inputs": []},
    ...   {"op": "null", "name": "fc_weight", "inputs": []}, {"op": "null", "name": "fc_bias", "inputs": []},
    ...   {"op": "FullyConnected", "name": "fc", "attrs": {"num_hidden": "10"}, "inputs": [[0, 0], [1, 0], [2, 0]]}],
    ...   "arg_nodes": [0, 1, 2], "heads": [[3, 0]], "attrs": {"mxnet_version": ["int", 10901]}}''')
    >>> found = infer_shapes(graph, {"data": (8, 3, 4)})
    >>> found.variables["fc_weight"], found.outputs
    ((10, 12), [(8, 10)])
    """
    importlib.import_module("gluontune.graph.rules")
    unknown = [name for name in inputs if name not in graph.variables()]
    if unknown:
        raise UsageError(
            f"{graph.source}: has no input {unknown[0]!r}; it has {', '.join(graph.variables()[:5])}"
        )
    work = _Inference(graph, inputs)
    work.run()
    variables = {n.name: work.found[i][0] for i, n in enumerate(graph.nodes) if n.op is None}
    outputs = [work.of(entry) for entry in graph.outputs]
    return Shapes(variables, outputs, [tuple(work.found[i]) for i in range(len(graph.nodes))])


class _Inference:
    def __init__(self, graph: Graph, inputs: Mapping[str, Sequence[int]]):
        self.graph = graph
        self.found: list[list[MaybeShape]] = [
            [self._of_variable(node, inputs)] if node.op is None else [] for node in graph.nodes
        ]

    def _of_variable(self, node: Node, inputs: Mapping[str, Sequence[int]]) -> MaybeShape:
        given = tuple(int(n) for n in inputs[node.name]) if node.name in inputs else None
        try:
            return merged(given, _noted(node))
        except ValueError:
            raise GluontuneError(
                f"{self.graph.source}: {node.name} is given as {given}, the symbol wants {_noted(node)}"
            ) from None

    def of(self, entry: tuple[int, int]) -> MaybeShape:
        shapes = self.found[entry[0]]
        return shapes[entry[1]] if entry[1] < len(shapes) else None

    def run(self) -> None:
        """Forward until nothing new follows: what a layer says of its inputs may be news to layers before it."""
        while True:
            news = [self._visit(number) for number in range(len(self.graph.nodes))]
            if not any(news):
                return

    def _visit(self, number: int) -> bool:
        node = self.graph.nodes[number]
        if node.op is None:
            return False
        if node.op not in RULES:
            raise GluontuneError(
                f"{self.graph.source}: layer {clean(node.name, 80)}: no shape rule for {node.op}; register one: "
                f"@gt.graph.rule({node.op!r}) above a function of attributes and input shapes"
            )
        entry = RULES[node.op]
        shapes = [self.of(pair) for pair in node.inputs]
        needed = shapes if entry.needs < 0 else shapes[: entry.needs]
        try:
            known = all(s is not None and -1 not in s for s in needed)
            outputs = list(entry.run(node.attrs, shapes)) if known else []
            news = self._keep(number, outputs)
            if entry.back is not None and any(shape is not None for shape in self.found[number]):
                entry.back(node.attrs, shapes, self.found[number])
            return any([news, *[self._learn(pair, shape) for pair, shape in zip(node.inputs, shapes)]])
        except GluontuneError:
            raise
        except (
            ValueError,
            LookupError,
            TypeError,
            AttributeError,
            ArithmeticError,
            AssertionError,
            MemoryError,
        ) as error:
            told = ", ".join("?" if s is None else str(s) for s in shapes)
            why = f": {error}" if isinstance(error, ValueError) and str(error) else ""
            raise GluontuneError(
                f"{self.graph.source}: layer {clean(node.name, 80)}: {node.op} cannot take shapes {told}{why}"
            ) from error

    def _keep(self, number: int, outputs: list[MaybeShape]) -> bool:
        before = self.found[number]
        after = [merged(a, b) for a, b in itertools.zip_longest(before, outputs)]
        self.found[number] = after
        return after != before

    def _learn(self, entry: tuple[int, int], shape: MaybeShape) -> bool:
        """What a layer says of the array that it reads."""
        number, place = entry
        shapes = self.found[number]
        shapes += [None] * (place + 1 - len(shapes))
        before, shapes[place] = shapes[place], merged(shapes[place], shape)
        return before != shapes[place]


def _noted(node: Node) -> MaybeShape:
    """The shape that a symbol notes at a variable; 0 (and in ``mx.np`` -1) is a size that it does not know."""
    sizes = sizes_of(node.hidden.get("__shape__"))
    return tuple(n if n > 0 else -1 for n in sizes) if sizes else None
