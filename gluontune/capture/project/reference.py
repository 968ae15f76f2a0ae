"""What MXNet computes in the steps of a project, in float64 and as the script did, for its check."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from gluontune.capture.events import RUNNING, Op, Value, draws
from gluontune.capture.interpret import Interpreter
from gluontune.capture.program import StepProgram, program_of
from gluontune.capture.project.changing import SCALING
from gluontune.capture.project.sections import Plan
from gluontune.capture.proof import MXNetReplay, rounded
from gluontune.convert.bridge.operators import creating
from gluontune.core.arrays import gap, size

_KEPT = 4096
_ROUNDED_AWAY = 1e-2  # of a step's losses: so far from float64 are the script's own; what follows is rounding's


def reference(
    mx: Any, plans: Sequence[Plan], names: Mapping[str, str]
) -> tuple[dict[str, np.ndarray], str, bool, list[float]]:
    """Arrays by their names in ``reference.npz``; ``float64`` or ``rounded``; whether random draws were left out.

    And of each step that can be compared how far the script's losses are from those in float64: two steps at least,
    and others up to one that rounding decides. ``names`` are of parameters in the project.
    """
    kept: dict[str, np.ndarray] = {}
    steady, kind, apart = False, "float64", list[float]()
    known: dict[str, np.ndarray] = {}  # new parameters of the steps so far, in float64
    made: dict[int, np.ndarray] = {}  # all values of the step before that this one goes on from
    for n, plan in enumerate(plans):
        if n > 1 and not steady and apart[-1] > _ROUNDED_AWAY:
            break
        apart.append(0.0)
        later = plans[n + 1] if n + 1 < len(plans) else None
        roots = set(plan.roots) | (_earlier(later) & set(plan.step.values) if later else set())
        program = program_of(plan.step, sorted(roots))
        program, dull = _without_chance(program, plan)
        steady = steady or dull
        kind = "rounded" if rounded(program) else kind
        number = {id(value): at for at, value in enumerate(program.values)}
        leaves = [_leaf(value, known, made) for value in program.values[: program.leaves]]
        shown = {r: at for r in roots if (at := number.get(id(plan.step.values[r]))) is not None}
        program = _with_own_factors(mx, program, plan, leaves, number)
        batches = _of_batches(program)
        found = MXNetReplay(mx, program)(leaves, {*shown.values(), *(at for _, at, _ in batches)})
        found.update(_in_order(program, batches, leaves, found))
        known.update({name: found[at] for name, at in program.writes.items()})
        made = {r: found[at] for r, at in shown.items()}
        for place, head in enumerate(dict.fromkeys(plan.heads)):
            kept[f"{kind}/{n}/loss/{place}"] = found[number[id(plan.value(head))]]
            recorded = np.asarray(plan.value(head).array)
            kept[f"float32/{n}/loss/{place}"] = recorded
            wide = found[number[id(plan.value(head))]].reshape(-1)
            apart[-1] = max(apart[-1], gap(recorded.reshape(-1).astype(wide.dtype), wide))
        before = {value.name: leaf for value, leaf in zip(program.values, leaves)}
        writes = {name: at for name, at in program.writes.items() if name not in plan.fixed}
        changes = (size(found[at] - before[name]) for name, at in writes.items() if name in before)
        kept[f"{n}/change"] = np.array(max(changes, default=0.0))
        for name, at in writes.items():
            flat = found[at].reshape(-1)
            kept[f"{kind}/{n}/weight/{names[name]}"] = flat[:: max(1, flat.size // _KEPT)]
        for given in plan.inputs:
            array = plan.value(given).array
            if not plan.is_state(given):
                kept[f"{n}/input/{plan.names[given]}"] = _whole(array, plan, given)
            elif n == 0:
                kept[f"start/{sum(key.startswith('start/') for key in kept)}"] = _whole(array, plan, given)
    kept["bar"] = np.array(min(max(1e-4, 10 * max(apart)), 0.5))
    if kind == "rounded":
        kept = {key.replace("float64/", "rounded/", 1): array for key, array in kept.items()}
    return kept, kind, steady, apart


def _with_own_factors(
    mx: Any, program: StepProgram, plan: Plan, leaves: Sequence[Any], number: Mapping[int, int]
) -> StepProgram:
    """Where the script clips by hand, the factor of these gradients: the script's is that of its own, in float32."""
    for told in plan.seen.told:
        if told.by_hand and told.begin < told.end:
            places = {number[id(plan.value(each))] for each in told.gradients.values()}
            found = MXNetReplay(mx, program)(leaves, places)
            norm = math.sqrt(sum((found[at] ** 2).sum() for at in places))
            scalar = {"scalar": repr(told.most / (norm + 1e-8))}
            program = replace(program, instructions=tuple(
                replace(each, attrs={**each.attrs, **scalar})
                if isinstance(each, Op) and each.name in SCALING and each.inputs[0] in places else each
                for each in program.instructions
            ))  # fmt: skip
    return program


