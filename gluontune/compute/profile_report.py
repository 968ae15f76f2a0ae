"""What a profile says: the heaviest operators, oneDNN's primitives, and the rewrite that cures each slow path."""

from __future__ import annotations

import re
from dataclasses import asdict, dataclass, field
from typing import Any

from gluontune.compute._profile_child import BEGIN, END
from gluontune.compute.onednn import Primitive, parse_log, summarize

__all__ = ["Cure", "Operator", "Profile", "report"]


@dataclass(frozen=True)
class Operator:
    """One MXNet operator: calls and milliseconds a step; ``remark`` says what is suspicious about it."""

    name: str
    calls: float
    ms: float
    remark: str = ""


@dataclass(frozen=True)
class Cure:
    """What one rewrite would avoid.

    Args:
        rewrite: its name in ``gt.compute.REWRITES``.
        layers: ``{"BatchNorm": 4, "Pooling": 1}``: layers on a slow path that it cures.
        ms: what they take a step; ``pct`` of the whole step.
        fast_ms: what they would take on a fast path (estimate), or None.
    """

    rewrite: str
    layers: dict[str, int]
    ms: float
    pct: float
    fast_ms: float | None

    def __str__(self) -> str:
        layers = " and ".join(f"{n} {name} layer{'s' if n > 1 else ''}" for name, n in self.layers.items())
        verb = "run" if sum(self.layers.values()) > 1 else "runs"
        return f"{layers} {verb} on a slow path: {self.pct:.0f} % of your step; rewrite {self.rewrite} cures it"


@dataclass
class Profile:
    """What :func:`profile` found. Times are of one step, in milliseconds, with logging switched on.

    ``primitives`` are oneDNN's, slowest first; ``operators`` MXNet's ten heaviest; ``onednn_ms`` the sum
    of all primitives.

    Args:
        step_ms: of the whole step. onednn_ms: the sum of all primitives.
        primitives: oneDNN's, slowest first. operators: MXNet's ten heaviest.
        cures: what takes slow ones away, and the milliseconds in question. notes: remarks, one sentence each.
    """

    step_ms: float
    onednn_ms: float
    primitives: list[Primitive]
    operators: list[Operator]
    cures: list[Cure]
    notes: list[str] = field(default_factory=list)

    @property
    def slow(self) -> list[Primitive]:
        """The primitives on a slow path."""
        return [p for p in self.primitives if p.slow]

    def to_dict(self) -> dict[str, Any]:
        """Plain values, ready for JSON."""
        return asdict(self)

    def __str__(self) -> str:
        head = f"one step {self.step_ms:.1f} ms, {self.onednn_ms:.1f} of it in oneDNN"
        return "\n".join([head, *map(str, self.cures), *self.notes])


def report(log: str, measured: dict[str, Any], steps: int) -> Profile:
    """The profile of some logged steps.

    Args:
        log: what the child printed, oneDNN's lines among it. measured: its ``step_ms`` (milliseconds of one step) and
            ``operators``. steps: how many were logged.
    """
    executions = parse_log(log[log.find(BEGIN) : log.find(END)])
    primitives = summarize(executions, steps)
    total = sum(p.ms for p in primitives)
    step_ms = max(measured["step_ms"], total)
    found = Profile(step_ms, total, primitives, _operators(measured["operators"]), _cures(primitives, step_ms))
    if not executions:
        found.notes.append("oneDNN logged nothing: this mxnet computes without it here, or has it switched off")
    other = [p for p in found.slow if not p.cure]
    if other and total and sum(p.ms for p in other) > 0.02 * total:
        names = ", ".join(dict.fromkeys(f"{p.primitive} {p.implementation}" for p in other))
        share = 100 * sum(p.ms for p in other) / total
        found.notes.append(f"slow paths without a known cure: {names} ({share:.0f} % of the step)")
    return found


_LAYERS = {
    "batch_normalization": "BatchNorm",
    "convolution": "Conv2D",
    "eltwise": "Activation",
    "inner_product": "Dense",
    "pooling": "Pooling",
    "pooling_v2": "Pooling",
    "sum": "addition",
    "reorder": "reorder",
}


def _cures(primitives: list[Primitive], step_ms: float) -> list[Cure]:
    cures = []
    for rewrite in dict.fromkeys(p.cure for p in primitives if p.cure):
        mine = [p for p in primitives if p.cure == rewrite]
        layers: dict[str, int] = {}
        for primitive in dict.fromkeys(p.primitive for p in mine):
            # Forward and backward of a layer are two primitives of one: count the direction with more calls.
            by_direction: dict[str, float] = {}
            for p in mine:
                if p.primitive == primitive:
                    by_direction[p.direction] = by_direction.get(p.direction, 0.0) + p.calls
            layers[_LAYERS.get(primitive, primitive)] = max(1, round(max(by_direction.values())))
        ms = sum(p.ms for p in mine)
        known = [p.fast_ms for p in mine if p.fast_ms is not None]
        fast = sum(known) if len(known) == len(mine) else None
        main = {n: c for n, c in layers.items() if n not in ("addition", "reorder")} or layers
        order = dict(sorted(main.items(), key=lambda item: item[0] != "Pooling"))
        cures.append(Cure(rewrite, order, ms, 100 * ms / step_ms if step_ms else 0.0, fast))
    return sorted(cures, key=lambda c: -c.ms)


def _operators(stats: dict[str, dict[str, float]]) -> list[Operator]:
    """The ten heaviest, with a remark on a backward that takes over five times its forward."""
    ranked = sorted(stats.items(), key=lambda item: -item[1]["ms"])
    rows = []
    for name, entry in ranked[:10]:
        remark = ""
        forward = stats.get(name.replace("_backward_", "", 1)) if name.startswith("_backward_") else None
        if forward and forward["ms"] > 0 and entry["ms"] > 5 * forward["ms"]:
            remark = f"backward takes {entry['ms'] / forward['ms']:.0f} times its forward"
        elif re.search(r"reorder|_copy|Copy", name):
            remark = "moves data without computing"
        elif "fallback" in name.lower():
            remark = "storage fallback: a sparse array was made dense"
        rows.append(Operator(name, entry["calls"], entry["ms"], remark))
    return rows
