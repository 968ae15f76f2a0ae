"""The report of a profile: the heaviest operators, oneDNN's primitives, and the rewrite that cures each slow path.

oneDNN's verbose log has the implementation and its time. A line (oneDNN 2.4, in the mxnet 1.9.1 wheel)::

    dnnl_verbose,exec,cpu,convolution,jit:avx512_common,forward_training,src_f32::blocked:aBcd16b:f0 …,,\
alg:convolution_direct,mb64_ic16oc16_ih32oh32kh3sh1dh0ph1_iw32ow32kw3sw1dw0pw1,1.77

Nothing here needs mxnet.
"""

from __future__ import annotations

import math
import re
from dataclasses import asdict, dataclass, field
from statistics import median
from typing import Any

BEGIN, END = "gluontune_profile_begin", "gluontune_profile_end"  # around the logged steps


@dataclass(frozen=True)
class Execution:
    """One line of the log. ``ms`` is the time of one execution."""

    primitive: str
    implementation: str
    direction: str
    formats: str
    problem: str
    ms: float


@dataclass(frozen=True)
class Primitive:
    """All executions of one kind, for one step.

    Args:
        calls: executions a step.
        ms: their time a step, in milliseconds.
        slow: the reason why the implementation is a slow path, or "".
        fast_ms: estimated time of a fast implementation, by the work and the fast executions of the same primitive in
            the same log; None without such executions.
        cure: the rewrite that avoids the slow path, or "".
        layers: paths of the network's layers with this shape, if the network is known.
    """

    primitive: str
    implementation: str
    direction: str
    formats: str
    problem: str
    calls: float
    ms: float
    slow: str = ""
    fast_ms: float | None = None
    cure: str = ""
    layers: tuple[str, ...] = ()


def parse_log(text: str) -> list[Execution]:
    """The executions in a log, without other or damaged lines.

    >>> line = "dnnl_verbose,exec,cpu,sum,simple:any,undef,src_f32::blocked:aBcd16b:f0,,,64x16x32x32,0.41"
    >>> parse_log(line)[0].implementation, parse_log(line)[0].ms
    ('simple:any', 0.41)
    """
    found = []
    for line in text.splitlines():
        fields = line.strip().split(",")
        if len(fields) < 9 or not fields[0].endswith("_verbose") or "exec" not in fields[:4]:
            continue
        rest = fields[fields.index("exec") + 1 :]
        try:
            ms = float(rest[-1])
        except ValueError:
            continue
        found.append(Execution(rest[1], rest[2], rest[3], rest[4], rest[-2], ms))
    return found


def slow_reason(execution: Execution) -> str:
    """The reason why this implementation is a slow path, or "".

    >>> slow_reason(Execution("batch_normalization", "bnorm_ref:any", "backward", "", "mb64ic64ih8iw8", 9.0))
    'reference kernel'
    """
    name = execution.implementation
    if re.search(r"(^|_)ref(:|$)", name):
        return "reference kernel"
    if "simple" in name:
        return "simple kernel without vector code"
    if "ncsp" in name or "nspc" in name:
        return "plain layout: data is not in blocks of channels"
    if execution.primitive == "convolution" and "gemm" in name:
        return "convolution as matrix product"
    return ""


def summarize(executions: list[Execution], steps: int) -> list[Primitive]:
    """Group executions by kind, a step each, the slowest first; mark slow paths, estimates and cures."""
    groups: dict[tuple[str, ...], list[Execution]] = {}
    for e in executions:
        groups.setdefault((e.primitive, e.implementation, e.direction, e.formats, e.problem), []).append(e)
    rows = []
    for members in groups.values():
        slow = slow_reason(members[0])
        ms = sum(e.ms for e in members) / steps
        rate = _fast_rate(members[0], executions) if slow else None
        fast = None if rate is None else min(ms, _work(members[0]) / rate * len(members) / steps)
        cure = cure_of(members[0], executions) if slow else ""
        kind = {name: value for name, value in vars(members[0]).items() if name != "ms"}
        rows.append(Primitive(**kind, calls=len(members) / steps, ms=ms, slow=slow, fast_ms=fast, cure=cure))
    return sorted(rows, key=lambda row: -row.ms)


