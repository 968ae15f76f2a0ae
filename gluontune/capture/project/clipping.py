"""Clipping that a script writes itself: gradients times a number that it computes from their norm."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Sequence

import numpy as np

from gluontune.capture.events import Backward, Op
from gluontune.capture.project.tracing import Seen, Told

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
