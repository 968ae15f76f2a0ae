"""CPU use of a tree of processes: cores and memory, and the load of the whole machine."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable
from typing import Any, Union

import psutil

from gluontune.monitor.tree import ProcessTree, WaitClock
from gluontune.runtime.cpu import Cpu

_MIB = 1 << 20
_WAITS_EVERY_S = 0.5  # reads each thread: too expensive for every sample
# Memory, disks, network, quota and the search for new processes: a long sample delays a training step.
_SLOW_EVERY_S = 1.0


def usable_cores() -> float:
    """Cores that this process can keep busy: its affinity, limited by the cgroup's quota, which may be a fraction."""
    system = Cpu()
    cores = float(len(system.affinity()) or 1)
    with contextlib.suppress(OSError, ValueError):
        return min(cores, system.quota_cores() or cores)
    return cores


class CpuSampler:
    """Rates of a process tree and of the machine.

    ==========================  ==========================================================================
    ``cpu_pct``                 percent of the usable cores that the tree used (0 … 100)
    ``cpu_wait_pct``            of the time in which the tree's threads wanted a core, percent without one;
                                twice a second at most, None in between
    ``rss_mib``                 resident memory of the tree; pages that processes share count in each
    ``processes``               processes in the tree
    ``system_cpu_pct``          percent of all cores that the whole machine used; ``cpu_cores_pct``: each core
    ``system_mem_pct``          share of the machine's memory in use
    ``disk_read_mib_per_s`` …   the machine's disks and network: ``disk_write…``, ``net_recv…``, ``net_sent…``
    ``cpu_quota_throttled_pct`` share of the cgroup's periods in which its quota held it up; like the two before
                                it read once a second, and the same in the samples between
    ==========================  ==========================================================================

    Args:
        pids: the roots of the tree; ``"machine"`` takes the whole machine for the tree.
        cores: usable cores; default :func:`usable_cores`.
        system: psutil, or a fake of it.
    """

    def __init__(self, pids: Union[int, Iterable[int], str], cores: float | None = None, system: Any = psutil):
        self.tree = None if isinstance(pids, str) else ProcessTree(pids, find_every_s=_SLOW_EVERY_S)
        self.cores = usable_cores() if cores is None else cores
        self._system = system
        self._counters: dict[str, float] = {}
        self._per_core: list[Any] = []
        self._quota: tuple[int, int] | None = None
        self.pids: frozenset[int] = frozenset()
        self._waits, self._since_waits = WaitClock(), _WAITS_EVERY_S
        self._slow: dict[str, Any] = {}
        self._since_slow = _SLOW_EVERY_S

    def read(self, passed_s: float | None, wall_s: float) -> dict[str, Any]:
        """One sample, ``passed_s`` seconds after the previous one; without (or not above zero) it has no rates.

        ``wall_s``, the wall-clock time, distinguishes newborn processes from adopted ones.
        """
        passed = passed_s if passed_s and passed_s > 0 else None
        machine = self._machine(passed)
        if self.tree is None:
            used = _quiet(lambda: self._system.virtual_memory().used / _MIB)
            return {"cpu_pct": machine["system_cpu_pct"], "rss_mib": used, "processes": None, **machine}
        tree = self.tree.read(wall_s)
        self.pids = tree.pids
        share = None
        if tree.cpu_s is not None and passed:
            share = min(100.0, 100.0 * tree.cpu_s / passed / self.cores)
        own = {"cpu_pct": share, "cpu_wait_pct": self._waited(passed), "rss_mib": tree.rss_mib}
        return {**own, "processes": tree.processes, **machine}

    def _waited(self, passed: float | None) -> float | None:
        self._since_waits += passed or 0.0
        if self._since_waits < _WAITS_EVERY_S:
            return None
        self._since_waits = 0.0
        return self._waits.read(self.pids)

    @property
    def alive(self) -> bool:
        """Whether any process of the tree still runs."""
        return self.tree is None or self.tree.alive

    def _machine(self, passed: float | None) -> dict[str, Any]:
        cores = self._core_shares()
        busy = None if not cores else sum(cores) / len(cores)
        self._since_slow += passed or 0.0
        if not self._slow or self._since_slow >= _SLOW_EVERY_S:
            self._slow = self._slowly(self._since_slow if self._slow else None)
            self._since_slow = 0.0
        each = {str(i): share for i, share in enumerate(cores or [])}
        return {"system_cpu_pct": busy, "cpu_cores_pct": each, **self._slow}

    def _slowly(self, passed: float | None) -> dict[str, Any]:
        sample: dict[str, Any] = {
            "system_mem_pct": _quiet(lambda: float(self._system.virtual_memory().percent)),
            "cpu_quota_throttled_pct": self._throttled(),
        }
        disk = _quiet(lambda: self._system.disk_io_counters())
        net = _quiet(lambda: self._system.net_io_counters())
        sources = (
            ("disk_read_mib_per_s", disk, "read_bytes"),
            ("disk_write_mib_per_s", disk, "write_bytes"),
            ("net_recv_mib_per_s", net, "bytes_recv"),
            ("net_sent_mib_per_s", net, "bytes_sent"),
        )
        for name, counters, field in sources:
            sample[name] = self._rate(name, getattr(counters, field, None), passed)
        return sample

    def _rate(self, name: str, now: float | None, passed: float | None) -> float | None:
        before = self._counters.get(name)
        if now is None:
            return None
        self._counters[name] = now
        if before is None or passed is None or now < before:  # a counter that fell was set back
            return None
        return (now - before) / _MIB / passed

    def _core_shares(self) -> list[float] | None:
        now = _quiet(lambda: self._system.cpu_times(percpu=True))
        before, self._per_core = self._per_core, now or []
        if not now or len(before) != len(now):
            return None
        shares = []
        for old, new in zip(before, now):
            idle = _idle(new) - _idle(old)
            whole = _all(new) - _all(old)
            shares.append(min(100.0, max(0.0, 100.0 * (1 - idle / whole))) if whole > 0 else 0.0)
        return shares

    def _throttled(self) -> float | None:
        now = _quota_counters()
        before, self._quota = self._quota, now
        if now is None or before is None or now[0] <= before[0]:
            return None
        return 100.0 * max(0, now[1] - before[1]) / (now[0] - before[0])


