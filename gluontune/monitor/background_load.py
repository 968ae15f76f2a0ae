"""What other programs take of the cores while something is measured."""

from __future__ import annotations

import contextlib
import os

import psutil

from gluontune.monitor.tree import ProcessTree
from gluontune.runtime.cpu import Cpu

__all__ = ["OtherLoad"]


class OtherLoad:
    """The CPU load of all other processes, since this object was made; this process and its children do not count.

    Counted on the cores that this process may use; time that a hypervisor gave to another machine counts too. Looking
    asks every process of the tree once, so it belongs before and after what is timed.

    >>> others = OtherLoad()
    >>> 0 <= others.read() <= 100
    True
    """

    def __init__(self) -> None:
        self._cores = Cpu().affinity()
        self._tree = ProcessTree(os.getpid())
        self._tree.read()
        self._busy_s, self._whole_s = self._machine()

    def read(self) -> float:
        """Percent of the usable cores' time that others took since the last look; 0 where the system cannot say."""
        own = self._tree.read().cpu_s or 0.0
        before = self._busy_s, self._whole_s
        self._busy_s, self._whole_s = self._machine()
        busy, whole = self._busy_s - before[0], self._whole_s - before[1]
        return min(100.0, max(0.0, 100 * (busy - own) / whole)) if whole > 0 else 0.0

    def _machine(self) -> tuple[float, float]:
        """CPU seconds that were used, and that there were, since the machine started."""
        busy = whole = 0.0
        with contextlib.suppress(OSError, psutil.Error):
            for core, times in enumerate(psutil.cpu_times(percpu=True)):
                if self._cores and core not in self._cores:
                    continue
                there = sum(times) - getattr(times, "guest", 0.0) - getattr(times, "guest_nice", 0.0)
                whole += there
                busy += there - times.idle - getattr(times, "iowait", 0.0)
        return busy, whole
