"""What a script computes anew for each step, as inputs of the step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from gluontune.capture.events import Op, Value, draws
from gluontune.capture.interpret import Interpreter, computes
from gluontune.capture.project.sections import Plan
from gluontune.capture.project.tracing import Seen

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
    groups: dict[Any, list[list[int]]] = {}
    of: dict[int, Plan] = {}
    for plan in plans:
        inside = plan.seen.inside
        places = [place for place in plan.live if place not in inside]
        key = tuple(_kind(plan.events[place]) for place in places)
        of[id(places)] = plan
        groups.setdefault(key, []).append(places)
    found = _sizes(plans)
    for alike in groups.values():
        for row in zip(*alike):
            ops = [of[id(places)].events[place] for places, place in zip(alike, row)]
            if isinstance(ops[0], Op) and ops[0].name in _OF_ARRAYS and len({_scalar(op) for op in ops}) > 1:
                found = True
                for places, place in zip(alike, row):
                    _replace(of[id(places)], place)
    return found


def _sizes(plans: Sequence[Plan]) -> bool:
    """The same for the sizes that trainers are told, unless they are that of the batch."""
    changed = False
    for row in zip(*([told for told in plan.seen.told if told.trainer is not None] for plan in plans)):
        sizes = [float(told.batch_size) for told in row]
        if (
            len(set(sizes)) > 1
            and not row[0].size
            and any(
                size not in {v.shape[0] for v in p.step.values.values() if v.shape and v.source in ("batch", "host")}
                for size, p in zip(sizes, plans)
            )
        ):
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


def _scalar(op: Any) -> str:
    return str(op.attrs["scalar"])


def _replace(plan: Plan, place: int) -> None:
    op = plan.events[place]
    assert isinstance(op, Op)
    like = plan.value(op.inputs[0])
    shape = (1,) if like.shape else ()
    number = _number(plan, float(op.attrs["scalar"]), shape, like.dtype, op.line)
    turned = "_r" in op.name
    inputs = [number, op.inputs[0]] if turned else [op.inputs[0], number]
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
