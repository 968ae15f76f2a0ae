"""Reading oneDNN's verbose log: which implementation ran, how long, and which of them are slow paths.

The lines look like this (oneDNN 2.4, which is in the mxnet 1.9.1 wheel)::

    dnnl_verbose,exec,cpu,convolution,jit:avx512_common,forward_training,src_f32::blocked:aBcd16b:f0 …,,\
alg:convolution_direct,mb64_ic16oc16_ih32oh32kh3sh1dh0ph1_iw32ow32kw3sw1dw0pw1,1.77

Pure functions of text: nothing here needs mxnet.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from statistics import median

__all__ = ["Execution", "Primitive", "cure_of", "parse_log", "problem_sizes", "slow_reason", "summarize"]


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
        slow: why the implementation is a slow path, or "".
        fast_ms: time that a fast implementation would take, estimated from the fast executions of the same
            primitive in the same log by the work they do; None if there is none to compare with.
        cure: the rewrite that avoids the slow path, or "".
        layers: paths of the network's layers that have this shape, if the network is known.
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


def parse_log(text: str | Iterable[str]) -> list[Execution]:
    """The executions in a log; other lines and damaged ones are passed over.

    >>> line = "dnnl_verbose,exec,cpu,sum,simple:any,undef,src_f32::blocked:aBcd16b:f0,,,64x16x32x32,0.41"
    >>> parse_log(line)[0].implementation, parse_log(line)[0].ms
    ('simple:any', 0.41)
    """
    lines = text.splitlines() if isinstance(text, str) else text
    found = []
    for line in lines:
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
    """Why this implementation is a slow path, or "".

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
    groups: dict[tuple[str, str, str, str, str], list[Execution]] = {}
    for e in executions:
        key = (e.primitive, e.implementation, e.direction, e.formats, e.problem)
        groups.setdefault(key, []).append(e)
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

    A pooling to 1×1 leaves the layout ``acdB16b`` behind, which marks all that it slows down. A
    convolution over 1 or 3 channels marks itself; what it slows down works on its output's shape. A
    BatchNorm between AMX's layout (channels last) and a blocked one stands beside a narrow convolution.
    """
    if "acdB" in execution.formats or (execution.primitive.startswith("pooling") and _to_one(execution)):
        return "pool-to-mean"
    layouts = set(re.findall(r"blocked:(\w+)", execution.formats))
    if execution.primitive == "batch_normalization" and {"acdb", "aBcd16b"} <= layouts:
        return "narrow-in-float32"
    if execution.primitive == "convolution" and problem_sizes(execution.problem).get("ic") in (1, 3):
        return "pad-channels"
    if "ncsp" in execution.implementation:
        n = problem_sizes(execution.problem)
        for other in log:
            if other.primitive == "convolution" and slow_reason(other):
                o = problem_sizes(other.problem)
                if o.get("ic") in (1, 3) and (o.get("oc"), o.get("oh")) == (n.get("ic"), n.get("ih")):
                    return "pad-channels"
    return ""


def _fast_rate(slow: Execution, log: list[Execution]) -> float | None:
    """Work a millisecond of the fast executions that are most like this one."""
    fast = [e for e in log if not slow_reason(e) and e.ms > 0]
    nearest = (
        [e for e in fast if e.primitive == slow.primitive and e.direction == slow.direction],
        [e for e in fast if e.primitive == slow.primitive],
        # what only moves memory once or twice takes about as long as any other of its kind
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
    if not sizes:
        sizes = [int(d) for d in re.findall(r"\d+", execution.problem)]
    total = 1.0
    for size in sizes:
        total *= size
    return total if sizes else 0.0


def problem_sizes(problem: str) -> dict[str, int]:
    """``mb64_ic16oc16_ih32…`` as ``{"mb": 64, "ic": 16, …}``."""
    return {name: int(value) for name, value in re.findall(r"(mb|g|[iok][cdhw])(\d+)", problem)}


def _to_one(pooling: Execution) -> bool:
    n = problem_sizes(pooling.problem)
    return n.get("oh") == 1 and n.get("ow") == 1
