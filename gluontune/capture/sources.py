"""Where the leaves of a program come from, found by comparing steps of one kind."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from gluontune.capture.events import Op, Step, Value
from gluontune.capture.program import StepProgram

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
    """The source of one leaf.

    Args:
        values: of the leaf, a step each. before: the values of the steps before those, by number.

    Returns:
        ``parameter``, ``variable``, ``gradient``, ``batch``, ``state`` (made by the step before), ``constant``,
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
