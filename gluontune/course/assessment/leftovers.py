"""Detection and end of processes that a script leaves behind, detached or not.

The calling process is the subreaper of the script's processes: orphans become its children.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Callable, Iterable

import psutil

from gluontune.core.errors import GluontuneError

_TICK_S = 0.05
_STUBBORN_S = 20.0  # until all leftovers must be gone
_LOOKS = 20  # in a row with zombies only, after which processes count as following one another


class Leftovers:
    """The descendants of this process.

    Args:
        ours: process ids of the grader's helpers.

    Attributes:
        ended: commands of the killed processes, by process id.
    """

    def __init__(self, ours: Callable[[], set[int]]):
        self._ours = ours
        self.ended: dict[int, str] = {}

    def end(self, grace_s: float) -> None:
        """End the script's processes, until no descendant is left.

        Args:
            grace_s: seconds in which they may end by themselves.

        Raises:
            GluontuneError: a process cannot be ended.
        """
        deadline = time.monotonic() + grace_s
        last = deadline + _STUBBORN_S
        while rest := self.alive():
            if time.monotonic() < deadline:
                time.sleep(_TICK_S)
                continue
            if time.monotonic() > last:
                raise GluontuneError(f"processes of the script cannot be ended: {sorted(p.pid for p in rest)}")
            for process in rest:
                self.ended.setdefault(process.pid, _command(process))
            send([process.pid for process in rest], signal.SIGKILL)
            self._outrun()

    def _outrun(self) -> None:
        """Kill processes that fork and end quickly: their orphans are children of this process."""
        ours = self._ours()
        until = time.monotonic() + _TICK_S
        while time.monotonic() < until:
            children = [pid for pid in _own_children() if pid not in ours]
            send(children, signal.SIGKILL)
            for pid in children:
                with contextlib.suppress(OSError):  # a rank was waited for already
                    os.waitpid(pid, os.WNOHANG)

    def alive(self) -> list[psutil.Process]:
        """Remaining descendants, without the grader's helpers.

        Each is a child of this process or below one, and a child stays listed until it is waited for. So no child means
        no descendant: processes that fork and end quickly leave zombies here.
        """
        ours = self._ours()
        dead: list[int] = []
        for _ in range(_LOOKS):
            children = [pid for pid in _own_children() if pid not in ours]
            if not children:
                return []
            dead = [pid for pid in children if not lives(pid)]
            for pid in dead:
                with contextlib.suppress(OSError):
                    os.waitpid(pid, os.WNOHANG)
            if len(dead) < len(children):
                break
        found = {process.pid: process for process in psutil.Process().children(recursive=True)}
        alive = [process for pid, process in found.items() if pid not in ours and lives(pid)]
        if not alive:  # processes that end before they are listed
            self.ended.setdefault(dead[-1] if dead else 0, "processes that follow one another")
            self._outrun()
            return self.alive()
        return alive


def lives(pid: int) -> bool:
    """Whether any thread of a process still runs; after its first thread's end it is listed as a zombie.

    >>> lives(os.getpid())
    True
    """
    try:
        threads = os.listdir(f"/proc/{pid}/task")
    except OSError:
        return False
    for thread in threads:
        with contextlib.suppress(OSError):
            with open(f"/proc/{pid}/task/{thread}/stat", "rb") as stream:
                state = stream.read().rpartition(b")")[2].split()[0]
            if state not in (b"Z", b"X", b"x"):
                return True
    return False


def _command(process: psutil.Process) -> str:
    with contextlib.suppress(psutil.Error):  # a zombie has none
        line = " ".join(process.cmdline()) or process.name()
        return line if len(line) <= 120 else "…" + line[-119:]  # the end is more useful than the path of Python
    return f"process {process.pid}"


def send(pids: Iterable[int], number: int) -> None:
    """Send a signal to the processes that still exist."""
    for pid in pids:
        with contextlib.suppress(OSError):
            os.kill(pid, number)


def _own_children() -> list[int]:
    found: list[int] = []
    for thread in os.listdir("/proc/self/task"):
        with contextlib.suppress(OSError), open(f"/proc/self/task/{thread}/children") as stream:
            found += map(int, stream.read().split())
    return found
