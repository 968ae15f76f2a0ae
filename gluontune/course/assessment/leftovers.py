"""What a script leaves behind, however it has detached itself: found, and ended.

The process that asks is the subreaper of all that the script starts: what loses its own parent becomes a child of it.
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
_STUBBORN_S = 20.0  # in which all that is left must be gone
_LOOKS = 20  # in a row that find only the dead, before something is said to go on


class Leftovers:
    """The descendants of this process.

    Args:
        ours: process ids of helpers that are no script's.

    Attributes:
        ended: what had to be ended, by process id: its command.
    """

    def __init__(self, ours: Callable[[], set[int]]):
        self._ours = ours
        self.ended: dict[int, str] = {}

    def end(self, grace_s: float) -> None:
        """End what the script has left behind, until no descendant is left.

        Args:
            grace_s: seconds in which it may end by itself.

        Raises:
            GluontuneError: something cannot be ended.
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
        """Kill what forks and ends faster than a look round takes: its orphans are children of this process."""
        ours = self._ours()
        until = time.monotonic() + _TICK_S
        while time.monotonic() < until:
            children = [pid for pid in _own_children() if pid not in ours]
            send(children, signal.SIGKILL)
            for pid in children:
                with contextlib.suppress(OSError):  # a rank was waited for already
                    os.waitpid(pid, os.WNOHANG)

    def alive(self) -> list[psutil.Process]:
        """Descendants that are left, without the helpers that are ours.

        Each is a child of this process or below one, and a child stays listed until it is waited for. So nothing is
        left only where no child is: what forks and ends faster than one can look still leaves its dead here.
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
        if not alive:  # one after the other, each dead before it is met
            self.ended.setdefault(dead[-1] if dead else 0, "processes that follow one another")
            self._outrun()
            return self.alive()
        return alive


def lives(pid: int) -> bool:
    """Whether any thread of a process still runs. Where its first one has ended, it shows as a zombie and trains on.

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
    with contextlib.suppress(psutil.Error):  # a zombie has none any more
        said = " ".join(process.cmdline()) or process.name()
        return said if len(said) <= 120 else "…" + said[-119:]  # its end tells more than the path of its Python
    return f"process {process.pid}"


def send(pids: Iterable[int], number: int) -> None:
    """Send a signal to those of the processes that are still there."""
    for pid in pids:
        with contextlib.suppress(OSError):
            os.kill(pid, number)


def _own_children() -> list[int]:
    found: list[int] = []
    for thread in os.listdir("/proc/self/task"):
        with contextlib.suppress(OSError), open(f"/proc/self/task/{thread}/children") as stream:
            found += map(int, stream.read().split())
    return found
