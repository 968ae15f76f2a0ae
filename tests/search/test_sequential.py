"""The interval of one look, against scipy's trimmed statistics, and what earlier contests change in it."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats

from gluontune.search.sequential import ERROR, LOOKS, Scatter, futility_bound, ratio_at_look, trimmed_interval

#: Rounds after which is looked, and the share of the error that each look spends.
SPENT = {4: 1e-3, 6: 1e-3, 9: 1e-3, 13: 8e-4, 19: 5e-4, 27: 4e-4, 36: 3e-4}


def error_of(values):
    """Standard error of the trimmed mean, by scipy; as many are left out as are a fifth, rounded down."""
    share = int(0.2 * len(values)) / len(values) + 1e-12
    return float(stats.mstats.trimmed_stde(values, (share, share)))


def values_of(n, seed=0):
    return (0.1 * np.random.default_rng([seed, n]).standard_normal(n)).tolist()


@pytest.mark.parametrize("n", [2, 4, 5, 9, 10, 13, 36])
def test_it_is_the_interval_of_the_trimmed_mean(n):
    values, left_out = values_of(n), int(0.2 * n)
    centre = stats.trim_mean(values, 0.2)
    reach = stats.t.ppf(0.975, n - 2 * left_out - 1) * error_of(values)
    assert trimmed_interval(values, 0.05) == pytest.approx((centre - reach, centre + reach))


def moderated(values, squares, freedom):
    """By Smyth's formula: the variance of one value, drawn to ``squares / freedom``."""
    n, left_out = len(values), int(0.2 * len(values))
    own, mine = error_of(values) ** 2 * n, n - 2 * left_out - 1
    weight = min(8, freedom)
    variance = (mine * own + weight * squares / freedom) / (mine + weight)
    reach = stats.t.ppf(0.975, mine + weight) * math.sqrt(variance / n)
    centre = stats.trim_mean(values, 0.2)
    return centre - reach, centre + reach


def taught(*contests):
    """A scatter that has seen these logarithms of ratios; the sum of squares and the freedom that it should have."""
    scatter, squares, freedom = Scatter(), 0.0, 0
    for logs in contests:
        scatter.add([math.exp(v) for v in logs], [1.0] * len(logs))
        own = len(logs) - 2 * int(0.2 * len(logs)) - 1
        squares += own * len(logs) * error_of(logs) ** 2
        freedom += own
    return scatter, squares, freedom


@pytest.mark.parametrize("contests", [1, 2, 4])
def test_contests_before_it_moderate_the_variance(contests):
    scatter, squares, freedom = taught(*(values_of(5 + k, seed=k + 1) for k in range(contests)))
    assert scatter.variance == pytest.approx(squares / freedom)
    assert scatter.freedom == min(8, freedom)  # they may weigh so much, and no more
    values = [0.5 * v for v in values_of(6)]
    assert trimmed_interval(values, 0.05, scatter) == pytest.approx(moderated(values, squares, freedom))
    assert Scatter().freedom == 0 and Scatter().variance == 0.0
    assert trimmed_interval(values, 0.05, Scatter()) == trimmed_interval(values, 0.05)


def test_a_machine_that_became_noisier_is_believed():
    scatter, _, _ = taught(values_of(9, seed=1))
    values = values_of(9, seed=1)  # of the same variance; times its root, of so many times as much
    for times, moderate in ((2.49, True), (2.51, False)):
        louder = [v * math.sqrt(times) for v in values]
        alone, together = trimmed_interval(louder, 0.05), trimmed_interval(louder, 0.05, scatter)
        assert (alone != together) == moderate


def test_two_slices_teach_nothing_and_three_do():
    scatter = Scatter()
    scatter.add([1.0, 2.0], [1.0, 1.0])
    assert scatter.freedom == 0
    scatter.add([1.0, 2.0, 3.0], [1.0, 1.0, 1.0])
    assert scatter.freedom == 2
    alone, pairs = Scatter(), Scatter()
    alone.add_single([100.0, 106.0, 95.0, 101.0, 108.0, 99.0])  # each slice against the next one
    pairs.add([100.0, 95.0, 108.0], [106.0, 101.0, 99.0])
    assert (alone.variance, alone.freedom) == (pairs.variance, 2)


def test_each_look_spends_its_share_of_the_error():
    assert tuple(SPENT) == LOOKS and sum(SPENT.values()) == pytest.approx(ERROR / 10) == 0.005
    for n in range(4, 41):
        share = next((SPENT[look] for look in LOOKS if n <= look), 3e-4)
        logs = values_of(n, seed=3)
        ratios = [math.exp(v) for v in logs]
        assert ratio_at_look(ratios, [1.0] * n) == ratio_at_look(ratios, [1.0] * n, contenders=1)
        for contenders in (1, 3):
            found = ratio_at_look(ratios, [1.0] * n, contenders)
            low, high = (math.exp(bound) for bound in trimmed_interval(logs, share / contenders))
            middle = float(np.median(ratios))
            assert found["ci95"] == pytest.approx([min(low, middle), max(high, middle)])
            assert found["median"] == pytest.approx(middle) and found["n"] == n


def test_below_four_slices_nothing_is_certain():
    assert ratio_at_look([2.0], [1.0]) == {"median": 2.0, "ci95": [0.0, 1e6], "n": 1}
    assert ratio_at_look([2.0, 3.0, 9.0, 1.0], [1.0, 1.0, 1.0]) == {"median": 3.0, "ci95": [0.0, 1e6], "n": 3}
    assert ratio_at_look([2.0, 4.0], [1.0, 1.0])["median"] == 3.0
    with pytest.raises(ValueError, match="at least one slice of each"):
        ratio_at_look([], [1.0])


def test_the_median_lies_in_its_interval():
    """The trimmed mean of some values is far from their median, and its interval narrow."""
    ratios = [1.0, 1.0, 1.0, 1.2, 1.2, 1.2, 1.2]
    for turned in (ratios, [1 / r for r in ratios]):
        found = ratio_at_look(turned, [1.0] * 7)
        low, high = found["ci95"]
        assert low <= found["median"] <= high
    scatter = Scatter()
    for _ in range(4):
        scatter.add([1.0] * 9, [1.0] * 9)
    assert scatter.variance == 0.0


def test_what_is_hardly_exceeded_is_exceeded_once_in_ten():
    values = values_of(9, seed=5)
    ratios = [math.exp(v) for v in values]
    high = stats.trim_mean(values, 0.2) + stats.t.ppf(0.9, 6) * error_of(values)
    assert futility_bound(ratios, [1.0] * 9) == pytest.approx(math.exp(high))
    scatter, _, _ = taught(values_of(9, seed=6))
    assert futility_bound(ratios, [1.0] * 9, scatter) == pytest.approx(
        math.exp(trimmed_interval(values, 0.2, scatter)[1])
    )
