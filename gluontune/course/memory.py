"""Memory of executing a graph, measured in fresh processes: ``python -m gluontune.course.memory JSON``.

Each measurement has its own process, because resident memory includes memory that an earlier one freed.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from unittest import mock

from gluontune import runtime
from gluontune.core.arrays import distance
from gluontune.core.errors import GluontuneError, UsageError
from gluontune.core.interpreter import python
from gluontune.core.processes import how_it_ended

DECK_MODES = ("imperative", "symbolic")
NET_MODES = ("imperative", "hybridized", "static")


def deck_graph_memory(mode: str, mib: int = 32) -> float:
    """Arrays held by the deck's graph ``a = 1; b = 1 * 2; c = b * a; d = c + 1``, as a multiple of one array.

    Args:
        mode: ``imperative`` (the script's four NDArrays) or ``symbolic`` (one bound executor).
        mib: size of one float64 array; large enough to dominate the process's memory.

    Returns:
        Growth of the resident memory of a fresh process, divided by the size of one array.
    """
    if mode not in DECK_MODES:
        raise UsageError(f"mode {mode!r}: choose {' or '.join(DECK_MODES)}")
    return _child("deck", mode, mib)["grown_mib"] / mib


def net_memory(net: str, mode: str, batch_size: int, shape: tuple[int, int, int] = (3, 32, 32)) -> dict[str, float]:
    """Peak memory of a net beyond its parameters, in MiB: ``inference`` and ``training``, one batch each.

    Args:
        net: a name of ``gt.train.net_names()``.
        mode: ``imperative``, ``hybridized`` or ``static``.
        batch_size, shape: of the input, channels first.
    """
    if mode not in NET_MODES:
        raise UsageError(f"mode {mode!r}: choose {', '.join(NET_MODES)}")
    sizes = batch_size, *shape
    return {stage: _child("net", net, mode, stage, sizes)["peak_mib"] for stage in ("inference", "training")}


def operators(symbol: Any) -> dict[str, int]:
    """The count of each operator in a symbol, the most frequent first."""
    nodes = json.loads(symbol.tojson())["nodes"]
    return dict(Counter(node["op"] for node in nodes if node["op"] != "null").most_common())


def folded(net: Any, x: Any) -> dict[str, Any]:
    """A net's inference graph before and after MXNet folds operators together for oneDNN.

    Args:
        net: an initialized HybridBlock after a forward pass. x: a batch.

    Returns:
        ``before`` and ``after``: operators by name; ``seconds``: of one pass each, interleaved, as lists;
        ``max_difference``: between the outputs.
    """
    mx = runtime.mxnet()
    plain = net(mx.sym.Variable("data"))
    symbols = {"before": plain, "after": plain.get_backend_symbol("MKLDNN")}
    arrays = {name: p.data() for name, p in net.collect_params().items()} | {"data": x}
    bound = {}
    with mock.patch.dict(os.environ, MXNET_SUBGRAPH_BACKEND="NONE"):  # else MXNet folds what is bound for inference
        for key, symbol in symbols.items():
            bound[key] = symbol.bind(mx.cpu(), arrays, aux_states=arrays, grad_req="null")
    outputs = {key: one.forward(is_train=False)[0].asnumpy() for key, one in bound.items()}
    seconds: dict[str, list[float]] = {key: [] for key in bound}
    for _ in range(8):
        for key, one in bound.items():
            start = time.perf_counter()
            one.forward(is_train=False)[0].wait_to_read()
            seconds[key].append(time.perf_counter() - start)
    return {
        **{key: operators(symbol) for key, symbol in symbols.items()},
        "seconds": seconds,
        "max_difference": distance(outputs["before"], outputs["after"]),
    }


def _child(*what: Any) -> dict[str, float]:
    # The default allocator: our launch settings keep freed memory, which would distort the measurement.
    env = {k: v for k, v in os.environ.items() if not k.startswith("MALLOC_")}
    command = python("-m", "gluontune.course.memory", json.dumps(what))
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=300)
    if done.returncode != 0:
        raise GluontuneError(how_it_ended("measuring memory", done.returncode, done.stderr))
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return found


def _memory(before: Mapping[str, float] | None = None) -> dict[str, float]:
    """Resident memory of this process and its peak since the last call, in MiB, beyond ``before``."""
    status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    now, peak = (int(status[key].split()[0]) / 1024 for key in ("VmRSS", "VmHWM"))
    with contextlib.suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")  # resets the peak
    start = before["grown_mib"] if before else 0.0
    return {"grown_mib": now - start, "peak_mib": peak - start}


def _deck(mode: str, mib: int) -> dict[str, float]:
    mx = runtime.mxnet()
    count = mib * 2**20 // 8
    small = mx.nd.ones(10, dtype="float64") * mx.nd.ones(10, dtype="float64") + 1  # loads the operators
    small.wait_to_read()
    before = _memory()
    if mode == "imperative":
        a = mx.nd.ones(count, dtype="float64")
        b = mx.nd.full(count, 2, dtype="float64")
        c = b * a
        held: Any = (a, b, c, c + 1)
    else:
        graph = mx.sym.Variable("b") * mx.sym.Variable("a") + 1
        inputs = {"a": mx.nd.ones(count, dtype="float64"), "b": mx.nd.full(count, 2, dtype="float64")}
        executor = graph.bind(mx.cpu(), inputs, grad_req="null")
        held = (inputs, executor, executor.forward())
    mx.nd.waitall()
    found = _memory(before)
    del held
    return found


def _net(name: str, mode: str, stage: str, sizes: list[int]) -> dict[str, float]:
    from gluontune.compute import set_mode
    from gluontune.job.job import build_net

    mx = runtime.mxnet()
    net = build_net(name, 10)
    net.initialize()
    net(mx.nd.zeros((1, *sizes[1:])))  # parameters get their shapes
    x = mx.nd.random.normal(shape=tuple(sizes))
    set_mode(net, mode)
    mx.nd.waitall()
    before = _memory()
    for _ in range(2):
        if stage == "inference":
            net(x).wait_to_read()
        else:
            with mx.autograd.record():
                loss = net(x).square().mean()
            loss.backward()
        mx.nd.waitall()
    return _memory(before)


if __name__ == "__main__":
    what, *given = json.loads(sys.argv[1])
    print(json.dumps(_deck(*given) if what == "deck" else _net(*given)))
