"""Processes that do not outlive the one that started them."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal

__all__ = ["die_with_parent"]

_PR_SET_PDEATHSIG = 1


def die_with_parent(parent: int | None = None) -> None:
    """Have Linux kill this process, even a stopped one, when the thread that started it is gone.

    Args:
        parent: process id of the parent, if known: it may be gone before this call.
    """
    _arm()
    os.register_at_fork(after_in_child=_arm)  # the loaders' workers are forked, and do not inherit it
    if parent is not None and os.getppid() != parent:
        os.kill(os.getpid(), signal.SIGKILL)


def _arm() -> None:
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
