"""A fork waits for threads that are in a compiled library: its locks would stay locked in the child, for ever.

OpenCV locks a table of threads at a thread's first call and again where the thread ends, after Python has joined it. A
child that is forked meanwhile waits at its first image (seen at one of the first 90 forks beside a busy core). What our
threads do in such a library stands within :func:`at_work`.

>>> import os
>>> with at_work():
...     len(_inside)
1
>>> _inside
set()
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Iterator

LONGEST = 60.0  # seconds that a fork waits: what is inside may be as long, or wait for the fork itself

_turn = threading.Condition()
_inside: set[int] = set()
_known: dict[threading.Thread, int] = {}  # threads that were inside, and their numbers in the system
_forking: list[int] = []  # threads that wait to fork


@contextlib.contextmanager
def at_work() -> Iterator[None]:
    """What a thread does in a compiled library that has locks of its own; another thread's fork waits for its end."""
    me = threading.get_ident()
    with _turn:
        while _forking and me not in _forking:
            _turn.wait(LONGEST)
        nested = me in _inside
        _inside.add(me)
        if threading.current_thread() not in _known:
            _known[threading.current_thread()] = threading.get_native_id()
            for thread in [thread for thread in _known if not thread.is_alive() and _is_gone(thread)]:
                del _known[thread]
    try:
        yield
    finally:
        if not nested:
            with _turn:
                _inside.discard(me)
                _turn.notify_all()


def _is_gone(thread: threading.Thread) -> bool:
    return not os.path.exists(f"/proc/self/task/{_known[thread]}")


def _wait() -> None:
    """Hold the turn once no other thread is inside and those that ended are gone from the system, too."""
    me, end = threading.get_ident(), time.monotonic() + LONGEST
    _turn.acquire()
    _forking.append(me)
    while _inside - {me} and time.monotonic() < end:
        _turn.wait(0.1)
    for thread in _known:
        while not thread.is_alive() and not _is_gone(thread) and time.monotonic() < end:
            time.sleep(1e-4)


def _go_on() -> None:
    _forking.remove(threading.get_ident())
    _turn.notify_all()
    _turn.release()


def _begin_anew() -> None:
    """In the child only the thread that forked goes on."""
    global _turn
    _turn = threading.Condition()
    _inside.clear()
    _known.clear()
    _forking.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_wait, after_in_parent=_go_on, after_in_child=_begin_anew)
