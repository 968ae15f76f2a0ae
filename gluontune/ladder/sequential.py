"""A contest that is looked at while it goes on: intervals that stay honest at every look.

Whoever looks again and again at a 95 % interval, and stops as soon as it pleases, is wrong far more often than in 5 %
of the cases. Here the error is *spent* over the looks: each look has its share of it (Bonferroni's, the simplest
spending function), so that all intervals of a contest hold together with the stated confidence, whichever of them
ends it.

The interval of one look is that of the trimmed mean of the logarithms of ratios: a fifth of the values at either end
is left out, so that a slice which another program disturbed does not decide.

Sources: Lan, DeMets, *Discrete sequential boundaries for clinical trials*, Biometrika 70 (1983), for spending an error
over looks; Tukey, McLaughlin, *Less vulnerable confidence and significance procedures for location*, Sankhya A 25
(1963), for the trimmed mean's interval.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

__all__ = ["ERROR", "LOOKS", "ratio_at_look", "trimmed_interval"]

ERROR = 0.05  # of a whole contest: all its looks and all its variants together
#: Rounds after which a contest is looked at. They grow, so that a hard question costs few looks.
LOOKS = (4, 6, 9, 13, 19, 27, 36)
_TRIM = 0.2


def ratio_at_look(mine: Sequence[float], theirs: Sequence[float], contenders: int = 1) -> dict[str, Any]:
    """Ratio of two interleaved series and its interval, valid at every look of :data:`LOOKS`.

    Args:
        mine, theirs: rates, slice by slice; the longer series is cut to the length of the other.
        contenders: comparisons that are made in the same contest; the error is shared by them, too.

    Returns:
        ``{"median", "ci95": [lo, hi], "n"}``. Below four slices nothing is certain: the interval is without bounds
        in effect (0 to a million).

    >>> found = ratio_at_look([200, 204, 198, 201], [100, 101, 99, 100])
    >>> found["median"], found["ci95"][0] > 1.9
    (2.005, True)
    """
    ratios = [a / b for a, b in zip(mine, theirs)]
    if not ratios:
        raise ValueError("a ratio needs at least one slice of each")
    ordered, n = sorted(ratios), len(ratios)
    median = (ordered[(n - 1) // 2] + ordered[n // 2]) / 2
    if n < LOOKS[0]:
        return {"median": median, "ci95": [0.0, 1e6], "n": n}
    low, high = trimmed_interval([math.log(r) for r in ratios], ERROR / len(LOOKS) / contenders)
    return {"median": median, "ci95": [min(median, math.exp(low)), max(median, math.exp(high))], "n": n}


def trimmed_interval(values: Sequence[float], error: float) -> tuple[float, float]:
    """Interval of the 20 % trimmed mean, wrong in a share ``error`` of the cases.

    >>> low, high = trimmed_interval([1.0, 1.1, 0.9, 1.0, 1.05, 9.0], 0.05)
    >>> 0.8 < low < 1.05 < high < 1.4
    True
    """
    from scipy import stats

    ordered, n = sorted(values), len(values)
    cut = int(_TRIM * n)
    kept = ordered[cut : n - cut]
    centre = math.fsum(kept) / len(kept)
    winsorized = [kept[0]] * cut + kept + [kept[-1]] * cut
    mean = math.fsum(winsorized) / n
    spread = math.fsum((v - mean) ** 2 for v in winsorized) / (n - 1)
    error_of_mean = math.sqrt(spread / n) / (1 - 2 * cut / n)
    reach = float(stats.t.ppf(1 - error / 2, len(kept) - 1)) * error_of_mean
    return centre - reach, centre + reach
