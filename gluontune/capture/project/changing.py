"""Recorded steps as a project has them: clipping and work between steps in their places, what changes as inputs."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from gluontune.capture.events import Backward, Op, Value, draws
from gluontune.capture.interpret import Interpreter, computes
from gluontune.capture.project.sections import Plan
from gluontune.capture.project.tracing import Seen, Told


def moved(seens: Sequence[Seen]) -> None:
    """Move what is computed after a step's last update, from no result of it, to the next step, which reads it.

    A step without a loader's batch ends when the next recording begins: what the script prepares before belongs there.
    """
    for seen, after in zip(seens, seens[1:]):
        begin = _last_barrier(seen)
        known = {n for event in seen.step.events[:begin] for n in event.outputs} | set(seen.step.writes.values())
        wanted = {int(v.name): n for n, v in after.step.values.items() if v.source == "earlier" and v.name.isdigit()}
        live, kept = set(wanted), list[Op]()
        for event in reversed(seen.step.events[begin:]):
            if isinstance(event, Op) and not live.isdisjoint(event.outputs):
                kept.insert(0, event)
                live.update(event.inputs)
        made = {n for event in kept for n in event.outputs}
        read = {n for event in kept for n in event.inputs} - made
        parameters = any(seen.step.values[n].source in ("parameter", "variable", "gradient") for n in read)
        if not kept or read & known or parameters:
            continue
        del seen.step.events[begin:]
        values = {n: seen.step.values[n] for n in made | read}
        copies = [
            Op("_copy", {}, [v], [n], event.recording, event.training, event.line)
            for event in kept for v in event.outputs if (n := wanted.get(v)) is not None
        ]  # fmt: skip
        for copy in copies:
            leaf = after.step.values[copy.outputs[0]]
            after.step.values[copy.outputs[0]] = replace(leaf, source="", name="")
        after.step.values.update(values)
        after.step.events[:0] = [*kept, *copies]
        count = len(kept) + len(copies)
        for call in after.calls:
            call.begin, call.end = call.begin + count, call.end + count
        for told in after.told:
            told.begin, told.end = told.begin + count, told.end + count


def _last_barrier(seen: Seen) -> int:
    """The place after a step's last backward pass, update, or new parameter."""
    written = set(seen.step.writes.values())
    places = [told.end for told in seen.told]
    for place, event in enumerate(seen.step.events):
        if isinstance(event, Backward) or not written.isdisjoint(event.outputs):
            places.append(place + 1)
    return max(places, default=0)


SCALING = {"_mul_scalar", "_npi_multiply_scalar"}
_SAME = {"_copy", "Reshape", "_np_reshape"}
_CLOSE = 1e-4  # the factor is rounded twice on its way through the host


def clipped(seens: Sequence[Seen]) -> None:
    """Note clipping by the norm of all gradients, where the numbers of several steps show it."""
    found = [_scaling(seen) for seen in seens]
    factors = {round(factor, 12) for one in found if one for _, factor, _ in [one]}
    if len(factors) < 2:
        return
    limits = [factor * norm for one in found if one for _, factor, norm in [one]]
    most = float(np.median(limits))
    if any(abs(limit - most) > _CLOSE * most for limit in limits):
        return
    most = float(f"{most:.4g}") if math.isclose(float(f"{most:.4g}"), most, rel_tol=_CLOSE) else most
    names = next(one[0].gradients.keys() for one in found if one)
    for seen, one in zip(seens, found):
        told = one[0] if one else _none(seen, names)
        if told is not None:
            told.most, told.by_hand = most, True
            seen.told.append(told)
            seen.told.sort(key=lambda each: each.begin)


def _slopes(seen: Seen) -> dict[int, tuple[str, int]]:
    """Gradients that backward passes made: the parameter's name, and the pass's place."""
    owner = {n: v.name for n, v in seen.step.values.items() if v.source in ("parameter", "variable")}
    found: dict[int, tuple[str, int]] = {}
    for place, event in enumerate(seen.step.events):
        if isinstance(event, Backward):
            pairs = zip(event.variables, event.outputs)
            found.update({out: (owner[v], place) for v, out in pairs if v in owner})
        elif event.name in _SAME and event.inputs[0] in found:
            found[event.outputs[0]] = found[event.inputs[0]]
    return found


def _scaling(seen: Seen) -> tuple[Told, float, float] | None:
    """Where all gradients of a step are multiplied by one number: the place, the number, their norm."""
    slopes, events = _slopes(seen), seen.step.events
    places = [
        place
        for place, event in enumerate(events)
        if isinstance(event, Op) and event.name in SCALING and event.inputs[0] in slopes
        and not any(told.begin <= place < told.end for told in seen.told)
    ]  # fmt: skip
    if not places:
        return None
    end = places[-1] + 1
    while end < len(events) and isinstance(events[end], Op) and events[end].name in _SAME:  # type: ignore[union-attr]
        end += 1
    told = Told(places[0], "", end)
    inside = events[told.begin : told.end]
    factors = set()
    new: dict[int, str] = {}
    for event in inside:
        if not isinstance(event, Op):
            return None
        if event.name in SCALING and event.inputs[0] in slopes:
            name = slopes[event.inputs[0]][0]
            told.gradients[name], new[event.outputs[0]] = event.inputs[0], name
            factors.add(float(event.attrs["scalar"]))
        elif event.name in _SAME and event.inputs[0] in new:
            new[event.outputs[0]] = new[event.inputs[0]]
        told.line = event.line
    told.new = {name: number for number, name in new.items()}
    written = set(seen.step.writes.values())
    norm = _norm(seen, told.gradients.values())
    if len(factors) != 1 or norm is None or any(not written.isdisjoint(event.outputs) for event in inside):
        return None
    return told, factors.pop(), norm


