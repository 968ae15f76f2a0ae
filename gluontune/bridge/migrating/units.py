"""The dataflow inside one call: what it computes itself, which calls it makes, in an order that runs."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Union

from gluontune.bridge.migrating.calls import Call
from gluontune.graph.symbol import Graph

__all__ = ["Flow", "Unit", "flow_of"]

Entry = tuple[int, int]


@dataclass
class Unit:
    """An operator of the call's own (``what`` is its number) or a call that it makes.

    Args:
        reads: entries from other units or from outside, in order, each once. gives: entries that others read.
    """

    what: Union[int, Call]
    reads: list[Entry] = field(default_factory=list)
    gives: list[Entry] = field(default_factory=list)


@dataclass
class Flow:
    """Units in order, and the entries that come from outside and go there."""

    units: list[Unit]
    inputs: list[Entry]
    outputs: list[Entry]


def flow_of(call: Call, graph: Graph, mine: Any) -> Flow:
    """The flow of a call.

    Args:
        mine: tells of a variable's number and a call's path whether the variable is kept in that block.
    """
    inside = set(call.all_nodes())
    home = {n: i for i, n in enumerate(call.nodes)}
    units = [Unit(n) for n in call.nodes]
    for child in call.children:
        nodes = list(child.all_nodes())
        if nodes:
            home.update({n: len(units) for n in nodes})
            units.append(Unit(child))
    wanted = _wanted_outside(inside, graph)
    for number in sorted(inside):
        unit = units[home[number]]
        block = unit.what.path if isinstance(unit.what, Call) else call.path
        for entry in graph.nodes[number].inputs:
            variable = graph.nodes[entry[0]].op is None
            if home.get(entry[0]) == home[number] or (variable and mine(entry[0], block)):
                continue
            _add(unit.reads, entry)
            if entry[0] in home:
                _add(units[home[entry[0]]].gives, entry)
    for entry in wanted:
        _add(units[home[entry[0]]].gives, entry)
    ordered = _sorted(units, home)
    inputs: list[Entry] = []
    for unit in ordered:
        for entry in unit.reads:
            if entry[0] not in inside and not (
                graph.nodes[entry[0]].op is None and mine(entry[0], call.path)
            ):
                _add(inputs, entry)
    return Flow(ordered, inputs, wanted)


def _add(entries: list[Entry], entry: Entry) -> None:
    if entry not in entries:
        entries.append(entry)


def _wanted_outside(inside: set[int], graph: Graph) -> list[Entry]:
    wanted: list[Entry] = []
    for number, node in enumerate(graph.nodes):
        if number not in inside:
            for entry in node.inputs:
                if entry[0] in inside:
                    _add(wanted, entry)
    for entry in graph.outputs:
        if entry[0] in inside:
            _add(wanted, entry)
    return sorted(wanted)


def _sorted(units: list[Unit], home: dict[int, int]) -> list[Unit]:
    """Each after those that it reads; of those that could come, the one that stood first in the graph."""
    waits = [{home[e[0]] for e in unit.reads if e[0] in home} for unit in units]
    first = [unit.what if isinstance(unit.what, int) else min(unit.what.all_nodes()) for unit in units]
    done: list[int] = []
    left = set(range(len(units)))
    while left:
        ready = [i for i in left if waits[i] <= set(done)]
        chosen = min(ready or left, key=lambda i: first[i])
        done.append(chosen)
        left.remove(chosen)
    return [units[i] for i in done]


def chain(flow: Flow, entries: Iterable[Entry]) -> bool:
    """Whether each unit takes nothing but what the one before gave."""
    last = list(entries)
    for unit in flow.units:
        if unit.reads != last or len(unit.gives) != 1:
            return False
        last = unit.gives
    return last == flow.outputs
