"""The time of a training step by primitive, its slow paths, and the rewrite that cures each.

oneDNN reads DNNL_VERBOSE only at its start: ``python -m gluontune.compute.profiling SPEC.json`` profiles a step.
"""

from __future__ import annotations

import ctypes
import importlib
import importlib.util
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from gluontune.compute._passes import check_initialized, preserved
from gluontune.compute._traversal import sample_of, walk, watch
from gluontune.compute.process import start_process
from gluontune.compute.profile_report import BEGIN, END, Primitive, Profile, problem_sizes, report
from gluontune.core.arrays import flat
from gluontune.core.errors import GluontuneError, UsageError
from gluontune.core.interpreter import python
from gluontune.core.processes import how_it_ended
from gluontune.runtime import as_nd_array, mxnet, uses_np


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
    """Run a training step in a child process, and report slow primitives and causes from oneDNN's log.

    Args:
        target: a ``HybridBlock`` (with ``inputs``; its graph runs, with a stand-in loss and SGD), or a function that
            makes a step: ``"job.py:make_step"`` or ``"package.module:make_step"``. The child calls it without
            arguments; it returns a callable that does one whole step.
        inputs: a sample batch for a ``HybridBlock``.
        mode: ``hybridized`` or ``static``, for a ``HybridBlock``.
        dtype: ``float32`` or ``bfloat16`` for a function. A ``HybridBlock`` runs as traced here: in bfloat16 if this
            process was started for it.
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
    with tempfile.TemporaryDirectory(prefix="gluontune-profile-") as name:
        folder = Path(name)
        spec: dict[str, Any] = {"target": None, "mode": mode, "dtype": dtype, "steps": steps, "warmup": warmup}
        spec["path"] = [place or os.getcwd() for place in sys.path]
        if isinstance(target, str):
            spec["target"] = _checked_target(target)
        else:
            spec.update(_ship(target, inputs, folder))
            shapes = _layer_shapes(target, inputs)
        (folder / "spec.json").write_text(json.dumps(spec), encoding="utf-8")
        log = _run_child(folder / "spec.json", env, timeout)
        try:
            measured = json.loads((folder / "result.json").read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise GluontuneError(f"the profiled process left no result: {error}") from error
    found = report(log, measured, steps)
    found.primitives = [replace(p, layers=tuple(shapes.get(_shape_key(p), ()))) for p in found.primitives]
    return found


def _layer_shapes(net: Any, inputs: tuple[Any, ...]) -> dict[tuple[Any, ...], list[str]]:
    """Paths of convolutions, BatchNorms and poolings by their key in oneDNN's log."""
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


def _ship(net: Any, inputs: tuple[Any, ...], folder: Path) -> dict[str, Any]:
    """Write the net's graph and arrays to ``folder``. Returns the names of its inputs and trained parameters."""
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
    with preserved(net), mx.autograd.record():  # the graph of training mode
        net._clear_cached_op()
        variables, graph = net._get_graph(*inputs)
    names = [v.name for v in variables]
    parameters = net.collect_params()
    used = set(graph.list_inputs())
    arrays = {name: p.data() for name, p in parameters.items() if name in used}
    arrays.update(zip(names, flat(inputs)))
    arrays = {k: as_nd_array(v).as_in_context(mx.cpu()) for k, v in arrays.items()}
    mx.nd.save(str(folder / "arrays.bin"), arrays)
    graph.save(str(folder / "graph.json"), remove_amp_cast=False)
    trained = [n for n, p in parameters.items() if p.grad_req != "null" and n in used]
    return {"inputs": names, "np_shape": uses_np(net), "trained": trained}


def _run_child(spec: Path, env: Mapping[str, str] | None, timeout: float) -> str:
    environment = {**os.environ, **(env or {}), "DNNL_VERBOSE": "1", "MKLDNN_VERBOSE": "1"}
    command = python("-m", "gluontune.compute.profiling", str(spec))
    try:
        done = subprocess.run(
            command, env=environment, capture_output=True, text=True, timeout=timeout, errors="replace"
        )
    except subprocess.TimeoutExpired:
        raise GluontuneError(f"the profiled step took longer than {timeout:g} s; give a smaller batch") from None
    if done.returncode != 0:
        raise GluontuneError(how_it_ended("the profiled step", done.returncode, done.stderr))
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


