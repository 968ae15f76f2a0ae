"""The Monitor: a thread that samples a process tree and the devices at a fixed period, without harm to the training."""

from __future__ import annotations

import contextlib
import copy
import math
import os
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Callable, Protocol, Union

from gluontune.core.errors import UsageError
from gluontune.monitor.cpu import CpuSampler
from gluontune.monitor.nvml import NvmlSampler
from gluontune.monitor.series import Ring, steadiness_of, thin

Sample = dict[str, Any]
_SHORTEST_S = 0.01


class Clock:
    """Monotonic seconds since its creation, whatever the source does."""

    def __init__(self, source: Callable[[], float] = time.monotonic):
        self._source = source
        self._last = source()
        self._passed = 0.0

    def now(self) -> float:
        """Seconds; a jump back of the source counts as zero."""
        value = self._source()
        self._passed += max(0.0, value - self._last)
        self._last = value
        return self._passed


def ticks(now: Callable[[], float], period_s: float) -> Iterator[float]:
    """Seconds to wait until each next multiple of the period; missed multiples are skipped."""
    place = 0
    while True:
        at = now()
        place = max(place + 1, math.floor(at / period_s + 1e-9) + 1)
        yield min(period_s, max(0.0, place * period_s - at))


class SampledDevice(Protocol):
    """A device beside the GPUs that the monitor samples, such as :class:`SimulatedDevice`."""

    name: str

    def utilization_pct(self) -> float | None:
        """Percent of the time since the last call in which the device worked."""


