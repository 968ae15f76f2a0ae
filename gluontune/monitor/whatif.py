"""Predicted throughput with other workers, another device or batch; the roofline; a simulated device."""

from __future__ import annotations

import math
import threading
import time
import timeit
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from gluontune.core.errors import UsageError


def expected_throughput(
    *,
    device_samples_per_sec: float,
    worker_samples_per_sec: float,
    num_workers: int,
    cores: float,
    shares_cores: bool = False,
    limits: Mapping[str, float] | None = None,
) -> dict[str, Any]:
    """Predicted samples a second of a whole training step, from the rates of loader and device alone.

    Without workers loading and training take turns: ``1 / (1/w + 1/d)``. With ``n`` workers they overlap and the
    slowest of these ceilings decides. ``loader``: ``w * min(n, cores)``. ``device``: ``d``. ``cores`` (if the net
    trains on the same cores): ``cores`` over a sample's core seconds, ``1/w`` for loading and ``cores/d`` for training.
    Each of ``limits`` is one more ceiling of an input pipeline's roofline, such as the rate of the disk or the decoder.

    Args:
        device_samples_per_sec: of training alone, on a ready batch.
        worker_samples_per_sec: of loading alone, by one worker on one core.
        num_workers: loading workers; 0 loads in the training thread.
        cores: usable cores.
        shares_cores: whether the net trains on the CPU.
        limits: further ceilings by name, samples a second.

    Returns:
        ``{"samples_per_sec", "bound_by", "ceilings": {name: samples a second}}``, ready for JSON.

    Raises:
        UsageError: a rate, ``cores`` or a limit that is not positive; a negative ``num_workers``.

    Source: the roofline of an input pipeline after NVIDIA's deck "Making DL training times shorter" (2018).

    >>> expected_throughput(device_samples_per_sec=1000, worker_samples_per_sec=100, num_workers=4, cores=8)
    {'samples_per_sec': 400.0, 'bound_by': 'loader', 'ceilings': {'device': 1000.0, 'loader': 400.0}}
    """
    rates = {"device_samples_per_sec": device_samples_per_sec, "worker_samples_per_sec": worker_samples_per_sec}
    for name, value in {**rates, "cores": cores, **(limits or {})}.items():
        if not (math.isfinite(value) and value > 0):
            raise UsageError(f"what-if {name}={value!r}: give a number above 0")
    if num_workers < 0:
        raise UsageError(f"what-if num_workers={num_workers}: give 0 or more")
    device, worker = float(device_samples_per_sec), float(worker_samples_per_sec)
    further = {name: float(value) for name, value in (limits or {}).items()}
    loader = worker * min(num_workers, cores) if num_workers else worker
    ceilings = {"device": device, "loader": loader, **further}
    if num_workers and shares_cores:
        ceilings["cores"] = cores / (1 / worker + cores / device)
    rate = min(ceilings.values())
    if num_workers == 0:
        rate = 1 / (1 / min([worker, *further.values()]) + 1 / device)  # each limit is a limit of the loader
    return {
        "samples_per_sec": rate, "bound_by": min(ceilings, key=lambda name: ceilings[name]), "ceilings": ceilings,
    }  # fmt: skip


def fit_step_time(batch_sizes: Sequence[int], step_time_ms: Sequence[float]) -> Callable[[int], float]:
    """A function that returns the step time of other batch sizes: ``fixed + per_sample * batch``, fitted to data.

    The errors are weighted by the measured times, so that small batches count as much as large ones; neither part is
    negative.

    Args:
        batch_sizes: at least two different ones.
        step_time_ms: milliseconds of a step for each.

    Returns:
        A function from a batch size to milliseconds.

    Raises:
        UsageError: fewer than two different sizes, lengths that differ, values not above zero.

    >>> step_time_ms = fit_step_time([32, 64], [12.0, 20.0])
    >>> round(step_time_ms(128), 6), round(128 / step_time_ms(128) * 1e3)
    (36.0, 3556)
    """
    points = list(zip(batch_sizes, step_time_ms))
    if len(batch_sizes) != len(step_time_ms) or len(set(batch_sizes)) < 2:
        raise UsageError("fit_step_time: give one time for each batch size, of at least two different sizes")
    if any(not (math.isfinite(t) and t > 0 and b > 0) for b, t in points):
        raise UsageError(f"fit_step_time: sizes and times must be above 0, not {points}")
    from scipy.optimize import nnls

    # least squares of (fixed + per_sample * b) / t = 1
    fixed, per_sample = nnls([[1 / t, b / t] for b, t in points], [1.0] * len(points))[0].tolist()
    return lambda batch: fixed + per_sample * batch


