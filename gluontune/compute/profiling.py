"""Where a training step spends its time, which slow paths it takes, and the rewrite that cures each."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from gluontune.compute._profile_child import BEGIN, END
from gluontune.compute.onednn import Primitive, parse_log, problem_sizes, summarize
from gluontune.errors import GluontuneError, UsageError

__all__ = ["Cure", "Operator", "Profile", "profile"]


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
        return (
            f"{layers} {verb} on a slow path: {self.pct:.0f} % of your step; rewrite {self.rewrite} cures it"
        )


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


def profile(
    target: Any,
    *inputs: Any,
    mode: str = "static",
    dtype: str = "float32",
    steps: int = 5,
    warmup: int = 3,
    env: Mapping[str, str] | None = None,
    timeout: float = 300.0,
) -> Profile:
    """Run a training step in a child process, read oneDNN's log of it, and say what is slow and why.

    Args:
        target: a ``HybridBlock`` (given with ``inputs``; its graph is what runs, with a stand-in loss and
            SGD), or the place of a function that makes a step: ``"job.py:make_step"`` or
            ``"package.module:make_step"``. The function takes nothing and returns a callable that does
            one whole step; it is called in the child.
        inputs: a sample batch for a ``HybridBlock``.
        mode: ``hybridized`` or ``static``, for a ``HybridBlock``.
        dtype: ``float32`` or ``bfloat16`` for a function. A ``HybridBlock`` runs as it is traced here:
            in bfloat16 if this process was started for it.
        steps: logged steps. warmup: steps before them.
        env: further environment variables of the child (threads, allocator).
        timeout: seconds after which the child is ended.

    Raises:
        UsageError: a target that is neither, or inputs that do not fit.
        GluontuneError: the child failed or took too long; the message has its last line.

    >>> from gluontune.runtime import mxnet
    >>> mx = mxnet()
    >>> net = mx.gluon.nn.HybridSequential()
    >>> net.add(mx.gluon.nn.Conv2D(16, 3), mx.gluon.nn.BatchNorm(), mx.gluon.nn.GlobalAvgPool2D())
    >>> net.initialize()
    >>> found = profile(net, mx.nd.ones((2, 16, 8, 8)), steps=2)
    >>> found.cures[0].rewrite, found.cures[0].layers["Pooling"]
    ('pool-to-mean', 1)
    """
    if mode not in ("hybridized", "static"):
        raise UsageError(f"profile mode {mode!r}: choose hybridized or static")
    if steps < 1 or warmup < 0:
        raise UsageError(f"profile steps={steps}, warmup={warmup}: at least one step")
    shapes: dict[tuple[Any, ...], list[str]] = {}
    with tempfile.TemporaryDirectory(prefix="gluontune-profile-") as folder:
        spec: dict[str, Any] = {
            "target": None,
            "mode": mode,
            "dtype": dtype,
            "steps": steps,
            "warmup": warmup,
        }
        spec["result"] = os.path.join(folder, "result.json")
        spec["scratch"] = os.path.join(folder, "trace.json")
        if isinstance(target, str):
            spec["target"] = _checked_target(target)
        else:
            spec.update(_ship(target, inputs, folder))
            shapes = _layer_shapes(target, inputs)
        path = os.path.join(folder, "spec.json")
        Path(path).write_text(json.dumps(spec), encoding="utf-8")
        log = _run_child(path, env, timeout)
        try:
            measured = json.loads(Path(spec["result"]).read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise GluontuneError(f"the profiled process left no result: {error}") from error
    found = _report(log, measured, steps)
    found.primitives = [replace(p, layers=tuple(shapes.get(_shape_key(p), ()))) for p in found.primitives]
    return found


def _layer_shapes(net: Any, inputs: tuple[Any, ...]) -> dict[tuple[Any, ...], list[str]]:
    """Paths of convolutions, BatchNorms and poolings by what oneDNN's log says of them."""
    from gluontune.compute._traversal import sample_of, walk, watch
    from gluontune.runtime import mxnet

    seen = watch(net, *sample_of(net, inputs))
    nn = mxnet().gluon.nn
    found: dict[tuple[Any, ...], list[str]] = {}
    for path, block in walk(net):
        shapes = {s for s in seen[id(block)].input_shapes() if len(s) == 4} if id(block) in seen else set()
        for _, channels, height, width in shapes:
            if isinstance(block, nn.Conv2D):
                key: tuple[Any, ...] = ("convolution", channels, block._channels, height, width)
                key += tuple(block._kwargs["kernel"])
                if hasattr(block, "padded_to"):
                    key = (key[0], block.padded_to, *key[2:])
            elif isinstance(block, nn.BatchNorm):
                key = ("batch_normalization", channels, height, width)
            elif hasattr(block, "_kwargs") and "pool_type" in block._kwargs:
                key = ("pooling", channels, height, width)
            else:
                continue
            found.setdefault(key, []).append(path)
    return found


