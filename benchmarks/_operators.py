"""Operators in one data type: work of a process of ``python -m benchmarks operators``."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np

from benchmarks import _operator_list as sizes
from gluontune.recipe import Recipe

__all__ = ["make", "traced"]


def make(dtype: str) -> Operators:
    """Called in the process."""
    return Operators(dtype)


class Operators:
    """Runs any operator of a list in one data type.

    Args:
        dtype: ``float32``, ``bfloat16`` or ``float16``.
    """

    def __init__(self, dtype: str):
        from gluontune.runtime import mxnet

        self.mx, self.dtype = mxnet(), dtype
        self._ready: tuple[Any, Callable[[], Any] | None, int] = (None, None, 1)
        self.info: dict[str, Any] = {"versions": {"mxnet": self.mx.__version__}}

    def layers(self, recipe: dict[str, Any], arrays: int) -> list[dict[str, Any]]:
        """Cases of the job's layers, traced in a forward pass, and of its gradients' exchange."""
        return traced(Recipe.from_dict(recipe), arrays)

    def peaks(self) -> dict[str, float]:
        """The machine's present peaks: FLOP/s of a large float32 product, bytes/s of a large sum."""
        from gluontune import monitor

        mx = self.mx
        found = monitor.measured_peaks(1024, repeats=3)
        a, b = mx.nd.ones((2048, 2048)), mx.nd.ones((2048, 2048))
        long = mx.nd.ones((16 * 2**20,))
        out, target = mx.nd.empty(a.shape), mx.nd.empty(long.shape)

        def multiply() -> None:
            mx.nd.dot(a, b, out=out)

        def add() -> None:
            mx.nd.elemwise_add(long, long, out=target)

        rates = [min(self._timed(work, 1) for _ in range(4)) for work in (multiply, add)]
        flops, moved = 2 * 2048**3 / rates[0], 2 * 4 * long.size / rates[1]
        return {
            "flops_per_sec": max(found["flops_per_sec"], flops),
            "bytes_per_sec": max(found["bytes_per_sec"], moved),
        }

    def measure(self, case: dict[str, Any], seconds: float) -> dict[str, Any]:
        """Runs a second of one case over about ``seconds``: ``{"per_second"}``, or ``{"error"}``."""
        try:
            key = (case["kind"], case["name"])
            if self._ready[0] != key:
                self._ready = (None, None, 1)
                run = _BUILDERS[case["kind"]](self, case)
                self._timed(run, 1)  # compiles
                count = max(1, round(seconds / max(self._timed(run, 1), 1e-6)))
                if count > 1:  # a single run would be mostly waiting
                    count = max(1, round(seconds * count / self._timed(run, count)))
                self._ready = (key, run, count)
            _, work, count = self._ready
            assert work is not None
            return {"per_second": count / self._timed(work, count)}
        except Exception as error:  # a type that an operator lacks is a result
            self._ready = (None, None, 1)
            lines = [part.strip() for part in str(error).split("Stack trace:")[0].splitlines() if part.strip()]
            text = lines[-1].removeprefix("MXNetError: ") if lines else ""
            return {"error": text[:300] or type(error).__name__}

    def _timed(self, run: Callable[[], Any], count: int) -> float:
        self.mx.nd.waitall()
        begin = time.perf_counter()
        for _ in range(count):
            run()
        self.mx.nd.waitall()
        return time.perf_counter() - begin

    def array(self, *shape: int) -> Any:
        """Random values of the process's type."""
        drawn = np.random.default_rng(0).standard_normal(shape, dtype="float32") * 0.1
        found = self.mx.nd.array(drawn)
        if self.dtype == "bfloat16":
            return self.mx.nd.amp_cast(found, dtype=np.dtype([("bfloat16", np.uint16)]))
        return found.astype(self.dtype)

    def passes(self, forward: Callable[[], Any], arrays: list[Any], training: bool) -> Callable[[], Any]:
        """``forward`` alone, or with the gradients of ``arrays``."""
        if not training:
            return forward
        for array in arrays:
            array.attach_grad()

        def both() -> None:
            with self.mx.autograd.record():
                made = forward()
            made.backward()

        return both


def _product(self: Operators, case: dict[str, Any]) -> Callable[[], Any]:
    m, n, k = (case["sizes"][name] for name in "mnk")
    data, weight = self.array(m, k), self.array(n, k)

    def forward() -> Any:
        return self.mx.nd.FullyConnected(data, weight, num_hidden=n, no_bias=True, flatten=False)

    return self.passes(forward, [data, weight], case["pass"] == "training")


