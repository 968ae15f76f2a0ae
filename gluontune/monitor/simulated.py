"""A simulated device: occupied for a given time by each batch, with the CPU free.

It replaces a missing GPU, so that starvation, and its cure, can be measured on a laptop. It computes nothing, and its
name always holds the word "simulated".
"""

from __future__ import annotations

import math
import threading
import time
from collections import deque
from typing import Any, Callable

from gluontune.core.errors import UsageError


class SimulatedDevice:
    """A simulated accelerator: each submitted batch occupies it for ``ms_per_batch``.

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
