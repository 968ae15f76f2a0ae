"""A step as sections: what is computed between backward passes and updates, each as a call with its graph."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Union

import numpy as np

from gluontune.capture.events import ADDED, NORMALIZING, RUNNING, Backward, Op, Value, draws
from gluontune.capture.program import live_events
from gluontune.capture.project.tracing import BlockCall, Seen, Told
from gluontune.convert.bridge.names import identifier
from gluontune.convert.migrate.calls import Call
from gluontune.core.errors import GluontuneError


@dataclass
class Section:
    """Operators between two barriers."""

    places: list[int]  # of its events
    recording: bool  # gradients pass
    training: bool
    call: Call = field(default_factory=lambda: Call("", "Training"))  # the root call
    reads: list[int] = field(default_factory=list)  # values, in order
    gives: list[int] = field(default_factory=list)  # what later sections, the script's losses, or the next step read
    weights: dict[str, int] = field(default_factory=dict)  # new values of parameters, by names
    gradients: dict[str, int] = field(default_factory=dict)  # the same of gradients


@dataclass
class Differentiated:
    """A backward pass. variables: names of parameters. adds: to gradients so far."""

    event: Backward
    variables: list[str]
    adds: bool


Part = Union[Section, Differentiated, Told]


class Plan:
    """The parts of a step in order."""

    def __init__(self, seen: Seen, roots: set[int], paths: Mapping[int, str], carried: set[int]):
        self.seen, self.step, self.events = seen, seen.step, seen.step.events
        self.paths = paths  # of blocks in the project, by id
        self.roots, self.carried = roots, carried  # values that the next step goes on from, or the step before computed
        self.live = live_events(seen.step, roots)
        self.owner: dict[int, str] = {}  # parameters' names by value
        self.slope: dict[int, str] = {}  # the same by values of gradients
        self.inputs: list[int] = []  # values given to the step, in the order of their first use
        self.names: dict[int, str] = {}  # of values in the text, the same in all steps of one structure
        self.next_states: list[int] = []  # values that the next step takes, in its order
        self.parts: list[Part] = []
        self.fixed: set[str] = set()  # gammas that BatchNorm overwrites with ones: a trainer changes them in vain
        self._own()
        self._cut()
        self._connect()

    def value(self, number: int) -> Value:
        return self.step.values[number]

    @property
    def arrays(self) -> dict[str, np.ndarray]:
        """Parameters before the step, by Gluon's names."""
        found: dict[str, np.ndarray] = {}
        for value in self.step.values.values():
            if value.source in ("parameter", "variable") and value.array is not None:
                found.setdefault(value.name, value.array)
        return found

    @property
    def passes(self) -> list[Differentiated]:
        return [part for part in self.parts if isinstance(part, Differentiated)]

    @property
    def heads(self) -> list[int]:
        """What is differentiated, in order."""
        return [head for part in self.passes for head in part.event.heads]

    @property
    def line(self) -> str:
        return self.passes[0].event.line if self.passes else ""

    def _own(self) -> None:
        for number, value in self.step.values.items():
            if value.source in ("parameter", "variable"):
                self.owner[number] = value.name
        for weights in (self.step.writes, *(told.weights for told in self.seen.told)):
            self.owner.update({number: name for name, number in weights.items()})
        for number, value in self.step.values.items():
            if value.source == "gradient":
                self.slope[number] = self.owner.get(int(value.name), "") if value.name.isdigit() else value.name
        for event in self.events:
            if isinstance(event, Op) and event.view and event.name == "_copy":  # the array in another class
                for known in (self.owner, self.slope):
                    if event.inputs[0] in known:
                        known.setdefault(event.outputs[0], known[event.inputs[0]])
            if isinstance(event, Backward):
                self.slope.update(zip(event.outputs, (self.owner.get(v, "") for v in event.variables)))
            elif event.name == RUNNING and event.inputs[0] in self.owner:  # once more in this step
                self.owner.setdefault(event.outputs[0], self.owner[event.inputs[0]])
            elif event.name == ADDED:
                self.slope[event.outputs[0]] = self.slope[event.inputs[1]]
        for told in self.seen.told:
            self.slope.update({number: name for name, number in (*told.gradients.items(), *told.new.items())})
        self.slope.update({number: name for name, number in self.seen.gradients.items()})

    def call_of(self, place: int) -> BlockCall | None:
        """The innermost call of a known block around an event."""
        around = [call for call in self.seen.calls if call.begin <= place < call.end]
        return self.known(around[-1]) if around else None

    def known(self, call: BlockCall | None) -> BlockCall | None:
        """The innermost call of a block that has a path in the project: this one or one around it."""
        while call is not None and id(call.block) not in self.paths:
            call = call.parent
        return call

    def is_input(self, place: int) -> bool:
        """Whether an event's values are given to the step: a draw of the script's own."""
        event = self.events[place]
        return isinstance(event, Op) and draws(event.name) and self.call_of(place) is None and not event.inputs

    def _cut(self) -> None:
        """Sections and barriers in order; what needs no gradients is merged with what does, where it may be."""
        done: set[int] = set()
        groups: list[Part] = []
        for place in self.live:
            event = self.events[place]
            nothing = [t for t in self.seen.told if t.begin == t.end <= place and id(t) not in done]
            done.update(map(id, nothing))
            groups.extend(nothing)
            told = next((t for t in self.seen.told if t.begin <= place < t.end), None)
            if told is not None:
                if id(told) not in done:
                    done.add(id(told))
                    groups.append(told)
            elif isinstance(event, Backward):
                pairs = list(zip(event.variables, event.outputs))
                ones = {n for e in self.events if isinstance(e, Op) and e.name == "ones_like" for n in e.outputs}
                fixed = {(v in ones and self.slope.get(g)) or "" for v, g in pairs if not self.owner.get(v)}
                names = [self.owner[v] for v, _ in pairs if self.owner.get(v)]
                self.fixed |= fixed
                if "" in fixed:
                    what = "a gradient of what is no parameter has no place in the project"
                    raise GluontuneError(f"{event.line}: {what}")
                added = {e.inputs[1] for e in self.events if isinstance(e, Op) and e.name == ADDED}
                groups.append(Differentiated(event, names, not added.isdisjoint(event.outputs)))
            elif event.name not in (ADDED, RUNNING) and not self.is_input(place):
                last = groups[-1] if groups else None
                if not (isinstance(last, Section) and last.recording == event.recording):
                    last = Section([], event.recording, event.training)
                    groups.append(last)
                last.places.append(place)
        for part in groups:
            before = self.parts[-1] if self.parts else None
            if isinstance(part, Section) and isinstance(before, Section) and (
                before.recording == part.recording or self._plain(before) or self._plain(part)
            ):  # fmt: skip
                kept = part if self._plain(before) else before
                self.parts[-1] = Section(before.places + part.places, kept.recording, kept.training)
            else:
                self.parts.append(part)

    def _plain(self, section: Section) -> bool:
        """Whether a section without gradients computes the same within one that has them."""
        ops = [e for e in (self.events[place] for place in section.places) if isinstance(e, Op)]
        reads = {number for op in ops for number in op.inputs}
        stateful = any(op.name in (*NORMALIZING, "Dropout", "RNN") for op in ops)
        detached = all(op.name == "BlockGrad" for op in ops)
        apart = detached or not any(n in self.owner or n in self.slope for n in reads)
        return not section.recording and not stateful and apart

    def _connect(self) -> None:
        """What each section reads and gives, and its graph."""
        sections = [part for part in self.parts if isinstance(part, Section)]
        made = {number: section for section in sections for place in section.places
                for number in self.events[place].outputs}  # fmt: skip
        wanted: dict[int, None] = dict.fromkeys(self._wanted())
        for section in sections:
            inside = {number for place in section.places for number in self.events[place].outputs}
            for place in section.places:
                for number in self.events[place].inputs:
                    if number not in inside and number not in section.reads and number not in self.owner:
                        section.reads.append(number)
            wanted.update(dict.fromkeys(n for n in section.reads if made.get(n, section) is not section))
            for number in section.reads:
                if number not in made and number not in self.slope and number not in self.inputs:
                    self.inputs.append(number)
        self.inputs += [told.size for told in self.seen.told if told.size]
        for number in wanted:
            if number in made:
                made[number].gives.append(number)
        for name, number in self.step.writes.items():
            if number in made:
                made[number].weights[name] = number
            elif number in self.inputs or not any(number in self.events[place].outputs for place in self.live):
                raise GluontuneError(f"{self.value(number).line}: {name} is set to values that the script copies")
        for number, name in self._slopes():
            if number in made:
                made[number].gradients[name] = number
        self._name(sections)

    def _wanted(self) -> Iterator[int]:
        for part in self.passes:
            yield from part.event.heads
            yield from (g for g in part.event.head_grads or () if g is not None)
        yield from sorted(self.roots)
        yield from self.step.writes.values()
        yield from (number for number, _ in self._slopes())

    def _slopes(self) -> Iterator[tuple[int, str]]:
        """Gradients that updates read, or the next step."""
        for told in self.seen.told:
            yield from ((number, name) for name, number in told.gradients.items())
        yield from ((number, name) for name, number in self.seen.gradients.items() if number in self.roots)

    def _name(self, sections: Sequence[Section]) -> None:
        """Names of inputs and of what sections give each other."""
        taken = {"model", "trainers", "batch", "states", "step", "torch", "train", "data_py"}
        heads = self.heads
        for number in self.inputs:
            value = self.value(number)
            name = "noise" if draws_it(self, number) else "array"
            if value.source == "batch":
                place = value.name.split(".")
                words = [part for part in place if not part.isdigit()]
                name = words[-1] if words else {0: "data", 1: "label"}.get(int(place[-1]), f"part{place[-1]}")
                name = "label" if words == ["label"] else name
            elif self.is_state(number):
                name = "state"
            elif value.name == "number":
                name = "number"
            self.names[number] = _numbered(name, taken)
        for section in sections:
            for number in section.gives:
                known = "loss" if number in heads else "state" if number in self.roots else "value"
                self.names[number] = _numbered(known, taken)
        grads = {name: _numbered(f"{name}_grad", taken) for name in dict.fromkeys(self.slope.values())}
        self.names.update({number: grads[name] for number, name in self.slope.items()})

    def is_state(self, number: int) -> bool:
        """Whether the step before has made an input."""
        value = self.value(number)
        return value.source == "earlier" and value.name.isdigit() and int(value.name) in self.carried


def draws_it(plan: Plan, number: int) -> Op | None:
    """The draw of the script's own that made an input, or None."""
    events = (e for e in plan.events if isinstance(e, Op) and number in e.outputs)
    return next((event for event in events if draws(event.name)), None)


def _numbered(name: str, taken: set[str]) -> str:
    name = identifier(name, set())
    found, number = name, 2
    while found in taken:
        found, number = f"{name}{number}", number + 1
    taken.add(found)
    return found