def _convolution(self: Operators, case: dict[str, Any]) -> Callable[[], Any]:
    sizes = case["sizes"]
    channels = sizes["data"][1] // sizes["groups"]
    data, weight = self.array(*sizes["data"]), self.array(sizes["filters"], channels, *sizes["kernel"])
    names = {"kernel": "kernel", "stride": "stride", "pad": "pad", "dilate": "dilate"}
    how = {name: tuple(sizes[key]) for name, key in names.items()}

    def forward() -> Any:
        return self.mx.nd.Convolution(
            data, weight, no_bias=True, num_filter=sizes["filters"], num_group=sizes["groups"], **how
        )

    return self.passes(forward, [data, weight], case["pass"] == "training")


def _recurrent(self: Operators, case: dict[str, Any]) -> Callable[[], Any]:
    from benchmarks._operator_list import GATES

    sizes = case["sizes"]
    hidden, batch = sizes["hidden"], sizes["batch"]
    data = self.array(sizes["steps"], batch, sizes["inputs"])
    weights = self.array(GATES[sizes["mode"]] * hidden * (sizes["inputs"] + hidden + 2))
    state = self.array(1, batch, hidden)
    cell = {"state_cell": self.array(1, batch, hidden)} if sizes["mode"] == "lstm" else {}

    def forward() -> Any:
        how = {"mode": sizes["mode"], "state_size": hidden, "num_layers": 1}
        return self.mx.nd.RNN(data, weights, state, **cell, **how)

    return self.passes(forward, [data, weights], case["pass"] == "training")


def _all_reduce(self: Operators, case: dict[str, Any]) -> Callable[[], Any]:
    """The exchange of ``num_devices`` contexts in one process: kvstore ``device``."""
    mx, sizes = self.mx, case["sizes"]
    store = mx.kv.create("device")
    arrays = []
    for device in range(sizes["arrays"]):
        arrays.append(self.array(sizes["length"]).as_in_context(mx.cpu(device)))
    store.init(0, arrays[0])

    def run() -> None:
        store.pushpull(0, arrays, out=arrays)

    return run


_BUILDERS: dict[str, Callable[[Operators, dict[str, Any]], Callable[[], Any]]] = {
    "product": _product,
    "convolution": _convolution,
    "recurrent": _recurrent,
    "all-reduce": _all_reduce,
}


def traced(recipe: Recipe, arrays: int) -> list[dict[str, Any]]:
    """Cases of the layers of the recipe's net at its batch size; equal ones once, with their ``count``.

    Args:
        recipe: names net, data and batch. arrays: devices of the all-reduce.
    """
    from gluontune.compute._traversal import walk
    from gluontune.job.job import load_job
    from gluontune.runtime import mxnet

    mx = mxnet()
    job = load_job(recipe)
    net = job.net()
    net.initialize(mx.init.Xavier(magnitude=2))
    batch = mx.nd.zeros((recipe.batch_size_per_device, *_item_shape(job)))
    seen: list[dict[str, Any]] = []
    hooks = [
        block.register_forward_hook(lambda layer, inputs, made: seen.extend(_cases(mx, layer, inputs, made)))
        for _, block in walk(net)
    ]
    net(batch)
    mx.nd.waitall()
    for hook in hooks:
        hook.detach()
    lengths = [p.data().size for p in net.collect_params().values() if p.grad_req != "null"]
    seen += [sizes.all_reduce(length, arrays) for length in (max(lengths), sum(lengths))]
    merged: dict[tuple[str, str], dict[str, Any]] = {}
    for case in seen:
        kept = merged.setdefault((case["kind"], case["name"]), {**case, "source": "job"})
        kept["count"] += 1
    return list(merged.values())


def _item_shape(job: Any) -> tuple[int, ...]:
    if job.dataset is None:
        return tuple(job.train[0][0].shape)
    height, width, channels = job.dataset.image_shape or (224, 224, 3)
    return channels, height, width


def _cases(mx: Any, layer: Any, inputs: Any, made: Any) -> list[dict[str, Any]]:
    """The forward and the training case of a layer; none for a layer of another kind."""
    nn, rnn = mx.gluon.nn, mx.gluon.rnn
    shape = getattr(inputs[0], "shape", None)
    if shape is None:
        return []
    if isinstance(layer, nn.Conv2D):
        how = layer._kwargs
        given = (shape, layer._channels, how["kernel"], how["stride"], how["pad"], how["num_group"], how["dilate"])
        return [sizes.convolution(*given, training=training) for training in (False, True)]
    if isinstance(layer, nn.Dense):
        rows, inner = made.size // layer._units, layer.weight.shape[1]
        return [sizes.product(rows, layer._units, inner, training) for training in (False, True)]
    if isinstance(layer, rnn.rnn_layer._RNNLayer):
        steps, batch = shape[:2] if layer._layout == "TNC" else (shape[1], shape[0])
        found = []
        for depth in range(layer._num_layers):
            inner = shape[2] if depth == 0 else layer._dir * layer._hidden_size
            for training in (False, True):
                one = sizes.recurrent(layer._mode, steps, batch, inner, layer._hidden_size, training)
                found += [dict(one) for _ in range(layer._dir)]
        return found
    return []
