"""How many threads MXNet's operators have in a running script."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys

import pytest

from gluontune.capture.contest import Contest
from gluontune.capture.helpers import base
from gluontune.capture.script import ALL_THREADS
from gluontune.runtime import mxnet

pytestmark = pytest.mark.mxnet


@pytest.fixture
def helper(monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.setenv(ALL_THREADS, "4")
    made = base.Threads()
    made.install(mxnet())
    yield made
    made.state = ""


def seen_by(helper):
    """The number of threads of an operator."""
    found: list[int] = []
    helper.in_engine(lambda: found.append(ctypes.CDLL("libgomp.so.1").omp_get_max_threads()))
    return found[0]


def test_operators_run_on_as_many_threads_as_the_state_says_whatever_forks(helper):
    first = seen_by(helper)
    assert helper.states == ["4"] and first != 4
    helper.state = "4"
    for _ in range(2):  # MXNet's thread is another one after each fork
        assert seen_by(helper) == 4
        child = os.fork()
        if child == 0:
            os._exit(0)
        os.waitpid(child, 0)
    helper.state = ""
    assert seen_by(helper) == first


@pytest.mark.parametrize(("seconds", "kept"), [(0.01, "4"), (0.021, "")])
def test_more_threads_stay_where_the_running_steps_are_faster(helper, seconds, kept):
    clock = [0.0]
    contest = Contest([helper], clock=lambda: clock[0])
    contest._waitall = lambda: None
    for _ in range(1200):
        clock[0] += {"": 0.02, "4": seconds}[helper.state]
        contest.step()
    assert helper.state == kept and (seen_by(helper) == 4) == bool(kept)


def test_threads_that_nobody_may_have_are_not_tried(monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.setenv(ALL_THREADS, "1")
    made = base.Threads()
    made.install(mxnet())
    assert made.states == []


FORKS_MEANWHILE = """
import os, threading, time
from gluontune.capture.helpers.base import Threads
from gluontune.runtime import mxnet

helper, inside = Threads(), threading.Event()
helper.install(mxnet())

def fork():
    inside.wait()
    child = os.fork()  # holds Python's lock, and MXNet's part of it waits for MXNet's thread
    if child == 0:
        os._exit(0)
    os.waitpid(child, 0)

forking = threading.Thread(target=fork)
forking.start()
helper.in_engine(lambda: (inside.set(), time.sleep(0.5)))
forking.join()
"""


def test_a_fork_of_another_thread_waits_for_the_function_in_the_engine(monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.setenv(ALL_THREADS, "4")
    subprocess.run([sys.executable, "-c", FORKS_MEANWHILE], check=True, timeout=60)
