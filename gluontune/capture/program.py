"""The program of a training step: leaves and their sources, instructions, changes; equal steps have equal keys."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from gluontune.capture.events import Backward, Op, Step, Value

#: Numbers that may differ from step to step in one and the same program: rates, and factors of loops.
CHANGING = {"lr", "lrs", "wd", "wds", "scalar", "rescale_grad", "t", "eta", "alpha", "clip_gradient"}


@dataclass(frozen=True)
class StepProgram:
    """What one kind of training step computes."""

    values: tuple[Value, ...]  # by number, dense
    leaves: int  # so many of the first values are given, the others are computed
    instructions: tuple[Op | Backward, ...]
    writes: dict[str, int]  # the new values of parameters, by name

    @property
    def key(self) -> str:
        """Equal for steps that compute the same from other numbers."""
        leaves = [
            (v.source, v.name if v.source in ("parameter", "variable", "gradient") else "", v.shape, v.dtype)
            for v in self.values[: self.leaves]
        ]
        found: list[Any] = [leaves, sorted(self.writes.items())]
        for i in self.instructions:
            if isinstance(i, Op):
                attrs = {k: v for k, v in i.attrs.items() if k not in CHANGING}
                found.append((i.name, attrs, i.inputs, i.outputs, i.recording, i.training))
            else:
                found.append((i.heads, i.head_grads, i.variables, i.outputs))
        return hashlib.sha256(json.dumps(found).encode()).hexdigest()[:16]

    @property
    def heads(self) -> list[int]:
        """What is differentiated: the losses."""
        return [head for i in self.instructions if isinstance(i, Backward) for head in i.heads]

    @property
    def gradients(self) -> list[int]:
        return [output for i in self.instructions if isinstance(i, Backward) for output in i.outputs]

    @property
    def variables(self) -> set[int]:
        """Values that gradients are asked of."""
        return {v for i in self.instructions if isinstance(i, Backward) for v in i.variables}

    @property
    def shown(self) -> set[int]:
        """Heads, gradients and written values: what a proof compares."""
        return {*self.heads, *self.gradients, *self.writes.values()}

    def last_uses(self, kept: Collection[int]) -> list[set[int]]:
        """For each instruction, the values that none after it reads, but for those that are to be ``kept``."""
        needed, found = set(kept), list[set[int]]()
        for i in reversed(self.instructions):
            found.append({*i.inputs, *i.outputs} - needed)
            needed |= found[-1]
        return found[::-1]

    def operators(self) -> dict[str, int]:
        """Names of the operators, and how often each is called."""
        return dict(Counter(i.name for i in self.instructions if isinstance(i, Op)))


def program_of(step: Step, roots: Collection[int] = ()) -> StepProgram:
    """What a step changes and what for: instructions that no parameter, head or root depends on are left out.

    ``roots`` are values of the step that a later one goes on from.
    """
    kept = [step.events[place] for place in live_events(step, roots)]
    made = {output for event in kept for output in event.outputs}
    order = dict.fromkeys(v for event in kept for v in event.inputs if v not in made)
    order.update(dict.fromkeys(v for v in step.writes.values() if v not in made))
    leaves = len(order)
    order.update(dict.fromkeys(output for event in kept for output in event.outputs))
    number = {value: at for at, value in enumerate(order)}
    return StepProgram(
        tuple(step.values[value] for value in order),
        leaves,
        tuple(renumbered(event, number) for event in kept),
        {name: number[value] for name, value in step.writes.items()},
    )


def live_events(step: Step, roots: Collection[int] = ()) -> list[int]:
    """The places of the events that parameters, or values that the next step goes on from (``roots``), depend on."""
    live, found = {*step.writes.values(), *roots}, list[int]()
    for place in range(len(step.events) - 1, -1, -1):
        event = step.events[place]
        if not live.isdisjoint(event.outputs) and step.values[event.outputs[0]].source != "mxnet":
            found.append(place)
            live.update(event.inputs)
    return found[::-1]


def renumbered(event: Op | Backward, number: dict[int, int]) -> Op | Backward:
    outputs = [number[v] for v in event.outputs]
    if isinstance(event, Op):
        return replace(event, inputs=[number[v] for v in event.inputs], outputs=outputs)
    grads = event.head_grads and [None if g is None else number[g] for g in event.head_grads]
    heads, variables = [number[v] for v in event.heads], [number[v] for v in event.variables]
    return replace(event, heads=heads, head_grads=grads, variables=variables, outputs=outputs)


#: Sources that one step shows.
_KNOWN = ("parameter", "variable", "gradient", "batch", "mxnet")


def let_go(step: Step, program: StepProgram) -> None:
    """Forget the arrays of a step and its program, but for what tells whether leaves are equal in several steps."""
    for value in program.values[: program.leaves]:
        value.let_go(digest=value.source not in _KNOWN)
    for value in step.values.values():
        value.let_go()
    for event in program.instructions:
        if isinstance(event, Op):
            event.mask = None


def source_of(values: Sequence[Value], before: Sequence[Mapping[int, Value]]) -> str:
    """The source of a leaf by its values, a step each, and the values of the steps before those (``before``).

    It is ``parameter``, ``variable``, ``gradient``, ``batch``, ``state`` (made by the step before), ``constant``,
    ``script`` (copied from the host), ``mxnet`` (made by an operator outside the graph), or ``earlier``.
    """
    first = values[0]
    if first.source in _KNOWN:
        return first.source
    made = [known.get(int(value.name)) if value.source == "earlier" and value.name else None
            for value, known in zip(values, before)]  # fmt: skip
    if len(values) > 1 and first.digest and all(first.digest == other.digest for other in values[1:]):
        return "constant"
    hosts = [value.source == "host" or (one is not None and one.source == "host") for value, one in zip(values, made)]
    if all(hosts):
        return "script"
    return "state" if all(one is not None for one in made) else "earlier"


def describe(programs: Sequence[StepProgram], before: Sequence[Mapping[int, Value]]) -> list[dict[str, Any]]:
    """The leaves of programs of one kind, for JSON: ``{"source", "name", "shape", "dtype", "line"}``."""
    first, found = programs[0], list[dict[str, Any]]()
    for place in range(first.leaves):
        value = first.values[place]
        source = source_of([program.values[place] for program in programs], before)
        name = value.name if source in ("parameter", "batch") else ""
        found.append(
            {"source": source, "name": name, "shape": list(value.shape), "dtype": value.dtype, "line": value.line}
        )
    return found
