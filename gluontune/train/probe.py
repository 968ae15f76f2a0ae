"""What loader and net do alone, inside a training process: the figures that a prediction starts from."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

__all__ = ["loading_alone", "training_alone"]

_LEAST_STEPS = 3


def loading_alone(session: Any, seconds: float) -> dict[str, float]:
    """The recipe's loader without the net: ``{"samples_per_sec", "cpu_ms_per_sample"}``.

    Args:
        session: a built :class:`gluontune.train.session.Session`; its epoch goes on.
        seconds: about how long to load, after a lead-in of a quarter as long, which uses up what was
            loaded ahead.
    """

    def load() -> int:
        images, labels = session._next_batch()
        for array in (images, labels):
            if hasattr(array, "wait_to_read"):
                array.wait_to_read()
        return int(images.shape[0])

    _repeat(load, seconds / 4)
    samples, took, cpu = _repeat(load, seconds)
    return {"samples_per_sec": samples / took, "cpu_ms_per_sample": 1e3 * cpu / samples}


def training_alone(session: Any, batch_sizes: Iterable[int], seconds: float) -> dict[str, dict[str, float]]:
    """Training steps on a batch that lies ready, for each batch size.

    Args:
        session: a built session. Its parameters move: reset it before a training that counts.
        batch_sizes: images of this process in a step.
        seconds: about how long each size is trained, after two steps that compile.

    Returns:
        ``{str(batch size): {"step_time_ms", "samples_per_sec", "cpu_ms_per_sample"}}``.
    """
    images, labels = session._next_batch()
    found = {}
    for size in batch_sizes:
        batch = (_resized(session.mx, images, size), _resized(session.mx, labels, size))
        session._next_batch = lambda batch=batch: batch  # the instance's own hides the class's
        try:
            session.steps(2)
            steps, took, cpu = _repeat(lambda: bool(session.steps(_LEAST_STEPS)) * _LEAST_STEPS, seconds)
        finally:
            del session._next_batch
        found[str(size)] = {
            "step_time_ms": 1e3 * took / steps,
            "samples_per_sec": size * steps / took,
            "cpu_ms_per_sample": 1e3 * cpu / steps / size,
        }
    return found


def _resized(mx: Any, array: Any, size: int) -> Any:
    """The batch cut, or repeated, to ``size`` rows; a numpy array stays one."""
    copies = [array] * -(-size // array.shape[0])
    if isinstance(array, np.ndarray):
        return np.concatenate(copies)[:size]
    return (mx.nd.concat(*copies, dim=0) if len(copies) > 1 else array)[:size].copy()


def _repeat(work: Callable[[], int], seconds: float) -> tuple[int, float, float]:
    """Work again and again: ``(units, seconds, CPU seconds of this process)``."""
    start, cpu, units = time.perf_counter(), time.process_time(), 0
    while time.perf_counter() - start < seconds:
        units += work()
    return units, time.perf_counter() - start, time.process_time() - cpu