def main(spec_path: str) -> int:
    """Run warm-up, the logged steps, and as many under MXNet's profiler; write the measurements beside the file."""
    spec, folder = json.loads(Path(spec_path).read_text(encoding="utf-8")), Path(spec_path).parent
    if spec["target"]:
        start_process(spec["dtype"], "cpu")
    mx = mxnet()
    step, relax = (_from_target(spec), None) if spec["target"] else _from_symbol(spec, folder)
    for _ in range(spec["warmup"]):
        step()
    mx.nd.waitall()
    _mark(BEGIN)
    start = time.perf_counter()
    for _ in range(spec["steps"]):
        step()
    mx.nd.waitall()
    seconds = time.perf_counter() - start
    _mark(END)
    if relax is not None:
        relax()
        step()
    operators = _operators(mx, step, spec["steps"], str(folder / "trace.json"))
    result = {"step_ms": seconds / spec["steps"] * 1e3, "operators": operators}
    (folder / "result.json").write_text(json.dumps(result), encoding="utf-8")
    return 0


def _mark(text: str) -> None:
    ctypes.CDLL(None).fflush(None)  # C and Python have separate buffers
    print(text, flush=True)


def _operators(mx: Any, step: Callable[[], Any], steps: int, scratch: str) -> dict[str, Any]:
    """MXNet's times by operator. Bulks of one operator separate the entries, except in static graphs."""
    with mx.engine.bulk(0):
        mx.profiler.set_config(profile_all=True, aggregate_stats=True, filename=scratch)
        mx.profiler.set_state("run")
        for _ in range(steps):
            step()
        mx.nd.waitall()
        mx.profiler.set_state("stop")
    stats = json.loads(mx.profiler.dumps(reset=True, format="json"))
    return {
        name: {"calls": entry["Count"] / steps, "ms": entry["Total"] / steps}
        for name, entry in stats["Time"].get("operator", {}).items()
    }


def _from_target(spec: dict[str, Any]) -> Callable[[], Any]:
    """The step that ``file.py:function`` or ``module:function`` returns; the parent's path comes after Python's own."""
    where, _, name = spec["target"].rpartition(":")
    sys.path += [place for place in spec["path"] if place not in sys.path]
    if where.endswith(".py"):
        found = importlib.util.spec_from_file_location("profiled_job", where)
        if found is None or found.loader is None:
            raise SystemExit(f"{where}: cannot be loaded as Python")
        module = importlib.util.module_from_spec(found)
        sys.modules["profiled_job"] = module
        sys.argv = [where]  # a script may parse its arguments
        found.loader.exec_module(module)
    else:
        module = importlib.import_module(where)
    return getattr(module, name)()


def _from_symbol(spec: dict[str, Any], folder: Path) -> tuple[Callable[[], Any], Callable[[], Any]]:
    """Forward, a stand-in for the user's loss, backward and update of a traced network.

    The second function ends static mode, in which MXNet's profiler sees bulks only.
    """
    mx = mxnet()
    mx.util.set_np_shape(spec["np_shape"])  # the graph may have operators of mx.np
    arrays = mx.nd.load(str(folder / "arrays.bin"))
    inputs = [arrays[name] for name in spec["inputs"]]
    graph = mx.sym.load(str(folder / "graph.json"))
    net = mx.gluon.SymbolBlock(graph, [mx.sym.var(name) for name in spec["inputs"]])
    for name, parameter in net.collect_params().items():
        parameter._load_init(arrays[name], mx.cpu())
        parameter.grad_req = "write" if name in spec["trained"] else "null"
    static = spec["mode"] == "static"
    net.hybridize(static_alloc=static, static_shape=static)
    trained = [p for p in net.collect_params().values() if p.grad_req != "null"]
    trainer = mx.gluon.Trainer(trained, "sgd", {"learning_rate": 1e-4, "momentum": 0.9}) if trained else None

    def step() -> None:
        with mx.autograd.record():
            out = net(*inputs)
            heads = [o.square().mean() for o in (out if isinstance(out, (list, tuple)) else [out])]
        mx.autograd.backward(heads)
        if trainer is not None:
            trainer.step(1, ignore_stale_grad=True)

    return step, net.hybridize


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
