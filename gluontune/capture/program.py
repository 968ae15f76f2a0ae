"""The program of a training step: leaves, instructions, and what they change; equal steps have equal keys."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection
from dataclasses import dataclass, replace
from typing import Any

from gluontune.capture.events import Backward, Op, Step, Value

#: Numbers that may differ from step to step in one and the same program: rates, and factors of loops.
CHANGING = {"lr", "lrs", "wd", "wds", "scalar", "rescale_grad", "t", "eta", "alpha", "clip_gradient"}


@dataclass(frozen=True)
class StepProgram:
    """What one kind of training step computes.

    Args:
        values: by number, dense; the first ``leaves`` of them are given, the others are computed.
        instructions: operators and backward passes, over these numbers.
        writes: the new values of parameters, by name.
    """

    values: tuple[Value, ...]
    leaves: int
    instructions: tuple[Op | Backward, ...]
    writes: dict[str, int]

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
        """All new gradients."""
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
            found.append({*_read_by(i), *i.outputs} - needed)
            needed |= found[-1]
        return found[::-1]

    def operators(self) -> dict[str, int]:
        """Names of the operators, and how often each is called."""
        found: dict[str, int] = {}
        for i in self.instructions:
            if isinstance(i, Op):
                found[i.name] = found.get(i.name, 0) + 1
        return found


def program_of(step: Step, roots: Collection[int] = ()) -> StepProgram:
    """What a step changes and what for: instructions that no parameter, head or root depends on are left out.

    Args:
        roots: values of the step that a later one goes on from.
    """
    kept = [step.events[place] for place in live_events(step, roots)]
    made = {output for event in kept for output in event.outputs}
    order = dict.fromkeys(v for event in kept for v in _read_by(event) if v not in made)
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
            live.update(_read_by(event))
    return found[::-1]


def _read_by(event: Op | Backward) -> list[int]:
    if isinstance(event, Op):
        return event.inputs
    return [*event.heads, *[g for g in event.head_grads or () if g is not None], *event.variables]


def renumbered(event: Op | Backward, number: dict[int, int]) -> Op | Backward:
    outputs = [number[v] for v in event.outputs]
    if isinstance(event, Op):
        return replace(event, inputs=[number[v] for v in event.inputs], outputs=outputs)
    grads = event.head_grads and [None if g is None else number[g] for g in event.head_grads]
    heads, variables = [number[v] for v in event.heads], [number[v] for v in event.variables]
    return replace(event, heads=heads, head_grads=grads, variables=variables, outputs=outputs)
