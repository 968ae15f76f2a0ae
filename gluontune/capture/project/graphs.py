"""The graphs of a step's sections: each an operator's node, in the call of its block."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gluontune.capture.events import Op
from gluontune.capture.interpret import bridge_name, computes
from gluontune.capture.project.sections import Plan, Section
from gluontune.capture.project.tracing import BlockCall
from gluontune.convert.graph.schemas import schema
from gluontune.convert.graph.symbol import Graph, Node
from gluontune.convert.migrate.calls import CALL, Call, Entry, needed
from gluontune.core.errors import GluontuneError

_SAME = {"_copy", "identity", "_np_copy", "_copyto"}


def draw(plan: Plan, section: Section) -> None:
    """Put a section's graph, and the calls of blocks in it, into its root call."""
    graph, entries = Graph([], []), dict[int, Entry]()
    root = section.call
    calls, of_block = [root], dict[int, Call]()

    def call_for(block_call: BlockCall | None) -> Call:
        if block_call is None:
            return root
        if id(block_call) not in of_block:
            parent = block_call.parent
            while parent is not None and id(parent.block) not in plan.paths:
                parent = parent.parent
            above = call_for(parent)
            found = Call(plan.paths[id(block_call.block)], type(block_call.block).__name__, above)
            found.number, found.gives = len(calls), block_call.gives
            of_block[id(block_call)] = found
            above.children.append(found)
            calls.append(found)
        return of_block[id(block_call)]

    def entry_of(number: int) -> Entry:
        if number not in entries:
            name = plan.owner.get(number) or plan.names[number]
            known = next((i for i, node in enumerate(graph.nodes) if node.op is None and node.name == name), None)
            if known is None:
                graph.nodes.append(Node(None, name))
            entries[number] = (len(graph.nodes) - 1 if known is None else known, 0)
        return entries[number]

    root.takes = [entry_of(number) for number in section.reads]
    for place in section.places:
        op = plan.events[place]
        assert isinstance(op, Op)
        if not computes(op.name):
            raise GluontuneError(f"{op.line}: operator {op.name} is not known to PyTorch's side")
        inputs = [entry_of(number) for number in op.inputs]
        if _is_same(plan, op):
            entries[op.outputs[0]] = inputs[0]
            continue
        name, attrs = _told(plan, op)
        call = call_for(plan.call_of(place))
        node = Node(name, f"{op.name} ({op.line})", attrs, inputs, {CALL: str(call.number)})
        graph.nodes.append(node)
        entries.update({number: (len(graph.nodes) - 1, i) for i, number in enumerate(op.outputs)})
    gives = [entries.get(number) or entry_of(number) for number in section.gives]
    root.gives = gives[0] if len(gives) == 1 else gives
    graph.outputs = gives
    for call in calls[1:]:
        call.gives = _known(call.gives, entries)
    for call in calls:
        call.graph = graph
    read = needed(calls, graph)
    for place, node in enumerate(graph.nodes):
        if node.op is not None and place in read:
            calls[int(node.hidden[CALL])].nodes.append(place)


def _is_same(plan: Plan, op: Op) -> bool:
    given, found = plan.value(op.inputs[0]) if op.inputs else None, plan.value(op.outputs[0])
    if given is None or (given.shape, given.dtype) != (found.shape, found.dtype):
        return False
    return op.name in _SAME or op.name in ("Reshape", "_np_reshape", "Cast", "_npi_cast")


def _told(plan: Plan, op: Op) -> tuple[str, dict[str, Any]]:
    """The operator's name and attributes; sizes of the batch, which a reshape may name, follow from the others."""
    name, attrs = bridge_name(op.name), op.attrs
    found = plan.value(op.outputs[0]).shape
    if found and ((op.name == "Reshape" and op.view) or (attrs.get("newshape") == str(found) and 0 not in found)):
        given, shape = plan.value(op.inputs[0]).shape, (-1, *found[1:])
        if len(found) > 1 and len(given) > 1 and given[0] == found[0]:
            shape = (0, *(found[1:] if len(found) > 2 else (-1,)))
        name, attrs = "Reshape", {"shape": str(shape)}
    return name, schema(name).typed(attrs)


def _known(nest: Any, entries: Mapping[int, Entry]) -> Any:
    """A block's result: entries of the graph where they are in it."""
    if isinstance(nest, list):
        return [_known(item, entries) for item in nest]
    return entries.get(nest) if nest is not None else None
