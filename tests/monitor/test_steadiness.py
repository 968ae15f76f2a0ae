"""Steadiness: each formula on series whose figures are known."""

from __future__ import annotations

import json
import math

import pytest
from hypothesis import given, strategies as st

from gluontune.core.errors import UsageError
from gluontune.monitor.series import steadiness, together

values = st.lists(st.floats(0, 100), min_size=2, max_size=40)


def test_mean_is_weighted_by_time():
    # 100 % for one second, then 0 % for nine: the plain mean of the samples would be 50
    figures = steadiness([1.0, 10.0], [100.0, 0.0], spans=[(0.0, 10.0)])
    assert figures["mean_pct"] == pytest.approx(10.0)
    assert figures["below_10_pct"] == pytest.approx(90.0)
    assert figures["cv"] == pytest.approx(3.0)  # sqrt(0.1 * 90^2 + 0.9 * 10^2) / 10
    assert figures["score"] == pytest.approx(0.1)


def test_levels_are_shares_of_time_strictly_below():
    figures = steadiness([1, 2, 3, 4], [5, 10, 50, 95])
    assert (figures["below_10_pct"], figures["below_50_pct"], figures["below_90_pct"]) == (25, 50, 75)


def test_idle_gaps_their_length_and_period():
    t = list(range(1, 13))
    v = [90, 0, 0, 90, 90, 90, 5, 90, 90, 90, 0, 0]
    figures = steadiness(t, v)
    assert figures["idle_gaps"] == 3
    assert figures["longest_idle_gap_s"] == 2
    assert figures["mean_idle_gap_s"] == pytest.approx(5 / 3)
    assert figures["idle_period_s"] == pytest.approx(4.5)  # starts at 1, 6 and 10


def test_a_lost_device_is_a_gap_in_the_measurement_and_not_an_idle_gap():
    figures = steadiness([1, 2, 3, 4, 5], [80, None, None, 80, 80])
    assert figures["measured_s"] == 3
    assert figures["mean_pct"] == 80
    assert figures["idle_gaps"] == 0


def test_spans_cut_samples_to_the_marked_time():
    # validation from 2 to 4 s is idle, and does not count
    figures = steadiness([1, 2, 3, 4, 5, 6], [90, 90, 0, 0, 90, 90], spans=[(0, 2), (4, 6)])
    assert figures["mean_pct"] == 90
    assert figures["measured_s"] == 4
    assert figures["idle_gaps"] == 0
    half = steadiness([1, 2], [100, 0], spans=[(0.5, 1.5)])
    assert half["mean_pct"] == pytest.approx(50)


def test_spans_that_touch_do_not_cut_an_idle_gap_in_two():
    t = [float(i) for i in range(1, 9)]
    v = [90, 90, 90, 0, 0, 90, 90, 90]
    figures = steadiness(t, v, spans=[(0, 4), (4.01, 8)])
    assert figures["idle_gaps"] == 1
    assert figures["longest_idle_gap_s"] == pytest.approx(2)
    apart = steadiness(t, v, spans=[(0, 4), (4.9, 8)])
    assert apart["idle_gaps"] == 2
    assert apart["idle_period_s"] is None  # no two gaps of one span


@pytest.mark.parametrize("series", [([], []), ([1.0], [None]), ([1, 2], [None, math.nan])])
def test_nothing_measured_gives_none_and_json(series):
    figures = steadiness(*series)
    assert figures["mean_pct"] is None and figures["score"] is None and figures["below_10_pct"] is None
    json.dumps(figures, allow_nan=False)


def test_an_idle_device_has_a_mean_and_no_score():
    figures = steadiness([1, 2, 3], [0, 0, 0])
    assert (figures["mean_pct"], figures["cv"], figures["score"], figures["idle_gaps"]) == (0, None, None, 1)


@pytest.mark.parametrize(("t", "v", "word"), [([1, 2], [1], "2 times and 1"), ([2, 1], [1, 1], "ascend")])
def test_wrong_input_is_refused(t, v, word):
    with pytest.raises(UsageError, match=word):
        steadiness(t, v)


@given(values)
def test_score_is_between_zero_and_one_and_figures_stay_in_range(v):
    figures = steadiness(list(range(len(v))), v)
    assert -1e-9 <= figures["mean_pct"] <= 100 + 1e-9
    assert figures["score"] is None or 0 < figures["score"] <= 1
    assert figures["below_10_pct"] <= figures["below_50_pct"] <= figures["below_90_pct"] <= 100 + 1e-9
    idle = figures["below_10_pct"] * figures["measured_s"] / 100
    assert (figures["mean_idle_gap_s"] or 0) * figures["idle_gaps"] == pytest.approx(idle, abs=1e-6)


@given(st.lists(st.floats(1, 50), min_size=2, max_size=30))
def test_score_does_not_depend_on_the_level_nor_on_the_clock(v):
    t = list(range(len(v)))
    once = steadiness(t, v)["score"]
    assert steadiness(t, [2 * x for x in v])["score"] == pytest.approx(once)
    assert steadiness([3 * x + 7 for x in t], v)["score"] == pytest.approx(once)


def test_devices_together():
    assert together({"0": [100, None], "1": [50, 20]}) == [75, 20]
    assert together({}) == []