def compare(predicted: Mapping[str, Any], measured_samples_per_sec: float) -> dict[str, float]:
    """A prediction beside the measurement, with its error in percent of the measurement.

    Args:
        predicted: of :func:`expected_throughput`. measured_samples_per_sec: above 0.

    Raises:
        UsageError: the measured figure is not above 0.

    >>> compare({"samples_per_sec": 110.0}, 100.0)
    {'predicted_samples_per_sec': 110.0, 'measured_samples_per_sec': 100.0, 'error_pct': 10.0}
    """
    if not measured_samples_per_sec > 0:
        raise UsageError(f"compare: the measured {measured_samples_per_sec!r} samples/s must be above 0")
    guess = float(predicted["samples_per_sec"])
    return {
        "predicted_samples_per_sec": guess,
        "measured_samples_per_sec": measured_samples_per_sec,
        "error_pct": 100 * (guess - measured_samples_per_sec) / measured_samples_per_sec,
    }


def attainable_flops(flops: float, moved_bytes: float, peak_flops: float, peak_bytes: float) -> dict[str, Any]:
    """The roofline: the attainable FLOP/s of some work, and its limit.

    Args:
        flops: floating-point operations of the work. moved_bytes: bytes read and written.
        peak_flops: of the device, FLOP/s. peak_bytes: of its memory, bytes/s; see :func:`measured_peaks`.

    Returns:
        ``{"flops_per_sec", "intensity", "bound_by"}``; intensity in FLOP a byte, bound by ``memory`` or ``compute``.

    Raises:
        UsageError: a number that is not above 0.

    Source: Williams, Waterman, Patterson, *Roofline: An Insightful Visual Performance Model*, CACM 52(4), 2009.

    >>> attainable_flops(flops=2e6, moved_bytes=1e6, peak_flops=1e12, peak_bytes=1e11)
    {'flops_per_sec': 200000000000.0, 'intensity': 2.0, 'bound_by': 'memory'}
    """
    values = {"flops": flops, "moved_bytes": moved_bytes, "peak_flops": peak_flops, "peak_bytes": peak_bytes}
    for name, value in values.items():
        if not (math.isfinite(value) and value > 0):
            raise UsageError(f"attainable_flops: {name}={value!r}: give a number above 0")
    intensity = flops / moved_bytes
    slope = intensity * peak_bytes
    bound = "memory" if slope < peak_flops else "compute"
    return {"flops_per_sec": float(min(slope, peak_flops)), "intensity": intensity, "bound_by": bound}


def measured_peaks(size: int = 1024, repeats: int = 5) -> dict[str, float]:
    """Peak rates of this machine's CPU by numpy: the best of ``repeats`` float32 products and copies.

    Args:
        size: side of the square matrices; the copied array holds 16 of them.
        repeats: repetitions of each.

    Returns:
        ``{"flops_per_sec", "bytes_per_sec"}``; a copy reads and writes each byte.

    >>> sorted(measured_peaks(size=64, repeats=1))
    ['bytes_per_sec', 'flops_per_sec']
    """
    import numpy as np

    a = np.random.default_rng(0).random((size, size), dtype=np.float32)
    out, many = np.empty_like(a), np.tile(a, (16, 1))
    target = np.empty_like(many)

    def best(work: Callable[[], Any]) -> float:
        return min(timeit.repeat(work, number=1, repeat=repeats + 1)[1:])  # the first one touches the memory

    product, copy = best(lambda: np.matmul(a, a, out=out)), best(lambda: np.copyto(target, many))
    return {"flops_per_sec": 2.0 * size**3 / product, "bytes_per_sec": 2.0 * many.nbytes / copy}


