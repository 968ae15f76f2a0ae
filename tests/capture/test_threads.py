"""How many threads MXNet's operators have in a running script."""

from __future__ import annotations

import ctypes

import pytest

from gluontune.capture.contest import Contest
from gluontune.capture.helpers import threads
from gluontune.runtime import mxnet

pytestmark = pytest.mark.mxnet


@pytest.fixture
def helper(monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "8")
    monkeypatch.setattr(threads, "usable_cores", lambda: 8)
    made = threads.Threads()
    made.install(mxnet())
    before = seen_by(made)
    yield made
    made.in_engine(lambda: made._mx.base._LIB.MXSetNumOMPThreads(before))


def seen_by(helper):
    """The number of threads of an operator."""
    found: list[int] = []
    helper.in_engine(lambda: found.append(ctypes.CDLL("libgomp.so.1").omp_get_max_threads()))
    return found[0]


def test_operators_run_on_as_many_threads_as_the_state_says(helper):
    seen = []
    for state in (*helper.states, ""):
        helper.state = state
        seen.append(seen_by(helper))
    assert (helper.states, seen) == (["4", "1"], [4, 1, 8])


def test_the_number_that_is_fastest_in_the_running_steps_stays(helper):
    clock = [0.0]
    contest = Contest([helper], clock=lambda: clock[0])
    contest._waitall = lambda: None
    for _ in range(1200):
        clock[0] += {"": 0.02, "4": 0.018, "1": 0.01}[helper.state]
        contest.step()
    assert (helper.state, seen_by(helper)) == ("1", 1)


def test_threads_that_nobody_asked_for_stay(monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    made = threads.Threads()
    made.install(mxnet())
    assert made.states == []
