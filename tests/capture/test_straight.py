"""Which code computes a part of a template."""

from __future__ import annotations

import pytest

pytest.importorskip("torch")

from gluontune.capture import straight


def part_of(codes):
    part = object.__new__(straight.Part)
    part.tried, part.codes, part.seconds = [], codes, []
    return part


@pytest.mark.parametrize("faster", [0, 1])
def test_the_faster_of_two_codes_stays(monkeypatch, faster):
    clock = [0.0]
    monkeypatch.setattr(straight.time, "perf_counter", lambda: clock[0])

    def code(name, seconds):
        def run(env, given):
            clock[0] += seconds + (10 if len(env) == 4 else 0)  # one run is interrupted
            env.append(name)

        return run

    part = part_of([code(0, 1.0 + faster), code(1, 2.0 - faster)])
    env: list[int] = []
    for _ in range(2 * straight._TURNS + 5):
        part(env, [])
    assert env[: 2 * straight._TURNS].count(0) == straight._TURNS
    assert env[-5:] == [faster] * 5
