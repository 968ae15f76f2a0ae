"""Loss of accuracy against noise, and loss of quality of a job whose metric is no accuracy."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gluontune.core.events import RungRow

_USUAL = 0.015  # standard deviation of the accuracy of a short training over its seeds
_KNOWN = 4  # degrees of freedom from which on the spread is estimated from the runs
COLLAPSED = 0.10  # loss that needs no second run if the whole interval exceeds it


@dataclass(frozen=True)
class Loss:
    """The loss of validation accuracy: shares of 1, above 0 is a loss."""

    points: float  # reference less candidate
    low: float  # of the 95 % interval
    high: float
    reference: float  # the compared means
    accuracy: float
    runs: int  # of the candidate

    def certain(self, allowed: float) -> bool:
        """Whether more than ``allowed`` was lost, and the interval excludes that nothing was."""
        return not (self.points <= allowed or self.low <= 0)  # NaN counts as lost

    @property
    def collapsed(self) -> bool:
        return not self.low <= COLLAPSED

    @property
    def sentence(self) -> str:
        """
        >>> Loss(0.11, 0.05, 0.17, 0.70, 0.59, 1).sentence
        'validation accuracy 59.0 %, 11.0 points (95 %: 5.0 to 17.0) below the 70.0 % of the kept rungs'
        """
        bounds = f"(95 %: {100 * self.low:.1f} to {100 * self.high:.1f})"
        return (
            f"validation accuracy {100 * self.accuracy:.1f} %, {100 * self.points:.1f} points {bounds} below the "
            f"{100 * self.reference:.1f} % of the kept rungs"
        )


def loss_of(kept: Sequence[float], mine: Sequence[float], num_val: int | None) -> Loss:
    """The loss of a recipe's runs against those of the kept recipes.

    Two kinds of noise count: the validation images are a sample (binomial), and two trainings of one recipe differ;
    the larger of the two counts (Student's interval, pooled variance). Three or four runs do not estimate their spread:
    as long as they agree, a standard deviation of a point and a half is assumed. One run on each side has the binomial
    interval alone.

    >>> sure = loss_of([0.79, 0.80, 0.78], [0.30], 2000)
    >>> sure.certain(0.02), sure.collapsed
    (True, True)
    >>> loss_of([0.738, 0.743], [0.625], 2000).certain(0.02)
    True
    >>> loss_of([0.60], [0.57], 500).certain(0.02)
    False
    """
    first, second = statistics.fmean(kept), statistics.fmean(mine)
    points = first - second
    if len(kept) + len(mine) == 2:
        low, high = newcombe(first, second, num_val) if num_val else (-1.0, 1.0)
        return Loss(points, low, high, first, second, len(mine))
    from scipy import stats

    freedom = len(kept) + len(mine) - 2
    squares = sum((a - first) ** 2 for a in kept) + sum((a - second) ** 2 for a in mine)
    floor = (first * (1 - first) + second * (1 - second)) / 2 / num_val if num_val else 0.0
    spread, quantile = max(squares / freedom, floor), float(stats.t.ppf(0.975, freedom))
    if freedom < _KNOWN and squares / freedom <= _USUAL**2:
        spread, quantile = floor + _USUAL**2, float(stats.norm.ppf(0.975))
    error = math.sqrt(spread * (1 / len(kept) + 1 / len(mine)))
    reach = quantile * error
    return Loss(points, points - reach, points + reach, first, second, len(mine))


def newcombe(first: float, second: float, num: int) -> tuple[float, float]:
    """95 % interval of the difference of two shares, each of ``num`` images: ``first`` less ``second``.

    Source: Newcombe, *Interval estimation for the difference between independent proportions*, Statistics in Medicine
    17 (1998), method 10: the squares of the distances to Wilson's bounds are added.

    >>> low, high = newcombe(0.80, 0.70, 2000)
    >>> round(low, 3), round(high, 3)
    (0.073, 0.127)
    """
    (low1, high1), (low2, high2) = _wilson(first, num), _wilson(second, num)
    gap = first - second
    return (gap - math.hypot(first - low1, high2 - second), gap + math.hypot(high1 - first, second - low2))


def _wilson(share: float, num: int, z: float = 1.959964) -> tuple[float, float]:
    """Wilson's 95 % interval of a share."""
    middle = (share + z * z / (2 * num)) / (1 + z * z / num)
    reach = z / (1 + z * z / num) * math.sqrt(share * (1 - share) / num + z * z / (4 * num * num))
    return middle - reach, middle + reach


_REMARK = 0.05  # of the kept rungs' value: a larger loss gets a note
_METRIC_COLLAPSED = 0.25  # a larger loss is not explained by an unlucky seed


def quality_of(row: Mapping[str, Any]) -> float | None:
    """The last value of a row's metric; None if there is none, or if it is an accuracy, which has its own gate.

    >>> quality_of({"val_metric": {"name": "rmse", "mode": "min", "values": [2.0, 1.5]}})
    1.5
    """
    metric = row.get("val_metric") or {}
    if not metric or metric["name"] == "accuracy" or not metric["values"]:
        return None
    return metric["values"][-1]


def judge_quality(row: RungRow, rows: Sequence[Mapping[str, Any]]) -> bool:
    """Withdraw a gain if the job's metric collapsed. Returns whether it did. A smaller loss gets a note.

    >>> row = {"kept": True, "notes": [], "val_metric": {"name": "rmse", "mode": "min", "values": [2.0]},
    ...        "ratio_to_previous": {"median": 1.5}}
    >>> kept = {"kept": True, "val_metric": {"name": "rmse", "mode": "min", "values": [1.0]}}
    >>> judge_quality(row, [kept]), row["reason"]
    (True, 'rmse 2, and 1 before it (smaller is better), at equal epochs (throughput 1.50×)')
    """
    metric = row.get("val_metric") or {}
    before = [value for value in (quality_of(r) for r in rows if r["kept"]) if value is not None]
    if not metric or metric["name"] == "accuracy" or not metric["values"] or not before:
        return False
    value, reference = metric["values"][-1], statistics.median(before)
    sign = 1.0 if metric["mode"] == "min" else -1.0
    worse = float("inf") if value is None else sign * (value - reference) / max(abs(reference), 1e-12)
    shown = "not finite" if value is None else f"{value:.4g}"
    way = "smaller" if metric["mode"] == "min" else "larger"
    text = f"{metric['name']} {shown}, and {reference:.4g} before it ({way} is better), at equal epochs"
    if not worse <= _METRIC_COLLAPSED and row["kept"]:
        speed = row["ratio_to_previous"] or {"median": 1.0}
        row.update({"kept": False, "verdict": "hurt", "reason": f"{text} (throughput {speed['median']:.2f}×)"})
        return True
    if not worse <= _REMARK:
        row["notes"].append(f"{text}: one seed cannot tell whether that is noise")
    return False
