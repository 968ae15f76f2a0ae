"""What loader and net do alone, inside a training process: the figures that a prediction starts from."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

import numpy as np

from gluontune.train.arrays import flat, mapped

if TYPE_CHECKING:
    from gluontune.train.base_session import BaseSession
    from gluontune.train.session import Session

__all__ = ["exchange_alone", "gradients", "loading_alone", "training_alone"]

_LEAST_STEPS = 3
_OWN_KEYS = 10_000_000


def loading_alone(session: BaseSession, seconds: float) -> dict[str, float]:
    """The recipe's loader without the net: ``{"samples_per_sec", "cpu_ms_per_sample"}``.

    Args:
        session: a built one, of either engine; its epoch goes on.
        seconds: about how long to load, after a lead-in of a quarter as long, which uses up what was
            loaded ahead.
    """

    def load() -> int:
        batch = flat(session.next_batch())
        for array in batch:
            if hasattr(array, "wait_to_read"):
                array.wait_to_read()
        return int(batch[0].shape[0])

    _repeat(load, seconds / 4)
    samples, took, cpu = _repeat(load, seconds)
    return {"samples_per_sec": samples / took, "cpu_ms_per_sample": 1e3 * cpu / samples}


def training_alone(session: Session, batch_sizes: Iterable[int], seconds: float) -> dict[str, dict[str, float]]:
    """Training steps on a batch that lies ready, for each batch size.

    Args:
        session: a built session. Its parameters move: reset it before a training that counts.
        batch_sizes: images of this process in a step.
        seconds: about how long each size is trained, after two steps that compile.

    Returns:
        ``{str(batch size): {"step_time_ms", "samples_per_sec", "cpu_ms_per_sample"}}``.
    """
    ready = session.next_batch()
    found = {}
    for size in batch_sizes:
        session.repeated = tuple(mapped(functools.partial(_resized, session.mx, size), list(ready)))
        try:
            session.steps(2)
            steps, took, cpu = _repeat(lambda: bool(session.steps(_LEAST_STEPS)) * _LEAST_STEPS, seconds)
        finally:
            session.repeated = None
        found[str(size)] = {
            "step_time_ms": 1e3 * took / steps,
            "samples_per_sec": size * steps / took,
            "cpu_ms_per_sample": 1e3 * cpu / steps / size,
        }
    return found


def gradients(session: Session) -> dict[str, int]:
    """What a step of this net exchanges: ``{"bytes", "tensors"}``."""
    held = [p.list_grad()[0] for p in session.net.collect_params().values() if p.grad_req != "null"]
    sizes = [int(np.prod(g.shape, dtype=np.int64)) * np.dtype(g.dtype).itemsize for g in held]
    return {"bytes": sum(sizes), "tensors": len(sizes)}


def exchange_alone(session: Session, kinds: list[list[int]], repeats: int) -> list[dict[str, float]]:
    """The ranks' exchange without training; all ranks together.

    Args:
        kinds: ``[number of tensors, float32 values in each]`` of each kind of exchange.
        repeats: of each kind, after two that do not count.

    Returns:
        ``{"bytes", "tensors", "ms"}`` of each kind, the median time.
    """
    nd, found = session.mx.nd, []
    for place, (tensors, values) in enumerate(kinds):
        arrays = [nd.zeros((values,), ctx=session.ctxs[0]) for _ in range(tensors)]
        exchange = _exchange_of(session, arrays, place)
        times = []
        for _ in range(repeats + 2):
            nd.waitall()
            start = time.perf_counter()
            exchange()
            nd.waitall()
            times.append(1e3 * (time.perf_counter() - start))
        found.append({"bytes": 4.0 * values * tensors, "tensors": tensors, "ms": float(np.median(times[2:]))})
    return found


def _exchange_of(session: Session, arrays: list[Any], place: int) -> Callable[[], None]:
    if session.exchange is not None:
        return functools.partial(session.exchange.sum_gradients, arrays)
    store = session.trainer._kvstore or session.mx.kv.create("device")
    keys = [_OWN_KEYS + 10_000 * place + number for number in range(len(arrays))]  # beside the parameters'
    store.init(keys, arrays)

    def exchange() -> None:
        store.push(keys, arrays)
        store.pull(keys, arrays)

    return exchange


def _resized(mx: Any, size: int, array: Any) -> Any:
    """The batch cut, or repeated, to ``size`` rows; a numpy array stays one."""
    copies = [array] * -(-size // array.shape[0])
    if isinstance(array, np.ndarray):
        return np.concatenate(copies)[:size]
    if len(copies) > 1:
        array = mx.np.concatenate(copies) if mx.util.is_np_array() else mx.nd.concat(*copies, dim=0)
    return array[:size].copy()


def _repeat(work: Callable[[], int], seconds: float) -> tuple[int, float, float]:
    """Work again and again: ``(units, seconds, CPU seconds of this process)``."""
    start, cpu, units = time.perf_counter(), time.process_time(), 0
    while time.perf_counter() - start < seconds:
        units += work()
    return units, time.perf_counter() - start, time.process_time() - cpu
