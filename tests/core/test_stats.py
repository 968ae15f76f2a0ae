"""Intervals: coverage, robustness, agreement with scipy."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats as scipy_stats

from gluontune.core.stats import (
    _left_out,
    around,
    bounds,
    chance_of_ranks,
    combine,
    difference,
    in_turn,
    interval,
    inverse,
    ratio_interval,
    said,
    scaled,
)


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


@pytest.mark.parametrize("n", range(1, 16))
def test_each_number_of_values_has_the_interval_of_its_kind(n):
    rng = np.random.default_rng(n)
    for _ in range(20):
        values = rng.lognormal(0, 0.4, n)
        found, ordered, logs = interval(values.tolist()), np.sort(values), np.log(values)
        if n == 1:
            low = high = values[0]
        elif n < 6:
            low, high = np.exp(scipy_stats.t.interval(0.95, n - 1, loc=logs.mean(), scale=scipy_stats.sem(logs)))
        else:  # of the order statistics, the narrowest pair that leaves out 2.5 % on each side at most
            out = max(k for k in range(n // 2) if scipy_stats.binom.cdf(k, n, 0.5) <= 0.025)
            low, high = ordered[out], ordered[n - 1 - out]
        middle = np.median(values)
        assert found["n"] == n and found["median"] == pytest.approx(middle, rel=1e-12)
        assert found["ci95"] == pytest.approx([min(low, middle), max(high, middle)], rel=1e-9)


def test_products_and_inverses_of_ratios_are_those_of_their_logarithms():
    rng = np.random.default_rng(7)
    for _ in range(50):
        ratios = []
        for _ in range(rng.integers(1, 4)):
            middle, down, up = rng.uniform(0.3, 4), *rng.uniform(0, 1, 2)
            ratios.append({"median": middle, "ci95": [middle * np.exp(-down), middle * np.exp(up)], "n": 5})
        found = combine(ratios)
        middles, ends = ([np.log(r["median"]) for r in ratios], [np.log(r["ci95"]) for r in ratios])
        down, up = (np.linalg.norm([m - e[side] for m, e in zip(middles, ends)]) for side in (0, 1))
        assert np.log(found["median"]) == pytest.approx(sum(middles), abs=1e-9)
        assert np.log(found["ci95"]) == pytest.approx([sum(middles) - down, sum(middles) + up], abs=1e-6)
        (turned, grown), one = (inverse(ratios[0]), scaled(ratios[0], 3.0)), ratios[0]
        low, high = one["ci95"]
        assert [turned["median"], *turned["ci95"]] == pytest.approx([1 / one["median"], 1 / high, 1 / low])
        assert [grown["median"], *grown["ci95"]] == pytest.approx([3 * one["median"], 3 * low, 3 * high])
        assert (turned["n"], grown["n"]) == (5, 5)
    assert inverse({"median": 0.5, "ci95": [0.0, 0.8], "n": 4})["ci95"] == [1.25, 1e6]
    assert combine([{"median": 2.0, "ci95": None}, {"median": 3.0, "ci95": [1.0, 9.0]}]) == {
        "median": 6.0,
        "ci95": None,
    }


def test_rounds_begin_with_another_each_and_keep_the_order():
    field = ["a", "b", "c"]
    assert [in_turn(field, number) for number in range(4)] == [
        ["a", "b", "c"], ["b", "c", "a"], ["c", "a", "b"], ["a", "b", "c"]]  # fmt: skip
    assert in_turn([], 2) == [] and in_turn(["a"], 5) == ["a"]


def test_numbers_are_shown_with_their_bounds():
    found = {"median": 1.5, "ci95": [1.254, 1.746], "n": 3}
    assert around(found) == "(95 %: 1.25–1.75)"
    assert said(found, ".2f") == "1.50 (1.25-1.75)" and bounds(found) == [1.254, 1.746]
    assert bounds({**found, "ci95": [0.0, 2.0]}) == [0.0, 2.0] and bounds({**found, "n": 2}) is None
