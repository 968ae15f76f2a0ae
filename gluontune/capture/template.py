"""Templates of steps: what the hooks saw of one, by places of arrays, and the values that its events compute."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np

from gluontune.capture.events import Op, Step, Value
from gluontune.capture.program import CHANGING, renumbered

_PLAIN = (str, int, float, bool, type(None), type, np.dtype, np.generic)


class Leaf(NamedTuple):
    """An array at its first appearance in a step."""

    place: int  # of the array
    number: int | None  # of its value, or None where it is written to before it is read
    kind: tuple[tuple[int, ...], str]  # shape and type
    owner: tuple[str, str, str] | None  # kind, name and request of what it belongs to
    array: Any = None  # itself, where it is the same in each step


@dataclass
class Entry:
    """What one hook saw: an operator, a view, a write, a backward pass, an update's begin or end, a batch."""

    kind: str  # op, view, write, backward, update, updated or batch
    what: tuple[Any, ...] = ()  # an operator's name, handle, is_np and many; else arguments that are no arrays
    keys: Sequence[Any] = ()  # of an operator's attributes
    values: Sequence[Any] = ()
    inputs: list[int] = field(default_factory=list)  # ids of arrays, later places
    results: list[int] = field(default_factory=list)
    out: str = ""  # how the results were given
    modes: tuple[bool, bool] = (False, False)  # recording, training
    events: int = 0  # how many the step had afterwards
    numbers: int = 0  # of values, the same
    now: dict[int, int] = field(default_factory=dict)  # the values of arrays that it changed, by id or place
    leaves: tuple[Leaf, ...] = ()  # arrays that appeared
    specs: tuple[Any, ...] = ()  # shapes and types of results
    shown: Any = None  # of a view how it follows from its base
    fresh: list[int] = field(default_factory=list)  # variables that a backward pass reached
    calls: list[Any] = field(default_factory=list)  # of blocks that begin there, in a template

    def __post_init__(self) -> None:
        #: The places of attributes that may differ from step to step.
        self.dynamic_places = {at for at, key in enumerate(self.keys) if str(key) in CHANGING}

    def signature(self, places: Mapping[int, int]) -> Any:
        """Equal for equal hooks, numbers that change aside."""
        fixed = tuple((str(k), str(v)) for k, v in zip(self.keys, self.values) if str(k) not in CHANGING)
        arrays = tuple(places[i] for i in self.inputs), tuple(places[r] for r in self.results)
        changed = tuple(sorted((places[i], n) for i, n in self.now.items()))
        kinds = tuple((leaf.number, leaf.kind, leaf.owner) for leaf in self.leaves)
        trainers = tuple([id(each) for each in self.what]) if self.kind == "update" else self.what
        what = repr(self.what) if self.kind == "view" else trainers
        counts = self.events, self.numbers
        return self.kind, what, fixed, arrays, self.out, self.modes, counts, changed, kinds, self.specs


def form_of(entries: Sequence[Entry]) -> list[Any]:
    """What hooks saw, without shapes, attributes and arrays."""
    return [(entry.kind, entry.what[0] if entry.kind == "op" else "", len(entry.inputs)) for entry in entries]


def given_as(out: Any) -> str:
    """How an operator's results were given: as an array or a list (``one``, ``list``), or ""."""
    return "" if out is None else "list" if isinstance(out, (list, tuple)) else "one"


def is_plain(value: Any) -> bool:
    """Whether an attribute can be compared by ``==``."""
    if isinstance(value, (tuple, list)):
        return all(map(is_plain, value))
    return isinstance(value, _PLAIN) or type(value).__module__ == "mxnet.context"


def plain(values: Sequence[Any]) -> list[Any]:
    """Attributes that can be compared: arrays, which MXNet takes as text, are read."""
    return [value if isinstance(value, _PLAIN) or is_plain(value) else str(value) for value in values]


