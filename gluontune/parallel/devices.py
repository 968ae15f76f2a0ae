"""The MXNet contexts of a process, the safe split of a batch over them, and the sum of their gradients."""

from __future__ import annotations

import functools
import statistics
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from gluontune.core.errors import GluontuneError
from gluontune.recipe.rules import listed_gpus
from gluontune.runtime import mxnet


def contexts(devices: str = "auto", count: int = 1, first: int = 0) -> list[Any]:
    """The MXNet contexts for one process.

    Args:
        devices: ``auto`` (GPUs if this mxnet sees one, else the CPU), ``cpu``, ``gpu``, or ``gpu:0,2``.
        count: number of GPUs; CPU contexts beyond the first share the same cores and serve tests only.
        first: place of the first GPU among all, or among the listed ones.

    Raises:
        GluontuneError: fewer GPUs than asked for.

    >>> contexts("cpu", 2)
    [cpu(0), cpu(1)]
    """
    mx = mxnet()
    gpus = 0 if devices == "cpu" else mx.context.num_gpus()
    if devices.startswith("gpu") or (devices == "auto" and gpus):
        chosen = (listed_gpus(devices) or range(gpus))[first : first + count]
        if len(chosen) < count or max(chosen) >= gpus:
            raise GluontuneError(
                f"{first + count} GPUs wanted, but this mxnet sees {gpus}: use num_devices={max(gpus, 1)} or "
                "devices='cpu'; gluontune doctor says why a GPU is not seen"
            )
        return [mx.gpu(index) for index in chosen]
    return [mx.cpu(i) for i in range(count)]


def split_batch(batch: Any, ctxs: list[Any]) -> list[Any]:
    """Cut a batch along its first axis into one NDArray for each context.

    Unlike ``gluon.utils.split_and_load`` it accepts a batch smaller than the number of contexts: some get no part.

    Args:
        batch: NDArray or numpy array, shape (N, ...); of any dtype.
        ctxs: the contexts.

    >>> [part.shape for part in split_batch(mxnet().nd.zeros((3, 2)), contexts("cpu", 4))]
    [(1, 2), (1, 2), (1, 2)]
    """
    nd = mxnet().nd
    if not isinstance(batch, nd.NDArray):
        batch = nd.array(batch, dtype=batch.dtype, ctx=mxnet().cpu())
    if len(ctxs) == 1:
        return [batch.as_in_context(ctxs[0])]
    total, n = len(batch), min(len(ctxs), len(batch))
    edges = [total * i // n for i in range(n + 1)]
    return [batch[a:b].as_in_context(ctx) for a, b, ctx in zip(edges, edges[1:], ctxs)]


def clear_idle(parameters: Iterable[Any], used: int) -> None:
    """Zero the gradients of contexts without a part of a batch, before the gradients are summed.

    Otherwise Gluon's trainer refuses the step ("gradient has not been updated"), or sums those of the step before.
    """
    for parameter in parameters:
        if parameter.grad_req != "null":
            for grad, data in zip(parameter.list_grad()[used:], parameter.list_data()[used:]):
                grad[:] = 0
                data._fresh_grad = True


def choose_kvstore(
    ctxs: Sequence[Any], shapes: Sequence[Sequence[int]], repeats: int = 5
) -> tuple[str, dict[str, float]]:
    """The kvstore that sums gradients over these contexts fastest, and the milliseconds of each available one.

    Args:
        ctxs: contexts of one process. shapes: of the float32 gradients.
        repeats: exchanges of each, after one for warm-up; medians are compared.

    >>> name, times = choose_kvstore(contexts("cpu", 2), [(8, 8), (8,)])
    >>> name in times, sorted(times)
    (True, ['device', 'local'])
    """
    mx, found = mxnet(), {}
    grads = [[mx.nd.zeros(tuple(shape), ctx=ctx) for ctx in ctxs] for shape in shapes]
    keys = list(range(len(grads)))
    names = ("device", "local", "nccl") if ctxs[0].device_type == "gpu" else ("device", "local")
    for name in names:
        try:
            store = mx.kv.create(name)
        except mx.MXNetError:  # this mxnet was built without nccl
            continue
        store.init(keys, [per_context[0] for per_context in grads])
        found[name] = median_ms(functools.partial(push_and_pull, store, keys, grads), repeats, 1)
    return min(found, key=lambda name: found[name]), found


def push_and_pull(store: Any, keys: list[int], arrays: list[Any]) -> None:
    """One exchange through a kvstore."""
    store.push(keys, arrays)
    store.pull(keys, arrays)


def median_ms(exchange: Callable[[], None], repeats: int, before: int) -> float:
    """The median time of ``repeats`` exchanges, after ``before`` for warm-up."""
    times = []
    for _ in range(before + repeats):
        mxnet().nd.waitall()
        start = time.perf_counter()
        exchange()
        mxnet().nd.waitall()
        times.append(1e3 * (time.perf_counter() - start))
    return statistics.median(times[before:])
