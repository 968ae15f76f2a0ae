"""A tree of processes: its CPU time, memory and members."""

from __future__ import annotations

import contextlib
import math
import os
import time
from collections.abc import Iterable
from typing import NamedTuple, Optional

import psutil

from gluontune.core.errors import GluontuneError

_MIB = 1 << 20
# Start times count from a boot time in whole seconds.
_START_SLACK_S = 1.0
_YOUNG_S = 3.0
# Errors of psutil for a process that is gone or forbidden.
_GONE = (psutil.Error, OSError)


class TreeReading(NamedTuple):
    """A reading of the tree: CPU seconds since the last one (None at first), MiB, processes, their ids."""

    cpu_s: Optional[float]
    rss_mib: Optional[float]
    processes: int
    pids: frozenset[int]


class _Times(NamedTuple):
    own: float  # CPU seconds of the process itself
    waited: float  # … and of the children that it has waited for


class ProcessTree:
    """The processes ``pids`` and their descendants, with a CPU time that neither jumps nor falls.

    When a child ends, its CPU time leaves the tree, and its parent gets it as "time of children waited for". So the sum
    of both over the living tree is constant, whoever ends, and counts children that lived between two readings, too. If
    a child ends without being waited for (its time is lost), the growth of the survivors' time is the floor. A process
    that joins late, started elsewhere, adds nothing from before.

    Args:
        pids: one process id or several.
        find_every_s: while no new process appears, the searches become rarer, down to one in so many seconds (at most
            1), once the tree is some seconds old: short commands start theirs at once. A search reads each thread,
            which is most of a reading's cost for a training process with many threads.
    """

    def __init__(self, pids: int | Iterable[int], find_every_s: float = 0.0):
        self._find_every_s, self._pause_s, self._searched_at = find_every_s, 0.0, -math.inf
        self._rarer_from = time.monotonic() + _YOUNG_S
        wanted = [pids] if isinstance(pids, int) else list(pids)
        self._known: dict[tuple[int, float], psutil.Process] = {}
        self._times: dict[tuple[int, float], _Times | None] = {}
        self._started, self._looked_at = False, 0.0
        for pid in wanted:
            with contextlib.suppress(psutil.NoSuchProcess, ValueError, OverflowError):
                process = psutil.Process(pid)
                self._known[_key(process)] = process
        if not self._known:
            names = ", ".join(str(pid) for pid in wanted) or "none given"
            raise GluontuneError(f"monitor: no running process with id {names}; `ps` lists them")

    @property
    def alive(self) -> bool:
        """Whether any process of the tree still runs."""
        return any(_runs(process) for process in self._known.values())

    def read(self, wall: float = 0.0) -> TreeReading:
        """Read the tree; unreadable processes (just ended, or another user's) are skipped.

        ``wall``, the time now on the scale of process start times, lets the next reading distinguish newborn processes
        from adopted ones; 0: all new ones are newborn.
        """
        now = time.monotonic()
        if now - self._searched_at >= self._pause_s:
            known = len(self._known)
            self._find()
            self._searched_at = now
            longer = min(self._find_every_s, max(0.25, 2 * self._pause_s))
            self._pause_s = 0.0 if len(self._known) > known or now < self._rarer_from else longer
        times: dict[tuple[int, float], _Times | None] = {}
        rss, sizes = 0, 0
        for key, process in list(self._known.items()):
            try:
                with process.oneshot():
                    cpu = process.cpu_times()
                    waited = getattr(cpu, "children_user", 0.0) + getattr(cpu, "children_system", 0.0)
                    times[key] = _Times(cpu.user + cpu.system, waited)
                    rss += process.memory_info().rss
                    sizes += 1
            except psutil.NoSuchProcess:
                self._known.pop(key, None)
            except _GONE:
                times.setdefault(key, None)  # alive, but unreadable
        used = self._used(times)
        self._times, self._started, self._looked_at = times, True, wall
        return TreeReading(used, rss / _MIB if sizes else None, len(times), frozenset(pid for pid, _ in times))

    def _find(self) -> None:
        """Add the children started since; orphans stay in the tree."""
        for key, process in list(self._known.items()):
            if not _same(process):
                del self._known[key]
        seen = {pid for pid, _ in self._known}
        queue = [process.pid for process in self._known.values()]
        while queue:
            for pid in _children(queue.pop()):
                if pid not in seen:
                    seen.add(pid)
                    queue.append(pid)
                    with contextlib.suppress(*_GONE):
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
                # A process new since the last reading adds all its time; one that had started before (adopted, or
                # unreadable until now) adds nothing.
                newborn = key not in self._times and key[1] >= self._looked_at - _START_SLACK_S
                before = _Times(0.0, 0.0) if newborn else now
            whole += now.own + now.waited - before.own - before.waited
            own += now.own - before.own
        for key, before in self._times.items():
            if key not in times:
                certain = certain and before is not None
                whole -= before.own + before.waited if before is not None else 0.0
        return max(own, whole, 0.0) if certain else max(own, 0.0)


class WaitClock:
    """The share of time that a tree's runnable threads waited for a core.

    Linux counts for each thread the time that it ran and the time in a core's queue
    (``/proc/PID/task/TID/schedstat``). A thread that waits for a lock, a disk or a device counts in neither.
    """

    def __init__(self) -> None:
        self._before: dict[str, tuple[int, int]] = {}

    def read(self, pids: Iterable[int]) -> float | None:
        """Percent waited since the last call; None at the first, without threads that ran, or off Linux."""
        now: dict[str, tuple[int, int]] = {}
        for pid in pids:
            folder = f"/proc/{pid}/task"
            with contextlib.suppress(OSError):
                for thread in os.listdir(folder):
                    with contextlib.suppress(OSError, ValueError, IndexError):
                        with open(f"{folder}/{thread}/schedstat", "rb") as stream:
                            counted = stream.read().split()
                        now[thread] = int(counted[0]), int(counted[1])
        before, self._before = self._before, now
        both = [(now[t][0] - before[t][0], now[t][1] - before[t][1]) for t in now if t in before]
        ran = sum(max(0, r) for r, _ in both)
        waited = sum(max(0, w) for _, w in both)
        return 100 * waited / (ran + waited) if ran > 0 else None


def _children(pid: int) -> list[int]:
    """The children of one process from the kernel's lists per thread, which spares a walk over all processes of the
    machine, or else from psutil."""
    try:
        threads = os.listdir(f"/proc/{pid}/task")
        found: list[int] = []
        for thread in threads:
            with open(f"/proc/{pid}/task/{thread}/children", encoding="ascii") as stream:
                found.extend(int(child) for child in stream.read().split())
        return found
    except OSError:
        with contextlib.suppress(*_GONE):
            return [child.pid for child in psutil.Process(pid).children()]
        return []


def _key(process: psutil.Process) -> tuple[int, float]:
    return process.pid, process.create_time()


def _same(process: psutil.Process) -> bool:
    """Whether the id still belongs to the same process (or to its zombie)."""
    with contextlib.suppress(*_GONE):
        return process.is_running()
    return False


def _runs(process: psutil.Process) -> bool:
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except _GONE:
        return False