class Template:
    """A step of a recorder's program that can be followed.

    Args:
        entries: with ids. places: of arrays, by ids. fixed: places of arrays that are the same in each step.
    """

    def __init__(self, recorder: Any, entries: Sequence[Entry], places: Mapping[int, int], signatures: Sequence[Any],
                 step: Step, fixed: Mapping[int, Any], may_end: bool):  # fmt: skip
        self.form = form_of(entries)
        self.signatures, self.may_end, base = list(signatures), may_end, recorder.base
        self.values: list[Value] = [step.values[base + 1 + at] for at in range(entries[-1].numbers)]
        dense = {base + 1 + at: at for at in range(len(self.values))}
        self.events = [renumbered(event, dense) for event in step.events[: entries[-1].events]]
        self.wanted = {dense[n] for n in recorder.interpreter.wanted if n in dense}
        self.count = len(places)
        self.entries, self.seen = [], [0]  # places before each entry
        self.history: list[list[tuple[int, int]]] = [[] for _ in places]
        self.bases = {places[k]: places[id(e.base.array)] for k, e in recorder.held.items()
                      if k in places and e.base is not None and e.base.array is not None}  # fmt: skip
        self.leaves: dict[int, Leaf] = {}
        for at, entry in enumerate(entries):
            new = tuple(leaf._replace(array=fixed.get(leaf.place)) for leaf in entry.leaves)
            for leaf in new:
                self.leaves[leaf.place] = leaf
                if leaf.number is not None:
                    self.history[leaf.place].append((-1, leaf.number))
            now = {places[key]: number for key, number in entry.now.items()}
            for place, number in now.items():
                self.history[place].append((at, number))
            inputs, results, fresh = ([places[k] for k in keys] for keys in (entry.inputs, entry.results, entry.fresh))
            mine = replace(entry, inputs=inputs, results=results, fresh=fresh, now=now, leaves=new, calls=[])
            self.entries.append(mine)
            known = [self.seen[-1], *[p + 1 for p in [*inputs, *results, *now, *[leaf.place for leaf in new]]]]
            self.seen.append(max(known))
        self.fixed = {id(array): place for place, array in fixed.items()}
        self.fixed_arrays = [fixed.get(place) for place in range(self.count)]
        self.last = [known[-1][1] if known else None for known in self.history]
        #: Values that the step left open, with what made them.
        self.open_ones = [(place, kind) for number, kind in recorder.unreached() for place in range(self.count)
                          if number in dense and self.last[place] == dense[number]]  # fmt: skip
        #: Fixed arrays whose value before the step is not asked for.
        self.given = {place for place in fixed if place not in self.leaves or self.leaves[place].number is None}
        self.fixed_leaves = [(leaf.number, id(leaf.array)) for leaf in self.leaves.values()
                             if leaf.array is not None and leaf.number is not None]  # fmt: skip
        recording = [entry.modes[0] for entry in self.entries if entry.kind == "op"]
        self.was_recording = recording[-1] if recording else None
        self.leaf_numbers = {leaf.number for leaf in self.leaves.values()}
        self.viewed = [0] * self.count
        for entry in self.entries:
            if entry.kind == "view":
                self.viewed[entry.inputs[0]] += 1
        self.parts: dict[tuple[int, int], Any] = {}
        self.refused, self.untried = "", False

    def number_of(self, place: int, before: int) -> int | None:
        """The value that an array holds before an entry; None where it must be looked for."""
        known = [(at, number) for at, number in self.history[place] if at < before]
        if not known:
            return None
        since, base = known[-1][0], self.bases.get(place)
        while base is not None:  # a view of what was written to since
            if any(since < at < before for at, _ in self.history[base]):
                return None
            base = self.bases.get(base)
        return known[-1][1]

    def dynamic(self) -> dict[int, int]:
        """The entry of each event whose attributes may change."""
        found, begin = dict[int, int](), 0
        for at, entry in enumerate(self.entries):
            if entry.kind == "op" and entry.dynamic_places:
                found.update((e, at) for e in range(begin, entry.events) if isinstance(self.events[e], Op))
            begin = entry.events
        return found