def _none(seen: Seen, names: Collection[str]) -> Told | None:
    """The place where nothing had to be clipped."""
    last = {name: (out, place) for out, (name, place) in _slopes(seen).items()}
    if not set(names) <= set(last):
        return None
    place = max(place for _, place in last.values()) + 1
    gradients = {name: last[name][0] for name in names}
    return Told(place, "", place, gradients, dict(gradients))


def _norm(seen: Seen, numbers: Iterable[int]) -> float | None:
    total = 0.0
    for number in numbers:
        while seen.step.values[number].array is None:
            made = [e for e in seen.step.events if isinstance(e, Op) and number in e.outputs and e.name in _SAME]
            if not made:
                return None
            number = made[0].inputs[0]
        total += float((np.asarray(seen.step.values[number].array, np.float64) ** 2).sum())
    return math.sqrt(total)


#: Operators of an array and a number: the same of two arrays.
_OF_ARRAYS = {
    "_mul_scalar": "broadcast_mul", "_plus_scalar": "broadcast_add", "_minus_scalar": "broadcast_sub",
    "_rminus_scalar": "broadcast_sub", "_div_scalar": "broadcast_div", "_rdiv_scalar": "broadcast_div",
    "_power_scalar": "broadcast_power", "_npi_multiply_scalar": "_npi_multiply", "_npi_add_scalar": "_npi_add",
    "_npi_subtract_scalar": "_npi_subtract", "_npi_rsubtract_scalar": "_npi_subtract",
    "_npi_true_divide_scalar": "_npi_true_divide", "_npi_rtrue_divide_scalar": "_npi_true_divide",
    "_npi_power_scalar": "_npi_power",
}  # fmt: skip


def numbers_as_inputs(plans: Sequence[Plan]) -> bool:
    """Turn numbers that differ between steps of one structure into arrays of the script's; whether there were any."""
    groups: dict[Any, list[tuple[Plan, list[int]]]] = {}
    for plan in plans:
        inside = plan.seen.inside
        places = [place for place in plan.live if place not in inside]
        groups.setdefault(tuple(_kind(plan.events[place]) for place in places), []).append((plan, places))
    found = _sizes(plans)
    for group in groups.values():
        alike = [plan for plan, _ in group]
        for row in zip(*[places for _, places in group]):
            ops: list[Any] = [plan.events[place] for plan, place in zip(alike, row)]
            if getattr(ops[0], "name", "") in _OF_ARRAYS and len({op.attrs["scalar"] for op in ops}) > 1:
                found = True
                for plan, place in zip(alike, row):
                    _replace(plan, place)
    return found


def _sizes(plans: Sequence[Plan]) -> bool:
    """The same for the sizes that trainers are told, unless they are that of the batch."""
    changed = False
    known = [{v.shape[0] for v in plan.step.values.values() if v.shape and v.source in ("batch", "host")}
             for plan in plans]  # fmt: skip
    for row in zip(*(plan.seen.updates for plan in plans)):
        sizes = [float(told.batch_size) for told in row]
        others = any(size not in own for size, own in zip(sizes, known))
        if len(set(sizes)) > 1 and not row[0].size and others:
            changed = True
            for plan, told, size in zip(plans, row, sizes):
                told.size = _number(plan, size, (), "float32", told.line)
    return changed


def _number(plan: Plan, number: float, shape: tuple[int, ...], dtype: str, line: str) -> int:
    at = min(*plan.step.values, 0) - 1
    plan.step.values[at] = Value(shape, dtype, "host", "number", line, np.full(shape, number, dtype))
    return at


def _kind(event: Any) -> Any:
    if not isinstance(event, Op):
        return len(event.heads), len(event.variables)
    return event.name, len(event.inputs)  # lengths of sequences are attributes that the text may not need


def _replace(plan: Plan, place: int) -> None:
    op: Any = plan.events[place]
    like = plan.value(op.inputs[0])
    number = _number(plan, float(op.attrs["scalar"]), (1,) if like.shape else (), like.dtype, op.line)
    inputs = [number, op.inputs[0]] if "_r" in op.name else [op.inputs[0], number]
    plan.events[place] = replace(op, name=_OF_ARRAYS[op.name], attrs={}, inputs=inputs)


def batches_as_inputs(seens: Sequence[Seen]) -> None:
    """Turn what a script prepares from data alone, outside of ``record``, into arrays that it gives to the step."""
    known: dict[int, np.ndarray] = {}
    trained: set[int] = set()  # values that come from what a step has recorded: states of the next
    for seen in seens:
        values, written = seen.step.values, set(seen.step.writes.values())
        inside, before, trained = seen.inside, trained, set()
        for number, value in values.items():
            if value.source == "earlier" and value.name.isdigit() and int(value.name) in before:
                trained.add(number)
            elif value.array is not None and value.source in ("batch", "host", "mxnet", "earlier"):
                known[number] = value.array
        for place, event in enumerate(seen.step.events):
            if isinstance(event, Op) and (event.recording or not trained.isdisjoint(event.inputs)):
                trained.update(event.outputs)
                continue
            if not isinstance(event, Op) or place in inside or not written.isdisjoint(event.outputs):
                continue
            ready = all(number in known for number in event.inputs) and event.outputs[0] not in known
            if not ready or draws(event.name) or not computes(event.name):
                continue
            run = Interpreter()
            found = run.results(event, {number: run.tensor(known[number]) for number in event.inputs})
            for number, tensor in zip(event.outputs, found):
                known[number] = tensor.numpy()
                values[number] = replace(values[number], source="mxnet", array=known[number], line=event.line)
