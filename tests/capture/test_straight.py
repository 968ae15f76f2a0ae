"""Which code computes a part of a template."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

pytest.importorskip("torch")

from gluontune.capture import straight


def part_of(ways, torch):
    part = object.__new__(straight.Part)
    part.tried, part.ways, part.seconds = [], ways, []
    part.interpreter = SimpleNamespace(torch=torch, place=SimpleNamespace(type="cpu"))
    return part


@pytest.mark.parametrize("faster", [0, 1])
def test_the_faster_of_two_ways_stays(monkeypatch, faster):
    clock = [0.0]
    monkeypatch.setattr(straight.time, "perf_counter", lambda: clock[0])

    def code(name, seconds):
        def run(env, given):
            clock[0] += seconds + (10 if len(env) == 4 else 0)  # one run is interrupted
            env.append(name)

        return run

    threads: list[int] = []
    library = SimpleNamespace(set_num_threads=threads.append)
    part = part_of([(code(0, 1.0 + faster / 5), 1), (code(1, 1.2 - faster / 5), 2)], library)
    env: list[int] = []
    for _ in range(2 * straight._TURNS + 5):
        part(env, [])
    assert env[: 2 * straight._TURNS].count(0) == straight._TURNS
    assert env[-5:] == [faster] * 5
    assert threads == [way + 1 for way in env]


def test_a_way_that_takes_much_longer_is_given_up_after_two_turns(monkeypatch):
    clock = [0.0]
    monkeypatch.setattr(straight.time, "perf_counter", lambda: clock[0])

    def code(seconds):
        def run(env, given):
            clock[0] += seconds
            env.append(seconds)

        return run

    part = part_of([(code(1.0), 1), (code(9.0), 2), (code(1.1), 1)], SimpleNamespace(set_num_threads=int))
    env: list[float] = []
    for _ in range(20):
        part(env, [])
    assert [env.count(seconds) for seconds in (9.0, 1.1)] == [straight._FIRST_TURNS, straight._TURNS]