class SimulatedDevice:
    """A simulated accelerator: each submitted batch occupies it for ``ms_per_batch``, with the CPU free.

    It replaces a missing GPU, so that starvation, and its cure, can be measured on a laptop. It computes nothing.

    Like a GPU it works asynchronously and in order: :meth:`submit` returns at once, unless ``queue_depth`` batches are
    waiting, and :meth:`sync` waits until all is done. Waiting is sleeping, so the cores are free for the loader. Its
    utilization is exact.

    Args:
        ms_per_batch: milliseconds for each batch, above zero.
        queue_depth: batches that may be in flight before ``submit`` waits.
        name: in a monitor's series; "simulated" is added if missing.
        clock, sleep: a source of seconds, and the function that waits; for tests.

    Raises:
        UsageError: a time that is not above zero, a queue of less than one.

    >>> device = SimulatedDevice(ms_per_batch=2)
    >>> for batch in range(3):
    ...     device.submit(batch)
    >>> device.sync()
    >>> device.batches, round(device.busy_s * 1e3, 3)
    (3, 6.0)
    """

    def __init__(
        self, ms_per_batch: float, *, queue_depth: int = 8, name: str = "simulated",
        clock: Callable[[], float] = time.perf_counter, sleep: Callable[[float], Any] = time.sleep,
    ):  # fmt: skip
        if not (isinstance(ms_per_batch, (int, float)) and math.isfinite(ms_per_batch) and ms_per_batch > 0):
            raise UsageError(f"SimulatedDevice(ms_per_batch={ms_per_batch!r}): give milliseconds above 0")
        if queue_depth < 1:
            raise UsageError(f"SimulatedDevice(queue_depth={queue_depth}): at least one batch must fit")
        self.ms_per_batch = float(ms_per_batch)
        self.name = name if "simulated" in name else f"simulated {name}"
        self.batches = 0
        self._clock, self._sleep = clock, sleep
        self._lock = threading.Lock()
        self._ends: deque[float] = deque(maxlen=queue_depth)  # when the newest batches will be done
        self._free_at = clock()  # when the last submitted batch will be done
        self._submitted_s = 0.0
        self._seen_at, self._seen_busy = self._free_at, 0.0

    def submit(self, batch: Any = None) -> None:
        """Queue the work of one batch; ``batch`` is ignored."""
        while True:
            with self._lock:
                now = self._clock()
                full = len(self._ends) == self._ends.maxlen and self._ends[0] > now
                if not full:
                    self._free_at = max(now, self._free_at) + self.ms_per_batch / 1e3
                    self._ends.append(self._free_at)
                    self._submitted_s += self.ms_per_batch / 1e3
                    self.batches += 1
                    return
                until = self._ends[0]
            self._sleep(max(0.0, until - now))

    def sync(self) -> None:
        """Wait until all submitted work is done."""
        while True:
            with self._lock:
                left = self._free_at - self._clock()
            if left <= 0:
                return
            self._sleep(left)

    @property
    def busy_s(self) -> float:
        """Seconds of work done until now."""
        with self._lock:
            return self._busy(self._clock())

    def _busy(self, now: float) -> float:
        # the queue has no holes, so its remaining work is the time until it is empty
        return self._submitted_s - max(0.0, self._free_at - now)

    def utilization_pct(self) -> float | None:
        """Percent of the time since the last call in which it worked; None if no time has passed."""
        with self._lock:
            now = self._clock()
            busy = self._busy(now)
            passed, worked = now - self._seen_at, busy - self._seen_busy
            self._seen_at, self._seen_busy = now, busy
        return min(100.0, max(0.0, 100.0 * worked / passed)) if passed > 0 else None

    def __repr__(self) -> str:
        return f"SimulatedDevice({self.ms_per_batch:g} ms a batch, {self.batches} batches so far)"