class Monitor:
    """Samples a process tree and the GPUs beside the training.

    Sample ``k`` is taken ``k`` periods after the start, so times do not drift; late samples are skipped. Unreadable
    values are None. After the start nothing is ever raised into the training; ``faults`` counts the errors of the
    thread, and ``last_fault`` is the last one.

    Args:
        pid: the root of the process tree, or several; None: this process; ``"machine"``: the whole machine.
        period_s: seconds between samples, at least 0.01.
        gpus: ``"auto"``, ``"all"``, ``"none"`` or a list of indices; see :class:`NvmlSampler`.
        devices: further devices, sampled into ``gpu_util_pct`` under their ``name``.
        max_samples: the number of newest samples held (peaks cover all), in memory allocated at the start.
        on_sample: called with each sample; its errors count as faults.
        pynvml: NVML's binding, for tests. clock: a source of seconds, for tests.
        pcie: also PCIe traffic, see :class:`NvmlSampler`.

    Raises:
        UsageError: a period that is not a positive number; an unknown GPU.
        GluontuneError: no such process.

    >>> with Monitor(period_s=0.02, gpus="none") as monitor:
    ...     with monitor.mark("train"):
    ...         total = sum(range(2_000_000))
    >>> series = monitor.series()
    >>> len(series["t_s"]) == len(series["cpu_pct"]) > 0 and monitor.peak_rss_mib > 1
    True
    """

    def __init__(
        self, pid: Union[int, Iterable[int], str, None] = None, period_s: float = 0.25,
        gpus: Union[str, Iterable[int]] = "auto", *, devices: Sequence[SampledDevice] = (),
        max_samples: int = 36_000, on_sample: Callable[[Sample], None] | None = None, pcie: bool = False,
        pynvml: Any = None, clock: Callable[[], float] = time.monotonic,
    ):  # fmt: skip
        if isinstance(period_s, bool) or not isinstance(period_s, (int, float)) or not math.isfinite(period_s):
            raise UsageError(f"period_s={period_s!r}: give a number of seconds such as 0.25")
        if period_s < _SHORTEST_S:
            raise UsageError(f"period_s={period_s:g}: the shortest period is {_SHORTEST_S:g} s")
        if isinstance(pid, str) and pid != "machine":
            raise UsageError(f"pid={pid!r}: give a process id, several, None (this process) or 'machine'")
        if max_samples < 1:
            raise UsageError(f"max_samples={max_samples}: keep at least one sample")
        self.period_s = float(period_s)
        self._cpu = CpuSampler(os.getpid() if pid is None else pid)
        self._nvml = NvmlSampler(gpus, pynvml=pynvml, pcie=pcie)
        self._devices = list(devices)
        self._on_sample = on_sample
        self._clock = Clock(clock)
        self._ring = Ring(max_samples)
        self._newest: Sample | None = None
        self._marks: list[tuple[float, str | None]] = []
        self._lock = threading.Lock()
        self._sampling = threading.Lock()
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self._last_s: float | None = None
        self.started_at = time.time()
        self.peak_rss_mib: float | None = None
        self.peak_gpu_mib: float | None = None
        self.taken = 0
        self.faults = 0
        self.last_fault = ""

    @property
    def scope(self) -> str:
        """The scope of ``cpu_pct``: ``tree`` or ``machine``."""
        return "tree" if self._cpu.tree is not None else "machine"

    @property
    def cores(self) -> float:
        """The usable cores that ``cpu_pct`` is a percentage of."""
        return self._cpu.cores

    @property
    def gpu_note(self) -> str:
        """The reason why a GPU is not sampled, or ""."""
        return self._nvml.note

    @property
    def device_names(self) -> dict[str, str]:
        """The names of the sampled devices beside the CPU, by their keys in the series."""
        return {**self._nvml.names, **{device.name: device.name for device in self._devices}}

    @property
    def alive(self) -> bool:
        """Whether any process of the tree still runs."""
        return self._cpu.alive

    def start(self) -> Monitor:
        """Start sampling, or continue after :meth:`stop`; a second start is ignored."""
        if self._thread is None or not self._thread.is_alive():
            self._stop.clear()
            self.sample()
            self._thread = threading.Thread(target=self._run, name="gluontune-monitor", daemon=True)
            self._thread.start()
        return self

    def stop(self) -> None:
        """Take the last sample and end the thread; calling it again does nothing."""
        thread, self._thread = self._thread, None
        if thread is None:
            return
        self._stop.set()
        thread.join(timeout=5.0)  # a hanging driver must not delay the end of the training
        if not thread.is_alive():
            self.sample()

    def __enter__(self) -> Monitor:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()

    def mark(self, name: str | None) -> contextlib.ExitStack:
        """Mark the beginning of a phase (``"train"``, ``"validate"``, …); None ends it.

        As a context manager it also ends the phase: ``with monitor.mark("train"): …``.
        """
        with self._lock:
            self._marks.append((self._clock.now(), name))
            oldest = self._ring.oldest_s if self._ring.count > self._ring.size else None
            while oldest is not None and len(self._marks) > 1 and self._marks[1][0] <= oldest:
                del self._marks[0]  # it ended before the oldest sample
        ended = contextlib.ExitStack()
        ended.callback(self.mark, None)
        return ended

    def spans(self, name: str) -> list[tuple[float, float]]:
        """``(start_s, end_s)`` of each stretch marked ``name``; a running one ends now."""
        with self._lock:
            marks = [*self._marks, (self._clock.now(), None)]
        return [(a, b) for (a, what), (b, _) in zip(marks, marks[1:]) if what == name and b > a]

    def sample(self) -> Sample | None:
        """Take one sample now; None if it failed."""
        with self._sampling:
            try:
                return self._take()
            except Exception as error:  # never into the training
                self._fault(error)
                return None

    def _take(self) -> Sample:
        with self._lock:
            now = self._clock.now()
        passed = None if self._last_s is None else now - self._last_s
        if passed is not None and passed < _SHORTEST_S / 2 and self._newest is not None:
            return self._newest  # too soon for a rate: CPU time is counted in ticks
        self._last_s = now
        sample: Sample = {"t_s": now, **self._cpu.read(passed, time.time())}
        for key, fields in self._nvml.read(now, self._cpu.pids).items():
            for field, value in fields.items():
                sample.setdefault(field, {})[key] = value
        for device in self._devices:
            sample.setdefault("gpu_util_pct", {})[device.name] = device.utilization_pct()
        self._keep(sample)
        return sample

    def _keep(self, sample: Sample) -> None:
        used = sample.get("gpu_mem_mib", {})
        tree = sample.get("gpu_tree_mem_mib", {})
        sizes = [tree[key] if tree.get(key) is not None else used[key] for key in used]
        known = [size for size in sizes if size is not None]
        with self._lock:
            self.taken += 1
            self._ring.add(sample)
            self._newest = sample
            self.peak_rss_mib = _larger(self.peak_rss_mib, sample["rss_mib"])
            self.peak_gpu_mib = _larger(self.peak_gpu_mib, sum(known) if known else None)
        if self._on_sample is not None:
            try:
                self._on_sample(sample)
            except Exception as error:
                self._fault(error)

    def _fault(self, error: Exception) -> None:
        self.faults += 1
        self.last_fault = f"{type(error).__name__}: {error}"

    def _run(self) -> None:
        for delay in ticks(self._now, self.period_s):
            if self._stop.wait(delay):
                return
            self.sample()

    def _now(self) -> float:
        with self._lock:
            return self._clock.now()

    def series(self, max_points: int | None = None, per_core: bool = False) -> dict[str, Any]:
        """The samples as columns, ready for JSON.

        Args:
            max_points: the largest number of points, each the mean of its neighbours; None: all.
            per_core: include ``cpu_cores_pct``, which is long on a machine with many cores.

        Returns:
            ``t_s``, ``cpu_pct``, ``rss_mib``, … as lists; ``gpu_util_pct``, ``gpu_mem_mib``, … as ``{device: list}``;
            ``marks``; None for N/A. Units are in the names; see :class:`CpuSampler` and :data:`GPU_FIELDS`.
        """
        with self._lock:
            ring, marks = copy.deepcopy(self._ring), list(self._marks)  # quick: the sampler waits
        table = ring.table()
        if not per_core:
            table.pop("cpu_cores_pct", None)
        if max_points is not None:
            table = thin(table, max_points)
        return {**table, "marks": [{"t_s": t, "name": name} for t, name in marks]}

    def steadiness(self, name: str | None = None) -> dict[str, Any]:
        """Steadiness of the main device (the GPUs together, else the CPU) and of each, see :func:`steadiness`.

        Args:
            name: only the time with this mark; None: all.

        Returns:
            The figures of the main device, ``"device"`` and ``"by_device"``.
        """
        return steadiness_of(self.series(), None if name is None else self.spans(name))

    def latest(self) -> Sample | None:
        """The newest sample, or None before the first."""
        with self._lock:
            return self._newest


def _larger(a: float | None, b: float | None) -> float | None:
    return b if a is None else a if b is None else max(a, b)
