"""Detection and end of processes that a script leaves behind, detached or not.

The calling process is the subreaper of the script's processes: orphans become its children.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Iterable

import psutil

from gluontune.core.errors import GluontuneError, clean

_TICK_S = 0.05
_STUBBORN_S = 20.0  # until all leftovers must be gone
_STOP_S = 2.0  # until all leftovers must have stopped
_ALL_KINDS = 0x40000000  # __WALL: children with another exit signal, too
_LOOKS = 20  # in a row with zombies only, after which processes count as following one another


class Leftovers:
    """The descendants of this process."""

    def __init__(self) -> None:
        self.ended: dict[int, str] = {}  # commands of the killed processes, by process id

    def end(self, grace_s: float) -> None:
        """End the script's processes, until no descendant is left; for ``grace_s`` seconds they may end by themselves.

        A GluontuneError if one cannot be ended.
        """
        deadline = time.monotonic() + grace_s
        last = deadline + _STUBBORN_S
        while rest := self.alive():
            if time.monotonic() < deadline:
                time.sleep(_TICK_S)
                continue
            if time.monotonic() > last:
                raise GluontuneError(f"processes of the script cannot be ended: {sorted(rest)}")
            for pid in rest:
                self.ended.setdefault(pid, _command(pid))
            send(rest, signal.SIGKILL)
            self._outrun()

    def stop(self) -> None:
        """Stop the script's processes, until two looks find the same ones and none that runs.

        Those of which others run on meanwhile, or are new at each look, are ended.
        """
        until, before = time.monotonic() + _STOP_S, [-1]
        while time.monotonic() < until:
            below = self._below()
            if below == before and not any(lives(pid, b"TtZXx") for pid in below):
                return
            send(below, signal.SIGSTOP)
            before = below
        self.end(0)

    def go_on(self) -> None:
        """Let stopped processes run."""
        send(self._below(), signal.SIGCONT)

    def _outrun(self) -> None:
        """Kill processes that fork and end quickly: their orphans are children of this process."""
        until = time.monotonic() + _TICK_S
        while time.monotonic() < until:
            below = self._below()
            send(below, signal.SIGKILL)
            _reap(below)

    def _below(self) -> list[int]:
        """The descendants, zombies too."""
        found = [os.getpid()]
        known = set(found)
        for pid in found:
            found += (new := [child for child in _children(pid) if child not in known])
            known.update(new)
        return found[1:]

    def alive(self) -> list[int]:
        """Remaining descendants.

        Each is a child of this process or below one, and a child stays listed until it is waited for. So no child means
        no descendant: processes that fork and end quickly leave zombies here.
        """
        for _ in range(_LOOKS):
            below = self._below()
            if alive := [pid for pid in below if lives(pid)]:
                return alive
            if not _reap(below):
                return []
        self.ended.setdefault(below[-1], "processes that follow one another")
        self._outrun()
        return self.alive()


def lives(pid: int, dead: bytes = b"ZXx") -> bool:
    """Whether any thread of a process is in none of these states; the first one is a zombie when it has ended alone.

    >>> lives(os.getpid())
    True
    """
    with contextlib.suppress(OSError):
        for thread in os.listdir(f"/proc/{pid}/task"):
            with contextlib.suppress(OSError), open(f"/proc/{pid}/task/{thread}/stat", "rb") as stream:
                if stream.read().rpartition(b")")[2].split()[0] not in dead:
                    return True
    return False


def _reap(pids: Iterable[int]) -> int:
    """The number of these that were zombies of this process, and are gone."""
    gone = 0
    for pid in pids:
        with contextlib.suppress(OSError):  # another's, or a rank that was waited for
            gone += os.waitpid(pid, os.WNOHANG | _ALL_KINDS)[0] == pid
    return gone


def _command(pid: int) -> str:
    with contextlib.suppress(psutil.Error):  # a zombie has none
        line = " ".join(psutil.Process(pid).cmdline()) or psutil.Process(pid).name()
        return clean(line if len(line) <= 120 else "…" + line[-119:])  # the end is more useful than the path of Python
    return f"process {pid}"


def send(pids: Iterable[int], number: int) -> None:
    """Send a signal to the processes that still exist."""
    for pid in pids:
        with contextlib.suppress(OSError):
            os.kill(pid, number)


def _children(pid: int) -> list[int]:
    found: list[int] = []
    with contextlib.suppress(OSError):
        for thread in os.listdir(f"/proc/{pid}/task"):
            with contextlib.suppress(OSError), open(f"/proc/{pid}/task/{thread}/children") as stream:
                found += map(int, stream.read().split())
    return found
