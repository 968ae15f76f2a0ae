"""What a tree of processes takes of the machine: cores, memory, and what the whole machine does beside it."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable
from typing import Any, NamedTuple, Optional

import psutil

from gluontune.errors import GluontuneError
from gluontune.runtime.cpu import Cpu

__all__ = ["CpuSampler", "ProcessTree", "TreeReading", "usable_cores"]

_MIB = 1 << 20
# What psutil raises for a process that is gone, forbidden, or half gone.
_GONE = (psutil.Error, OSError)


def usable_cores() -> float:
    """Cores that this process can keep busy: its affinity, cut by the cgroup's quota (which may be a fraction)."""
    system = Cpu()
    cores = float(len(system.affinity()) or 1)
    with contextlib.suppress(OSError, ValueError):
        quota = system.quota_cores()
        if quota:
            return min(cores, quota)
    return cores


class TreeReading(NamedTuple):
    """One look at the tree: CPU seconds since the last look (None at the first), MiB, processes, its ids."""

    cpu_s: Optional[float]
    rss_mib: Optional[float]
    processes: int
    pids: frozenset[int]


class _Times(NamedTuple):
    own: float  # CPU seconds of the process itself
    waited: float  # … and of the children that it has waited for


class ProcessTree:
    """The processes ``pids`` and all that they start, in a form whose CPU time neither jumps nor falls.

    A child that ends takes its CPU time out of the tree, and its parent gets the whole of it as "time of
    children waited for". So the sum of both over the living tree is kept, whoever ends, and counts children
    that lived between two looks, too. Where a child ends without being waited for (its time is lost to the
    system), the growth of the survivors' own time is the floor. A process that joins late, having been
    started elsewhere, brings nothing from before.

    Args:
        pids: one process id or several.

    Raises:
        GluontuneError: none of the processes exists.
    """

    def __init__(self, pids: int | Iterable[int]):
        wanted = [pids] if isinstance(pids, int) else list(pids)
        self._known: dict[tuple[int, float], psutil.Process] = {}
        self._times: dict[tuple[int, float], _Times | None] = {}
        self._started = False
        for pid in wanted:
            with contextlib.suppress(psutil.NoSuchProcess, ValueError, OverflowError):
                process = psutil.Process(pid)
                self._known[_key(process)] = process
        self._roots = list(self._known.values())
        if not self._roots:
            names = ", ".join(str(pid) for pid in wanted) or "none given"
            raise GluontuneError(f"monitor: no running process with id {names}; `ps` lists them")

    @property
    def alive(self) -> bool:
        """Whether any process of the tree still runs."""
        return any(_runs(process) for process in self._known.values())

    def read(self) -> TreeReading:
        """Look at the tree; what cannot be read (a process that ends just now, another user's) is left out."""
        self._find()
        times: dict[tuple[int, float], _Times | None] = {}
        rss, sizes = 0, 0
        for key, process in list(self._known.items()):
            try:
                with process.oneshot():
                    if not _same(process):
                        raise psutil.NoSuchProcess(process.pid)
                    cpu = process.cpu_times()
                    waited = getattr(cpu, "children_user", 0.0) + getattr(cpu, "children_system", 0.0)
                    times[key] = _Times(cpu.user + cpu.system, waited)
                    rss += process.memory_info().rss
                    sizes += 1
            except psutil.NoSuchProcess:
                self._known.pop(key, None)
            except _GONE:
                times.setdefault(key, None)  # there, but not ours to read
        used = self._used(times)
        self._times, self._started = times, True
        pids = frozenset(pid for pid, _ in times)
        return TreeReading(used, rss / _MIB if sizes else None, len(times), pids)

    def _find(self) -> None:
        """Add the children that were started since; those that lost their parent stay known."""
        seen = {pid for pid, _ in self._known}
        queue = [process.pid for process in self._known.values()]
        while queue:
            with contextlib.suppress(*_GONE):
                for pid in _children(queue.pop()):
                    if pid not in seen:
                        seen.add(pid)
                        queue.append(pid)
                        child = psutil.Process(pid)
                        self._known[_key(child)] = child

    def _used(self, times: dict[tuple[int, float], _Times | None]) -> float | None:
        if not self._started:
            return None
        whole, own, certain = 0.0, 0.0, True
        for key, now in times.items():
            if now is None:
                continue
            before = self._times.get(key)
            if before is None:
                # New since the last look, it brings all that it has used; one that had started before
                # (adopted, or unreadable until now) brings nothing.
                newborn = key not in self._times and key[1] >= self._looked_at
                before = _Times(0.0, 0.0) if newborn else now
            whole += now.own + now.waited - before.own - before.waited
            own += now.own - before.own
        for key, before in self._times.items():
            if key not in times:
                certain = certain and before is not None
                whole -= before.own + before.waited if before is not None else 0.0
        return max(own, whole, 0.0) if certain else max(own, 0.0)

    _looked_at = 0.0

    def mark_time(self, wall: float) -> None:
        """The wall-clock time of the last look, on the scale of process start times."""
        self._looked_at = wall


