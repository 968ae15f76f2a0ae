"""The dataflow inside one call: its operators and inner calls in a valid order."""

from __future__ import annotations

import contextlib
import graphlib
import heapq
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Union

from gluontune.convert.migrate.calls import Call, Entry, entries


@dataclass
class Unit:
    """An operator of the call (``what`` is its number) or an inner call.

    Args:
        reads: entries from other units or from outside, in order, each once. gives: its entries that others read.
    """

    what: Union[int, Call]
    reads: list[Entry] = field(default_factory=list)
    gives: list[Entry] = field(default_factory=list)


@dataclass
class Flow:
    """Units in order, and the entries from and to the outside."""

    units: list[Unit]
    inputs: list[Entry]
    outputs: list[Entry]


def flow_of(call: Call, mine: Callable[[str, str], bool]) -> Flow:
    """The flow of a call; ``mine`` tells of a variable's name and a block's path whether it belongs to that block."""
    graph, inside = call.graph, set(call.all_nodes())
    home = {n: i for i, n in enumerate(call.nodes)}
    units = [Unit(n) for n in call.nodes]
    for child in call.children:
        nodes = list(child.all_nodes())
        if nodes:
            home.update({n: len(units) for n in nodes})
            units.append(Unit(child, gives=list(child.outs)))
    wanted = list(entries(call.gives)) if call.parent is None else list(call.outs)
    for number in sorted(inside):
        unit = units[home[number]]
        block = unit.what.path if isinstance(unit.what, Call) else call.path
        for entry in graph.nodes[number].inputs:
            variable = graph.nodes[entry[0]].op is None
            if home.get(entry[0]) == home[number] or (variable and mine(graph.nodes[entry[0]].name, block)):
                continue
            _add(unit.reads, entry)
            if entry[0] in home:
                _add(units[home[entry[0]]].gives, entry)
    for entry in wanted:
        if entry[0] in home:
            _add(units[home[entry[0]]].gives, entry)
    ordered = _sorted(units, home)
    inputs: list[Entry] = []
    for unit in ordered:
        for entry in unit.reads:
            if entry[0] not in inside and not (
                graph.nodes[entry[0]].op is None and mine(graph.nodes[entry[0]].name, call.path)
            ):
                _add(inputs, entry)
    return Flow(ordered, inputs, wanted)


def _add(entries: list[Entry], entry: Entry) -> None:
    if entry not in entries:
        entries.append(entry)


def _sorted(units: list[Unit], home: dict[int, int]) -> list[Unit]:
    """Each unit after its inputs; among ready units the first in the graph."""
    first = [unit.what if isinstance(unit.what, int) else min(unit.what.all_nodes()) for unit in units]
    reads = {place: {home[e[0]] for e in unit.reads if e[0] in home} for place, unit in enumerate(units)}
    order = graphlib.TopologicalSorter(reads)
    with contextlib.suppress(graphlib.CycleError):  # its units are left out
        order.prepare()
    ready: list[tuple[int, int]] = []
    done: list[Unit] = []
    while order.is_active():
        for place in order.get_ready():
            heapq.heappush(ready, (first[place], place))
        place = heapq.heappop(ready)[1]
        done.append(units[place])
        order.done(place)
    return done


def chain(flow: Flow) -> bool:
    """Whether each unit reads only the previous one."""
    last = flow.inputs
    for unit in flow.units:
        if unit.reads != last or len(unit.gives) != 1:
            return False
        last = unit.gives
    return last == flow.outputs
