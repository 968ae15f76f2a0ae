"""The guard: a process above the supervisor, which ends what is left if the supervisor itself is killed.

The grader starts the guard, the guard the supervisor, and the supervisor the learner's script. If the supervisor is
gone (SIGKILL, the kernel's out-of-memory killer), all that it had started becomes the guard's
(``PR_SET_CHILD_SUBREAPER``), and the guard ends it. If the guard or the grader is gone, the kernel tells the next one
below (``PR_SET_PDEATHSIG``), which ends what it has started.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import sys
import time

import psutil

__all__ = ["become_guard", "end_descendants"]

_PDEATHSIG, _SUBREAPER = 1, 36
_ALL_KINDS = 0x40000000  # __WALL: children whose end is told by another signal, too
_STUBBORN_S = 20.0


def end_descendants(seconds: float = _STUBBORN_S) -> bool:
    """Kill all descendants of this process, and theirs, until no child is left; False if ``seconds`` do not do."""
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        with contextlib.suppress(psutil.Error):
            for process in psutil.Process().children(recursive=True):
                with contextlib.suppress(OSError):
                    os.kill(process.pid, signal.SIGKILL)
        try:
            while os.waitpid(-1, os.WNOHANG | _ALL_KINDS)[0]:
                pass
        except ChildProcessError:
            return True
        time.sleep(0.001)
    return False


def become_guard(grader: int) -> None:
    """Fork: returns in the child, which is to be the supervisor; the parent watches over it and never returns.

    ``grader``: process id of the process that started this one; its end ends all.
    """
    libc = ctypes.CDLL(None)
    libc.prctl(_SUBREAPER, 1, 0, 0, 0)
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])  # until there is somebody to tell
    guard = os.getpid()
    child = os.fork()
    if child == 0:
        libc.prctl(_PDEATHSIG, signal.SIGTERM, 0, 0, 0)
        if os.getppid() != guard:
            os._exit(1)
        return
    for number in (0, 1):  # the pipes are the supervisor's
        with contextlib.suppress(OSError):
            os.close(number)

    def tell(*_: object) -> None:
        with contextlib.suppress(OSError):
            os.kill(child, signal.SIGTERM)

    signal.signal(signal.SIGTERM, tell)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    libc.prctl(_PDEATHSIG, signal.SIGTERM, 0, 0, 0)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGTERM])
    if os.getppid() != grader:
        tell()
    _, status = os.waitpid(child, 0)
    end_descendants()
    code = os.waitstatus_to_exitcode(status)
    sys.stderr.flush()
    os._exit(code if code >= 0 else 128 - code)