def _shape_key(primitive: Primitive) -> tuple[Any, ...]:
    n = problem_sizes(primitive.problem)
    if primitive.primitive == "convolution":
        return ("convolution", *(n.get(k) for k in ("ic", "oc", "ih", "iw", "kh", "kw")))
    return (primitive.primitive.replace("_v2", ""), *(n.get(k) for k in ("ic", "ih", "iw")))


def _report(log: str, measured: dict[str, Any], steps: int) -> Profile:
    executions = parse_log(log[log.find(BEGIN) : log.find(END)])
    primitives = summarize(executions, steps)
    total = sum(p.ms for p in primitives)
    step_ms = max(measured["step_ms"], total)
    found = Profile(
        step_ms, total, primitives, _operators(measured["operators"]), _cures(primitives, step_ms)
    )
    if not executions:
        found.notes.append(
            "oneDNN logged nothing: this mxnet computes without it here, or has it switched off"
        )
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


def _ship(net: Any, inputs: tuple[Any, ...], folder: str) -> dict[str, Any]:
    """Write the traced graph, the weights and the batch to ``folder``; the net itself is not touched."""
    from gluontune.compute._preserve import check_initialized, preserved
    from gluontune.compute._traversal import flat, sample_of, watch
    from gluontune.runtime import as_nd_array, mxnet, uses_np

    mx = mxnet()
    if not isinstance(net, mx.gluon.HybridBlock):
        raise UsageError(
            f"profile target is a {type(net).__name__}: give a HybridBlock with a batch, or the place of a function "
            "that makes a step, such as 'job.py:make_step'"
        )
    check_initialized(net)
    if not inputs or not all(isinstance(x, mx.nd.NDArray) for x in flat(inputs)):
        raise UsageError("profile of a HybridBlock needs a sample batch of NDArrays: profile(net, x)")
    inputs = sample_of(net, inputs)
    watch(net, *inputs)  # shapes of all parameters
    with preserved(net):
        net._clear_cached_op()
        variables, graph = net._get_graph(*inputs)
    names = [v.name for v in variables]
    parameters = net.collect_params()
    used = set(graph.list_inputs())
    arrays = {name: p.data() for name, p in parameters.items() if name in used}
    arrays.update(zip(names, flat(inputs)))
    arrays = {k: as_nd_array(v).as_in_context(mx.cpu()) for k, v in arrays.items()}
    mx.nd.save(os.path.join(folder, "arrays.bin"), arrays)
    graph.save(os.path.join(folder, "graph.json"), remove_amp_cast=False)
    return {
        "symbol": os.path.join(folder, "graph.json"),
        "arrays": os.path.join(folder, "arrays.bin"),
        "inputs": names,
        "np_shape": uses_np(net),
        "trained": [n for n, p in parameters.items() if p.grad_req != "null" and n in used],
    }


def _run_child(spec: str, env: Mapping[str, str] | None, timeout: float) -> str:
    environment = {**os.environ, **(env or {}), "DNNL_VERBOSE": "1", "MKLDNN_VERBOSE": "1"}
    environment["PYTHONPATH"] = os.pathsep.join(p or os.getcwd() for p in sys.path)
    command = [sys.executable, "-m", "gluontune.compute._profile_child", spec]
    try:
        done = subprocess.run(
            command, env=environment, capture_output=True, text=True, timeout=timeout, errors="replace"
        )
    except subprocess.TimeoutExpired:
        raise GluontuneError(
            f"the profiled step took longer than {timeout:g} s; give a smaller batch"
        ) from None
    if done.returncode != 0:
        lines = [line for line in done.stderr.splitlines() if line.strip()]
        raise GluontuneError(f"the profiled step failed: {lines[-1] if lines else f'exit {done.returncode}'}")
    return done.stdout


def _checked_target(target: str) -> str:
    where, colon, name = target.rpartition(":")
    if not colon or not where or not name.isidentifier():
        raise UsageError(f"profile target {target!r}: write 'job.py:function' or 'package.module:function'")
    if where.endswith(".py"):
        if not Path(where).is_file():
            raise UsageError(f"profile target {target!r}: no file {where}")
        return f"{Path(where).resolve()}:{name}"
    return target
