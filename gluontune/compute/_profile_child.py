"""The process that profiles a step: oneDNN reads DNNL_VERBOSE only at its start.

Run as ``python -m gluontune.compute._profile_child SPEC.json``; see :mod:`gluontune.compute.profiling`.
"""

from __future__ import annotations

import ctypes
import importlib
import importlib.util
import json
import sys
import time
from pathlib import Path
from typing import Any, Callable

BEGIN, END = "gluontune_profile_begin", "gluontune_profile_end"


def main(spec_path: str) -> int:
    """Run warm-up, the logged steps, and as many under MXNet's profiler; write the measurements."""
    spec = json.loads(Path(spec_path).read_text(encoding="utf-8"))
    from gluontune.compute.process import start_process
    from gluontune.runtime import mxnet

    if spec["target"]:
        start_process(spec["dtype"], "cpu")
    mx = mxnet()
    step, relax = (_from_target(spec), None) if spec["target"] else _from_symbol(spec)
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
    operators = _operators(mx, step, spec["steps"], spec["scratch"])
    result = {"step_ms": seconds / spec["steps"] * 1e3, "operators": operators}
    Path(spec["result"]).write_text(json.dumps(result), encoding="utf-8")
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
    """The step that ``file.py:function`` or ``module:function`` returns.

    Modules of the parent's path come after Python's and the installed ones.
    """
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
    step: Callable[[], Any] = getattr(module, name)()
    return step


def _from_symbol(spec: dict[str, Any]) -> tuple[Callable[[], Any], Callable[[], Any]]:
    """Forward, a stand-in for the user's loss, backward and update of a traced network.

    The second function ends static mode, in which MXNet's profiler sees bulks only.
    """
    from gluontune.runtime import mxnet

    mx = mxnet()
    mx.util.set_np_shape(spec["np_shape"])  # the graph may have operators of mx.np
    arrays = mx.nd.load(spec["arrays"])
    inputs = [arrays[name] for name in spec["inputs"]]
    graph = mx.sym.load(spec["symbol"])
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