def cure_of(execution: Execution, log: list[Execution]) -> str:
    """The rewrite that avoids this slow path, or "".

    A pooling to 1×1 returns the layout ``acdB16b``, which marks all that it slows down. A convolution over 1 or 3
    channels marks itself; layers that it slows down have its output's shape. A BatchNorm between AMX's layout
    (channels last) and a blocked one is next to a narrow convolution.
    """
    n = problem_sizes(execution.problem)
    to_one = execution.primitive.startswith("pooling") and n.get("oh") == n.get("ow") == 1
    if "acdB" in execution.formats or to_one:
        return "pool-to-mean"
    layouts = set(re.findall(r"blocked:(\w+)", execution.formats))
    if execution.primitive == "batch_normalization" and {"acdb", "aBcd16b"} <= layouts:
        return "narrow-in-float32"
    if execution.primitive == "convolution" and n.get("ic") in (1, 3):
        return "pad-channels"
    if "ncsp" in execution.implementation:
        for other in log:
            if other.primitive == "convolution" and slow_reason(other):
                o = problem_sizes(other.problem)
                if o.get("ic") in (1, 3) and (o.get("oc"), o.get("oh")) == (n.get("ic"), n.get("ih")):
                    return "pad-channels"
    return ""


def _fast_rate(slow: Execution, log: list[Execution]) -> float | None:
    """Work a millisecond of the most similar fast executions, or None."""
    fast = [e for e in log if not slow_reason(e) and e.ms > 0]
    nearest = (
        [e for e in fast if e.primitive == slow.primitive and e.direction == slow.direction],
        [e for e in fast if e.primitive == slow.primitive],
        # memory-bound primitives take about the same time for the same work
        [e for e in fast if e.primitive in _MEMORY_BOUND and slow.primitive in _MEMORY_BOUND],
    )
    for group in nearest:
        if group and _work(slow) > 0:
            return median(_work(e) / e.ms for e in group)
    return None


_MEMORY_BOUND = ("batch_normalization", "eltwise", "sum", "reorder", "pooling", "pooling_v2", "concat", "binary")


def _work(execution: Execution) -> float:
    """Multiplications of a convolution, elements of anything else."""
    n = problem_sizes(execution.problem)
    if execution.primitive == "convolution" and {"ic", "oc", "oh", "ow", "kh", "kw"} <= set(n):
        groups = n.get("g", 1)
        return n.get("mb", 1) * n["ic"] * n["oc"] * n["oh"] * n["ow"] * n["kh"] * n["kw"] / groups
    sizes = [n[k] for k in ("mb", "ic", "ih", "iw") if k in n]
    sizes = sizes or [int(d) for d in re.findall(r"\d+", execution.problem)]
    return float(math.prod(sizes)) if sizes else 0.0


def problem_sizes(problem: str) -> dict[str, int]:
    """``mb64_ic16oc16_ih32…`` as ``{"mb": 64, "ic": 16, …}``."""
    return {name: int(value) for name, value in re.findall(r"(mb|g|[iok][cdhw])(\d+)", problem)}


@dataclass(frozen=True)
class Operator:
    """One MXNet operator: calls and milliseconds a step; ``remark``: a suspicion, or ""."""

    name: str
    calls: float
    ms: float
    remark: str = ""


@dataclass(frozen=True)
class Cure:
    """The layers that one rewrite cures.

    Args:
        rewrite: its name in ``gt.compute.REWRITES``.
        layers: numbers of layers on a slow path, such as ``{"BatchNorm": 4, "Pooling": 1}``.
        ms: their time a step. pct: its share of the whole step.
        fast_ms: their time on a fast path (estimate), or None.
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
    """The result of :func:`profile`. Times are of one step, in milliseconds, with logging switched on.

    Args:
        step_ms: of the whole step. onednn_ms: the sum of all primitives.
        primitives: oneDNN's, slowest first. operators: MXNet's ten heaviest.
        cures: the rewrites that avoid slow paths. notes: remarks, one sentence each.
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
        log: the child's output with oneDNN's lines. measured: its ``step_ms`` (milliseconds of one step) and
            ``operators``. steps: the number of logged steps.
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
    "batch_normalization": "BatchNorm", "convolution": "Conv2D", "eltwise": "Activation", "inner_product": "Dense",
    "pooling": "Pooling", "pooling_v2": "Pooling", "sum": "addition", "reorder": "reorder",
}  # fmt: skip


def _cures(primitives: list[Primitive], step_ms: float) -> list[Cure]:
    cures = []
    for rewrite in dict.fromkeys(p.cure for p in primitives if p.cure):
        mine = [p for p in primitives if p.cure == rewrite]
        layers: dict[str, int] = {}
        for primitive in dict.fromkeys(p.primitive for p in mine):
            # A layer has two primitives, forward and backward: count the direction with more calls.
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
    """The ten heaviest operators, with remarks."""
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
