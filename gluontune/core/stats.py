"""Medians, intervals and ratios of repeated measurements."""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping, Sequence
from typing import Any, TypedDict, TypeVar

T = TypeVar("T")
#: Fewer values have an interval for decisions, which is not shown: two values are too few.
LEAST = 3


class Interval(TypedDict):
    """A median, its 95 % interval ``[low, high]``, and of how many values."""

    median: float
    ci95: list[float]
    n: int


def interval(values: Sequence[float]) -> Interval:
    """Median and 95 % interval of positive measurements.

    The interval is the distribution-free one of the median, from the sign test: two order statistics. From nine values
    on it excludes the smallest and the largest, so that one disturbed repeat does not move it. Below six values, where
    the sign test cannot reach 95 %, it is Student's on the logarithms. It always contains the median.

    Returns:
        ``{"median", "ci95": [lo, hi], "n"}``; one value alone has an interval of ``[value, value]``.

    Source: Hollander, Wolfe, Chicken, *Nonparametric Statistical Methods*, 3rd ed., section 3.6.

    >>> interval([10.0, 11.0, 10.0, 10.5, 9.5, 10.2, 10.1, 30.0, 9.9])
    {'median': 10.1, 'ci95': [9.9, 11.0], 'n': 9}
    """
    if not values or any(not (v > 0 and math.isfinite(v)) for v in values):
        raise ValueError(f"an interval needs positive numbers, not {list(values)!r}")
    ordered = sorted(values)
    n = len(ordered)
    median = (ordered[(n - 1) // 2] + ordered[n // 2]) / 2
    low, high = median, median
    if n >= 2:
        if n >= 6:
            drop = _left_out(n)
            bounds = ordered[drop], ordered[-1 - drop]
        else:
            mean, reach = _student([math.log(v) for v in ordered])
            bounds = math.exp(mean - reach), math.exp(mean + reach)
        low, high = min(median, bounds[0]), max(median, bounds[1])
    return {"median": median, "ci95": [low, high], "n": n}


def ratio_interval(mine: Sequence[float], theirs: Sequence[float]) -> Interval:
    """Median and 95 % interval of the pairwise ratios of two interleaved series.

    Args:
        mine, theirs: positive numbers in one unit, of equal length; ``mine[i] / theirs[i]`` is a ratio.

    Raises:
        ValueError: other lengths, no values, or values that are not positive.

    >>> ratio_interval([3.0, 4.5, 6.0], [2.0, 3.0, 4.0])["median"]
    1.5
    """
    if len(mine) != len(theirs):
        raise ValueError(f"interleaved series have equal lengths, not {len(mine)} and {len(theirs)}")
    return interval([a / b for a, b in zip(mine, theirs)])


def chance_of_ranks(low: Sequence[float], high: Sequence[float]) -> float:
    """How likely values would lie as low among the others by chance: the exact one-sided rank test.

    Some values that are much too large, in either series, hardly move it, where an interval of ratios is lost. Ties
    count against ``low``.

    Source: Mann, Whitney, *On a Test of Whether one of Two Random Variables is Stochastically Larger than the Other*,
    Annals of Mathematical Statistics 18 (1947).

    >>> chance_of_ranks([1.0, 2.0, 3.0, 4.0], [5.0, 6.0, 7.0, 8.0]) == 1 / 70
    True
    """
    above = sum(a >= b for a in low for b in high)
    orders = sum(_orders(wrong, len(low), len(high)) for wrong in range(above + 1))
    return orders / math.comb(len(low) + len(high), len(low))


@functools.cache
def _orders(wrong: int, low: int, high: int) -> int:
    """In how many orders of so many values of each kind just ``wrong`` pairs have the ``low`` one above."""
    if wrong < 0 or low == 0 or high == 0:
        return int(wrong == 0)
    return _orders(wrong - high, low - 1, high) + _orders(wrong, low, high - 1)


def in_turn(field: Sequence[T], number: int) -> list[T]:
    """The order of one round of an interleaved measurement: each round begins with another contender.

    A disturbance of the machine then falls on all alike, and none always follows the same one.

    Args:
        field: the contenders. number: of the round, from 0.
    """
    first = number % max(1, len(field))
    return [*field[first:], *field[:first]]


def difference(mine: Sequence[float], theirs: Sequence[float]) -> dict[str, Any]:
    """Mean and 95 % interval of the pairwise differences of two interleaved series.

    Args:
        mine, theirs: numbers in one unit, of equal length; ``mine[i] - theirs[i]`` is a difference.

    Returns:
        ``{"mean", "ci95": [lo, hi], "n"}``, with Student's interval; None for one pair.

    Raises:
        ValueError: other lengths, or no values.

    >>> found = difference([0.81, 0.83, 0.82], [0.80, 0.81, 0.80])
    >>> round(found["mean"], 4), [round(bound, 4) for bound in found["ci95"]]
    (0.0167, [0.0023, 0.031])
    """
    if len(mine) != len(theirs) or not mine:
        raise ValueError(f"interleaved series have equal lengths and values, not {len(mine)} and {len(theirs)}")
    values = [a - b for a, b in zip(mine, theirs)]
    if len(values) == 1:
        return {"mean": values[0], "ci95": None, "n": 1}
    mean, reach = _student(values)
    return {"mean": mean, "ci95": [mean - reach, mean + reach], "n": len(values)}


def bounds(measured: Mapping[str, Any] | None) -> list[float] | None:
    """The interval to show, or None for fewer than :data:`LEAST` values or if it reaches below zero.

    Args:
        measured: ``{"median", "ci95", "n"}`` of :func:`interval`; without ``n`` it is shown.

    >>> bounds(interval([4.0, 5.0])), bounds({"median": 2.0, "ci95": [1.9, 2.1], "n": 9})
    (None, [1.9, 2.1])
    """
    found, n = (measured or {}).get("ci95"), (measured or {}).get("n", LEAST)
    few = isinstance(n, (int, float)) and n < LEAST
    return None if not found or few or found[0] < 0 else list(found)


def scaled(measured: Mapping[str, Any], factor: float) -> Interval:
    """An interval times a known factor.

    >>> scaled({"median": 2.0, "ci95": [1.5, 2.5], "n": 9}, 2)
    {'median': 4.0, 'ci95': [3.0, 5.0], 'n': 9}
    """
    low, high = measured["ci95"]
    return {"median": factor * measured["median"], "ci95": [factor * low, factor * high], "n": measured["n"]}


def inverse(measured: Mapping[str, Any]) -> Interval:
    """One divided by a ratio; a bound of zero becomes a millionth.

    >>> inverse({"median": 0.5, "ci95": [0.4, 0.8], "n": 4})
    {'median': 2.0, 'ci95': [1.25, 2.5], 'n': 4}
    """
    low, high = measured["ci95"]
    return {"median": 1 / measured["median"], "ci95": [1 / high, 1 / max(low, 1e-6)], "n": measured["n"]}


def combine(ratios: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Product of independent ratios; half-widths on the logarithmic scale are added in quadrature.

    One without an interval leaves the product without one.

    >>> combine([{"median": 2.0, "ci95": [1.0, 4.0]}, {"median": 3.0, "ci95": [3.0, 3.0]}])
    {'median': 6.0, 'ci95': [3.0, 12.0]}
    """
    median = math.prod(r["median"] for r in ratios)
    if any(r["ci95"] is None for r in ratios):
        return {"median": median, "ci95": None}
    down = math.hypot(*(math.log(r["median"] / r["ci95"][0]) for r in ratios))
    up = math.hypot(*(math.log(r["ci95"][1] / r["median"]) for r in ratios))
    return {"median": median, "ci95": [round(median * math.exp(-down), 12), round(median * math.exp(up), 12)]}


def around(measured: Mapping[str, Any]) -> str:
    """The bounds of a ratio, for a sentence."""
    low, high = measured["ci95"]
    return f"(95 %: {low:.2f}–{high:.2f})"


def said(measured: Mapping[str, Any], form: str = ",.0f", scale: float = 1.0) -> str:
    """A median, with its :func:`bounds` in brackets if they are shown.

    Args:
        measured: of :func:`interval`. form: the format of each number. scale: a factor of each number.

    >>> said({"median": 2.04, "ci95": [1.9, 2.1], "n": 9}, ".1f"), said(interval([4.0, 5.0]), ".1f")
    ('2.0 (1.9-2.1)', '4.5')
    """
    around = bounds(measured)
    shown = f"{scale * measured['median']:{form}}"
    return f"{shown} ({scale * around[0]:{form}}-{scale * around[1]:{form}})" if around else shown


def _student(values: Sequence[float]) -> tuple[float, float]:
    """Mean, and half the length of Student's 95 % interval."""
    from scipy.special import stdtrit  # scipy.stats takes three times as long to import

    n, mean = len(values), sum(values) / len(values)
    error = math.sqrt(sum((value - mean) ** 2 for value in values) / (n - 1) / n)
    return mean, float(stdtrit(n - 1, 0.975)) * error


def _left_out(n: int) -> int:
    """The number of values to leave out on each side: the largest k with P(Binomial(n, 1/2) < k + 1) <= 2.5 %."""
    below, drop = 0.0, 0
    for k in range(n):
        below += math.comb(n, k) / 2**n
        if below > 0.025:
            break
        drop = k
    return drop