class OtherLoad:
    """The CPU load of all other processes, since this object was made; this process and its children do not count.

    Counted on the cores that this process may use, with time that a hypervisor gave to another machine. Each reading
    visits every process of the tree once, so it belongs before and after the timed part.
    """

    def __init__(self) -> None:
        self._cores = Cpu().affinity()
        self._tree = ProcessTree(os.getpid())
        self._tree.read()
        self._busy_s, self._whole_s = self._machine()

    def read(self) -> float:
        """Percent of the usable cores' time that others took since the last reading; 0 if unknown."""
        ours = self._tree.read().cpu_s or 0.0
        before = self._busy_s, self._whole_s
        self._busy_s, self._whole_s = self._machine()
        busy, whole = self._busy_s - before[0], self._whole_s - before[1]
        return min(100.0, max(0.0, 100 * (busy - ours) / whole)) if whole > 0 else 0.0

    def _machine(self) -> tuple[float, float]:
        """CPU seconds used and available since the machine started."""
        busy = whole = 0.0
        with contextlib.suppress(OSError, psutil.Error):
            for core, times in enumerate(psutil.cpu_times(percpu=True)):
                if self._cores and core not in self._cores:
                    continue
                whole += _all(times)
                busy += _all(times) - _idle(times)
        return busy, whole


def _idle(times: Any) -> float:
    return float(times.idle + getattr(times, "iowait", 0.0))


def _all(times: Any) -> float:
    # the kernel counts guest time within user time
    return float(sum(times) - getattr(times, "guest", 0.0) - getattr(times, "guest_nice", 0.0))


def _quiet(query: Any) -> Any:
    """The answer, or None: a failed query is N/A and never an error of the training."""
    try:
        return query()
    except Exception:
        return None


def _quota_counters() -> tuple[int, int] | None:
    """(periods, throttled periods) of this process's cgroup; None without a quota."""
    for path in ("/sys/fs/cgroup/cpu.stat", "/sys/fs/cgroup/cpu/cpu.stat"):
        try:
            with open(path, encoding="ascii") as stream:
                found = dict(line.split()[:2] for line in stream if line.count(" ") == 1)
            return int(found["nr_periods"]), int(found["nr_throttled"])
        except (OSError, KeyError, ValueError):
            continue
    return None
