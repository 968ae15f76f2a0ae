"""Forks beside threads that are in a compiled library."""

from __future__ import annotations

import os
import threading
import time

import pytest

from gluontune.core import forking
from gluontune.core.forking import at_work

pytestmark = pytest.mark.process


def child_does(work) -> int:
    """The exit code of a fork that does ``work``."""
    child = os.fork()
    if child == 0:
        code = 1
        try:
            work()
            code = 0
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def test_a_fork_waits_for_the_thread_that_is_inside():
    lock, began = threading.Lock(), threading.Event()

    def work():
        with at_work(), lock:
            began.set()
            time.sleep(0.3)

    thread = threading.Thread(target=work)
    thread.start()
    began.wait()
    assert child_does(lambda: lock.acquire(timeout=0) or 1 / 0) == 0
    thread.join()


def test_who_is_inside_may_fork_and_the_child_begins_anew():
    def inside():
        with at_work():
            pass
        assert list(forking._known) == [threading.current_thread()]

    with at_work(), at_work():
        began = time.monotonic()
        assert child_does(inside) == 0
        assert time.monotonic() - began < forking.LONGEST / 2
        assert forking._inside == {threading.get_ident()}
    assert not forking._inside and not forking._forking


def test_a_fork_does_not_wait_for_ever(monkeypatch):
    monkeypatch.setattr(forking, "LONGEST", 0.2)
    done, began = threading.Event(), threading.Event()

    def work():
        with at_work():
            began.set()
            done.wait(30)

    thread = threading.Thread(target=work)
    thread.start()
    began.wait()
    assert child_does(lambda: None) == 0
    done.set()
    thread.join()


def test_a_thread_that_has_ended_for_python_is_awaited(monkeypatch):
    thread = threading.Thread(target=lambda: at_work()(int)())
    thread.start()
    thread.join()
    looked = []
    monkeypatch.setattr(forking, "_is_gone", lambda ended: looked.append(ended) or len(looked) > 3)
    assert child_does(lambda: None) == 0
    assert looked == [thread] * 4


def test_threads_that_are_gone_are_let_go():
    for _ in range(20):
        thread = threading.Thread(target=lambda: at_work()(int)())
        thread.start()
        thread.join()
    assert len(forking._known) < 5
