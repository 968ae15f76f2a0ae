"""Sequential tests: intervals that stay valid when a contest is examined while it goes on.

Repeated looks at a 95 % interval, with a stop as soon as it pleases, are wrong far more often than in 5 % of the
cases. Here the error is *spent* over the looks: each has its share of it (Bonferroni's, the simplest spending
function), and over the contests of a climb, so that all its intervals hold together with the stated confidence. Four
slices do not estimate their scatter well, so the variance of one look is *moderated*: drawn towards that of the climb's
earlier contests. The interval is that of the trimmed mean of the logarithms of ratios: a fifth of the values at either
end is left out, so that a disturbed slice does not decide.

Slices of one process are not the whole story: memory is placed anew with each start, and the same recipe is faster or
slower for as long as the process lives, by some per cent, or twice in small nets with MXNet as installed. The unit of
repetition is the start. So a gain is measured from several starts, and their scatter is a part of its interval.

Sources: Lan, DeMets, *Discrete sequential boundaries for clinical trials*, Biometrika 70 (1983); Smyth, *Linear models
and empirical Bayes methods*, Statistical Applications in Genetics and Molecular Biology 3 (2004); Tukey, McLaughlin,
*Less vulnerable confidence and significance procedures for location*, Sankhya A 25 (1963); Kalibera, Jones,
*Rigorous benchmarking in reasonable time*, ISMM 2013 (starts as a level of repetition of its own).
"""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Sequence

from gluontune.core.stats import Interval

ERROR = 0.05  # of a whole climb: all its contests with all their looks and variants together
_CONTESTS = 10  # of a climb, which share the error: a ladder of placebos keeps nothing
#: Rounds after which a contest is examined; the steps grow, so that a hard question costs few looks.
LOOKS = (4, 6, 9, 13, 19, 27, 36)
_SPENT = (0.20, 0.20, 0.20, 0.16, 0.10, 0.08, 0.06)  # of the error at each look; clear questions end early
assert math.isclose(sum(_SPENT), 1.0)
_FUTILE = 0.1
_TRIM = 0.2
_NOISIER = 2.5  # times the variance of earlier contests: the machine has changed, and they do not count
_MOST = 8  # degrees of freedom that earlier contests count for at most: a machine can become noisier
_OTHERWISE, _CLEARLY = math.log(1.3), math.log(1.15)  # starts that differ by so much; a gain that one start shows
_OF_MEDIAN = 1.3  # variance of a median of few values, in variances of their mean
_START, _SURE = 0.04, 4  # expected standard deviation of a ratio from start to start; what it counts for, in starts


class Scatter:
    """The scatter of the ratio of two slices on this machine, from all contests so far.

    >>> scatter = Scatter()
    >>> scatter.add([100.0, 110.0, 95.0, 104.0], [50.0, 56.0, 46.0, 53.0])
    >>> scatter.freedom, round(scatter.variance ** 0.5, 3)
    (3, 0.024)
    """

    def __init__(self) -> None:
        self._squares, self._seen = 0.0, 0
        self._start_squares, self._starts = _SURE * _START**2, _SURE

    @property
    def freedom(self) -> int:
        return min(_MOST, self._seen)

    @property
    def variance(self) -> float:
        """Of the logarithm of one ratio."""
        return self._squares / self._seen if self._seen else 0.0

    def add(self, mine: Sequence[float], theirs: Sequence[float]) -> None:
        """Add two interleaved series: rates, slice by slice."""
        values = [math.log(a / b) for a, b in zip(mine, theirs)]
        if len(values) >= 3:
            _, variance, freedom = _trimmed(values)
            self._squares += freedom * variance
            self._seen += freedom

    def add_single(self, rates: Sequence[float]) -> None:
        self.add(rates[0::2], rates[1::2])

    def add_starts(self, blocks: Sequence[Sequence[float]]) -> None:
        """Add a contest from several starts: the logarithms of the ratios of each."""
        self._start_squares, self._starts = self.with_starts(blocks)

    def with_starts(self, blocks: Sequence[Sequence[float]]) -> tuple[float, int]:
        """Sum of squares from start to start, with those of earlier contests, and its degrees of freedom.

        What the slices' own scatter explains is taken out.
        """
        medians = [statistics.median(block) for block in blocks]
        mean, (inside, _) = math.fsum(medians) / len(medians), self.inside(blocks)
        own = _OF_MEDIAN * inside * math.fsum((1 - 1 / len(blocks)) / len(block) for block in blocks)
        squares = max(0.0, math.fsum((m - mean) ** 2 for m in medians) - own)
        return self._start_squares + squares, self._starts + len(blocks) - 1

    def inside(self, blocks: Sequence[Sequence[float]]) -> tuple[float, int]:
        """Variance of a slice within its start, with that of earlier contests, and its degrees of freedom."""
        _, variance, seen = _trimmed([value - statistics.median(block) for block in blocks for value in block])
        freedom = seen - len(blocks) + 1 + self.freedom
        return (seen * variance + self.freedom * self.variance) / freedom, freedom