class CpuSampler:
    """Turns looks at a process tree and at the machine into rates.

    ==========================  ==========================================================================
    ``cpu_pct``                 percent of the usable cores that the tree used (0 … 100)
    ``rss_mib``                 resident memory of the tree; pages that processes share count in each
    ``processes``               processes in the tree
    ``system_cpu_pct``          percent of all cores that the whole machine used; ``cpu_cores_pct``: each core
    ``system_mem_pct``          share of the machine's memory in use
    ``disk_read_mib_per_s`` …   the machine's disks and network: ``disk_write…``, ``net_recv…``, ``net_sent…``
    ``cpu_quota_throttled_pct`` share of the cgroup's periods in which its quota held it up
    ==========================  ==========================================================================

    Args:
        pids: the roots of the tree.
        cores: usable cores; default :func:`usable_cores`.
        system: psutil, or a stand-in for it.
    """

    def __init__(self, pids: int | Iterable[int], cores: float | None = None, system: Any = psutil):
        self.tree = ProcessTree(pids)
        self.cores = usable_cores() if cores is None else cores
        self._system = system
        self._counters: dict[str, float] = {}
        self._per_core: list[Any] = []
        self._quota: tuple[int, int] | None = None
        self.pids: frozenset[int] = frozenset()

    def read(self, passed_s: float | None, wall_s: float) -> dict[str, Any]:
        """One sample.

        Args:
            passed_s: seconds since the sample before; None (or not above zero) gives no rates.
            wall_s: wall-clock time, to tell newborn processes from adopted ones.
        """
        tree = self.tree.read()
        self.tree.mark_time(wall_s)
        self.pids = tree.pids
        passed = passed_s if passed_s and passed_s > 0 else None
        share = None
        if tree.cpu_s is not None and passed:
            share = min(100.0, 100.0 * tree.cpu_s / passed / self.cores)
        sample: dict[str, Any] = {"cpu_pct": share, "rss_mib": tree.rss_mib, "processes": tree.processes}
        sample.update(self._machine(passed))
        return sample

    def _machine(self, passed: float | None) -> dict[str, Any]:
        cores = self._core_shares()
        busy = None if not cores else sum(cores) / len(cores)
        sample: dict[str, Any] = {
            "system_cpu_pct": busy,
            "cpu_cores_pct": {str(i): share for i, share in enumerate(cores or [])},
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


def _children(pid: int) -> list[int]:
    """The children of one process: from the kernel's own list of each thread's, which spares a walk over
    all processes of the machine; where it keeps none, from psutil."""
    try:
        threads = os.listdir(f"/proc/{pid}/task")
        found: list[int] = []
        for thread in threads:
            with open(f"/proc/{pid}/task/{thread}/children", encoding="ascii") as stream:
                found.extend(int(child) for child in stream.read().split())
        return found
    except OSError:
        return [child.pid for child in psutil.Process(pid).children()]


def _key(process: psutil.Process) -> tuple[int, float]:
    return process.pid, process.create_time()


def _same(process: psutil.Process) -> bool:
    """Whether the number still means the process that it meant (a zombie does, until it is waited for)."""
    return process.is_running()


def _runs(process: psutil.Process) -> bool:
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except _GONE:
        return False


def _idle(times: Any) -> float:
    return float(times.idle + getattr(times, "iowait", 0.0))


def _all(times: Any) -> float:
    # the kernel counts guest time within user time
    return float(sum(times) - getattr(times, "guest", 0.0) - getattr(times, "guest_nice", 0.0))


def _quiet(query: Any) -> Any:
    """The answer, or None: what the system does not tell is N/A and never an error of the training."""
    try:
        return query()
    except Exception:
        return None


def _quota_counters() -> tuple[int, int] | None:
    """(periods, throttled periods) of this process's cgroup; None where no quota is counted."""
    for path in ("/sys/fs/cgroup/cpu.stat", "/sys/fs/cgroup/cpu/cpu.stat"):
        try:
            with open(path, encoding="ascii") as stream:
                found = dict(line.split()[:2] for line in stream if line.count(" ") == 1)
            return int(found["nr_periods"]), int(found["nr_throttled"])
        except (OSError, KeyError, ValueError):
            continue
    return None
