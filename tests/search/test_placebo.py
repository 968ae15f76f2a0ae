"""The contest and the judge on rungs of known gain: a placebo, slow-downs, gains; on a simulated, noisy machine."""

from __future__ import annotations

import pytest

from gluontune.search import measure, rung_contest
from tests.support.noisy_machine import NOISES, Machine, contest


@pytest.fixture(autouse=True)
def quiet(monkeypatch):
    monkeypatch.setattr(rung_contest.time, "sleep", lambda seconds: None)
    monkeypatch.setattr(measure.OtherLoad, "read", lambda self: 0.0)


def rows(gains, kind, count):
    return [contest(gains, Machine(seed, **NOISES[kind])) for seed in range(count)]


@pytest.mark.parametrize("kind", NOISES)
def test_a_placebo_is_not_kept(kind):
    assert not any(row["kept"] for gains in ([1.0], [1.0] * 3) for row in rows(gains, kind, 20))


@pytest.mark.parametrize("kind", NOISES)
@pytest.mark.parametrize("gain", [0.8, 0.95])
def test_a_slow_down_is_not_kept(gain, kind):
    assert not any(row["kept"] for row in rows([gain], kind, 20))


def test_a_slow_down_of_a_fifth_is_said_to_hurt_where_the_machine_is_quiet():
    assert sum(row["verdict"] == "hurt" for row in rows([0.8], "quiet", 20)) >= 15  # else: no gain


@pytest.mark.parametrize(("gain", "kind"), [(1.5, "loud"), (1.2, "shared"), (1.1, "quiet")])
def test_a_gain_is_kept(gain, kind):
    assert all(row["kept"] and row["verdict"] == "helped" for row in rows([gain], kind, 20))


@pytest.mark.parametrize("gain", [1.0, 0.95, 0.8])
def test_a_lucky_start_is_no_gain(gain):
    found = rows([gain], "starts", 40)
    assert not any(row["kept"] for row in found)
    assert gain < 1 or any("start by start" in note for row in found for note in row["notes"])  # lucky at first


def test_a_gain_is_kept_from_several_starts():
    quiet = contest([1.5], Machine(3, **NOISES["quiet"]))
    assert quiet["kept"] and quiet["ratio_to_previous"]["n"] == 8  # two starts of four slices
    assert sum(row["kept"] for row in rows([3.0], "starts", 20)) >= 17  # whatever the start, it is one