def _of_batches(program: StepProgram) -> list[tuple[str, int, float]]:
    """Running statistics that take in several batches in a step: name, number of the batch's, momentum; in order."""
    names = {at: value.name for at, value in enumerate(program.values[: program.leaves])}
    taken: dict[int, tuple[str, float]] = {}
    for event in program.instructions:
        if isinstance(event, Op) and event.name == RUNNING:
            names[event.outputs[0]] = names[event.inputs[0]]
            taken[event.inputs[1]] = names[event.inputs[0]], float(event.attrs["momentum"])
    several = {name for name, count in Counter(name for name, _ in taken.values()).items() if count > 1}
    made = [at for event in program.instructions for at in event.outputs if at in taken]
    return [(taken[at][0], at, taken[at][1]) for at in made if taken[at][0] in several]


def _in_order(program: StepProgram, batches: Any, leaves: Sequence[Any], found: Mapping[int, Any]) -> dict[int, Any]:
    """These statistics as forward passes change them, which is PyTorch's order; MXNet's is that of backward passes."""
    begin = {value.name: leaf for value, leaf in zip(program.values, leaves)}
    made: dict[str, Any] = {}
    for name, at, momentum in batches:
        made[name] = made.get(name, begin[name]) * momentum + found[at] * (1 - momentum)
    return {program.writes[name]: array for name, array in made.items()}


def _whole(array: Any, plan: Plan, number: int) -> np.ndarray:
    assert array is not None, plan.value(number)
    return np.asarray(array)


def _earlier(plan: Plan) -> set[int]:
    """Values of the step before that a step's leaves are, optimizers' states among them."""
    values = plan.step.values.values()
    return {int(v.name) for v in values if v.source == "earlier" and v.name.isdigit()}


def _leaf(value: Value, known: Mapping[str, np.ndarray], made: Mapping[int, np.ndarray]) -> Any:
    if value.source in ("parameter", "variable") and value.name in known:
        return known[value.name]
    if value.source == "earlier" and value.name.isdigit() and int(value.name) in made:
        return made[int(value.name)]
    return value.array


def _without_chance(program: StepProgram, plan: Plan) -> tuple[StepProgram, bool]:
    """The program with nothing dropped and fixed numbers for draws inside of blocks; whether there were any."""
    inputs = {id(plan.value(number)) for number in plan.inputs}
    found, changed, values = [], False, list(program.values)
    for event in program.instructions:
        if isinstance(event, Op) and event.mask is not None:
            event, changed = replace(event, mask=np.ones_like(event.mask)), True
        elif isinstance(event, Op) and draws(event.name) and id(values[event.outputs[0]]) not in inputs:
            changed = True
            given = {at: Interpreter().torch.zeros(values[at].shape) for at in event.inputs}
            creating.STEADY = True
            try:
                numbers = Interpreter().results(event, given)
            finally:
                creating.STEADY = False
            for at, tensor in zip(event.outputs, numbers):
                values[at] = replace(values[at], array=tensor.numpy())
        elif isinstance(event, Op) and event.name == "RNN" and float(event.attrs.get("p", 0) or 0) > 0:
            changed = True
        found.append(event)
    return replace(program, values=tuple(values), instructions=tuple(found)), changed
