"""Work that a script does between two steps, moved to the step that it is for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from gluontune.capture.events import Backward, Op
from gluontune.capture.project.tracing import Seen


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
