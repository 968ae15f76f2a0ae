"""Intervals: coverage, robustness, agreement with scipy."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats as scipy_stats

from gluontune.core.stats import _left_out, bounds, chance_of_ranks, difference, interval, ratio_interval, said


@pytest.mark.parametrize("n", [3, 9, 12, 20])
def test_the_interval_covers_the_truth_about_19_times_of_20(n):
    rng = np.random.default_rng(n)
    hits = 0
    for _ in range(600):
        low, high = interval(list(100 * np.exp(0.1 * rng.standard_normal(n))))["ci95"]
        hits += low <= 100 <= high
    assert 0.92 <= hits / 600 <= 0.998


def test_one_disturbed_repeat_hardly_moves_it():
    calm = [100.0, 101, 99, 100.5, 99.5, 100.2, 99.8, 100.1, 99.9, 100.3, 99.7]
    low, high = interval([*calm[:-1], 30.0])["ci95"]
    assert low > 97 and high < 102


def test_against_the_sign_test():
    for n in range(6, 40):
        drop = _left_out(n)
        # both sides of the interval leave out at most 2.5 %, and one value more would be too much
        assert scipy_stats.binom.cdf(drop, n, 0.5) <= 0.025 < scipy_stats.binom.cdf(drop + 1, n, 0.5)


def test_small_samples_use_student():
    values = [90.0, 100.0, 110.0]
    logs = np.log(values)
    low, high = scipy_stats.t.interval(0.95, 2, loc=logs.mean(), scale=scipy_stats.sem(logs))
    assert interval(values)["ci95"] == pytest.approx([np.exp(low), np.exp(high)])


def test_ratios_are_pairwise():
    drifting = [100.0, 50, 25, 12, 6, 3, 1.5]
    twice = [2 * v for v in drifting]
    assert ratio_interval(twice, drifting)["ci95"] == pytest.approx([2.0, 2.0])
    with pytest.raises(ValueError, match="equal lengths"):
        ratio_interval([1.0], [1.0, 2.0])


def test_differences_are_pairwise_and_students():
    mine, theirs = [5.0, 7.0, 12.0, 4.0], [1.0, 4.0, 4.0, 3.0]
    gaps = np.subtract(mine, theirs)
    want = scipy_stats.t.interval(0.95, 3, loc=gaps.mean(), scale=scipy_stats.sem(gaps))
    found = difference(mine, theirs)
    assert (found["mean"], found["n"]) == (4.0, 4) and found["ci95"] == pytest.approx(want)
    assert difference([0.75], [0.5]) == {"mean": 0.25, "ci95": None, "n": 1}
    for unequal in (([1.0], [1.0, 2.0]), ([], [])):
        with pytest.raises(ValueError, match="equal lengths"):
            difference(*unequal)


@pytest.mark.parametrize("values", [[], [0.0], [1.0, -1.0], [float("nan")], [float("inf")]])
def test_what_cannot_be_measured_is_refused(values):
    with pytest.raises(ValueError, match="positive"):
        interval(values)


def test_no_interval_of_two_values_is_shown_and_none_below_zero():
    two = interval([1.0, 9.0])
    assert 0 < two["ci95"][0] < 1 and two["ci95"][1] > 9, "it is there for decisions, and wide"
    assert bounds(two) is None and said(two, ".1f") == "5.0"
    assert bounds(interval([1.0, 9.0, 60.0]))[0] > 0
    assert bounds({"median": 1.0, "ci95": [-0.5, 2.5], "n": 5}) is None
    assert bounds(None) is None and bounds({"median": 1.0, "ci95": None}) is None
    assert said({"median": 0.5, "ci95": [0.4, 0.6], "n": 4}, ".0f", 100) == "50 (40-60)"


def test_the_chance_of_ranks_is_scipys():
    rng = np.random.default_rng(530127)
    for _ in range(60):
        low, high = (rng.random(rng.integers(1, 8)).tolist() for _ in range(2))
        theirs = scipy_stats.mannwhitneyu(low, high, alternative="less", method="exact").pvalue
        assert chance_of_ranks(low, high) == pytest.approx(theirs, rel=1e-9)
    assert chance_of_ranks([1.0, 2.0], [2.0, 3.0]) == chance_of_ranks([1.0, 2.5], [2.0, 3.0]), "a tie"