def ratio_at_look(
    mine: Sequence[float], theirs: Sequence[float], contenders: int = 1, scatter: Scatter | None = None
) -> Interval:
    """Ratio of two interleaved series and its interval, valid at every look of :data:`LOOKS`.

    ``contenders`` are the comparisons in the same contest, which share the error; ``scatter`` is of earlier contests.
    Below four slices the interval is 0 to a million, in effect unbounded.

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
    spent = next((share for look, share in zip(LOOKS, _SPENT) if n <= look), _SPENT[-1])
    low, high = trimmed_interval([math.log(r) for r in ratios], ERROR / _CONTESTS * spent / contenders, scatter)
    return {"median": median, "ci95": [min(median, math.exp(low)), max(median, math.exp(high))], "n": n}


def ratio_over_starts(
    mine: Sequence[float], theirs: Sequence[float], starts: Sequence[int], scatter: Scatter, contenders: int = 1
) -> Interval:
    """Ratio of two series from several starts of both, of ``starts`` slices each, with the scatter of starts.

    The first start counts for the scatter alone: it is why the others were made, so luck may have chosen it.

    >>> same, other = [100.0, 101, 99, 100], [200.0, 202, 198, 200]
    >>> ratio_over_starts([*other, *other], [*same, *same], [4, 4], Scatter())["ci95"][0] > 1.6
    True
    >>> ratio_over_starts([*other, *same], [*same, *same], [4, 4], Scatter())["median"]  # the start decides
    1.0
    """
    from scipy import stats

    everything = logs_of_starts(mine, theirs, starts)
    blocks = everything[1:]
    logs = [value for block in blocks for value in block]
    medians = [statistics.median(block) for block in blocks]
    centre = math.fsum(medians) / len(medians)
    squares, freedom = scatter.with_starts(everything)
    inside, inside_freedom = scatter.inside(everything)
    of_starts = squares / freedom / len(blocks)
    of_slices = _OF_MEDIAN * inside * math.fsum(1 / len(block) for block in blocks) / len(blocks) ** 2
    variance = of_starts + of_slices
    both = variance**2 / (of_starts**2 / freedom + of_slices**2 / inside_freedom)  # Welch, Satterthwaite
    reach = float(stats.t.ppf(1 - ERROR / _CONTESTS / contenders / 2, both)) * math.sqrt(variance)
    median, low, high = math.exp(statistics.median(logs)), centre - reach, centre + reach
    if max(medians) - min(medians) > _OTHERWISE:  # two kinds of starts, not a scatter: each has to show it
        low, high = min(low, min(medians) - _CLEARLY), max(high, max(medians) + _CLEARLY)
    return {"median": median, "ci95": [min(median, math.exp(low)), max(median, math.exp(high))], "n": len(logs)}


def logs_of_starts(mine: Sequence[float], theirs: Sequence[float], starts: Sequence[int]) -> list[list[float]]:
    """The logarithms of the ratios, start by start."""
    rest = iter([math.log(a / b) for a, b in zip(mine, theirs)])
    return [list(itertools.islice(rest, count)) for count in starts]


def futility_bound(mine: Sequence[float], theirs: Sequence[float], scatter: Scatter | None = None) -> float:
    """A ratio that the true one exceeds with a probability of a tenth.

    Giving up on a gain of this size claims nothing, so it spends no error (a non-binding futility bound).

    >>> futility_bound([100, 98, 101, 99], [100, 101, 99, 100]) < 1.05
    True
    """
    logs = [math.log(a / b) for a, b in zip(mine, theirs)]
    return math.exp(trimmed_interval(logs, 2 * _FUTILE, scatter)[1])


def trimmed_interval(values: Sequence[float], error: float, scatter: Scatter | None = None) -> tuple[float, float]:
    """Interval of the 20 % trimmed mean; the variance of ``scatter`` is mixed in, weighted by degrees of freedom.

    >>> low, high = trimmed_interval([1.0, 1.1, 0.9, 1.0, 1.05, 9.0], 0.05)
    >>> 0.8 < low < 1.05 < high < 1.4
    True
    """
    from scipy import stats

    centre, variance, freedom = _trimmed(values)
    if scatter is not None and scatter.freedom and variance <= _NOISIER * scatter.variance:
        both = freedom + scatter.freedom
        variance = (freedom * variance + scatter.freedom * scatter.variance) / both
        freedom = both
    reach = float(stats.t.ppf(1 - error / 2, freedom)) * math.sqrt(variance / len(values))
    return centre - reach, centre + reach


def _trimmed(values: Sequence[float]) -> tuple[float, float, int]:
    """Trimmed mean, the variance of one value derived from the mean's error, and its degrees of freedom."""
    ordered, n = sorted(values), len(values)
    cut = int(_TRIM * n)
    kept = ordered[cut : n - cut]
    centre = math.fsum(kept) / len(kept)
    winsorized = [kept[0]] * cut + kept + [kept[-1]] * cut
    mean = math.fsum(winsorized) / n
    spread = math.fsum((v - mean) ** 2 for v in winsorized) / (n - 1)
    return centre, spread / (1 - 2 * cut / n) ** 2, len(kept) - 1
