"""Verdicts from measured rates: the fastest variant, the interval's verdict, the parity gate."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from gluontune.core import stats
from gluontune.core.events import RungRow, VariantRow
from gluontune.search.measure import BACKGROUND, DISTURBED_PCT, Contender
from gluontune.search.rung import Variant
from gluontune.search.sequential import Scatter, ratio_at_look, ratio_over_starts

C = TypeVar("C", bound=Contender)
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
    reach = quantile * math.sqrt(spread * (1 / len(kept) + 1 / len(mine)))
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
    middle = (share + z * z / (2 * num)) / (1 + z * z / num)
    reach = z / (1 + z * z / num) * math.sqrt(share * (1 - share) / num + z * z / (4 * num * num))
    return middle - reach, middle + reach


_REMARK = 0.05  # of the kept rungs' value: a larger loss gets a note
_METRIC_COLLAPSED = 0.25  # a larger loss is not explained by an unlucky seed


def _metric_of(row: Mapping[str, Any]) -> dict[str, Any] | None:
    """A row's metric with its values; None if there are none, or if it is an accuracy, which has its own gate."""
    metric = row.get("val_metric")
    return metric if metric and metric["name"] != "accuracy" and metric["values"] else None


def judge_quality(row: RungRow, rows: Sequence[Mapping[str, Any]]) -> bool:
    """Withdraw a gain if the job's metric collapsed. Returns whether it did. A smaller loss gets a note.

    >>> row = {"kept": True, "notes": [], "val_metric": {"name": "rmse", "mode": "min", "values": [2.0]},
    ...        "ratio_to_previous": {"median": 1.5}}
    >>> kept = {"kept": True, "val_metric": {"name": "rmse", "mode": "min", "values": [1.0]}}
    >>> judge_quality(row, [kept]), row["reason"]
    (True, 'rmse 2, and 1 before it (smaller is better), at equal epochs (throughput 1.50×)')
    """
    metric, kept = _metric_of(row), [_metric_of(r) for r in rows if r["kept"]]
    before = [each["values"][-1] for each in kept if each and each["values"][-1] is not None]
    if metric is None or not before:
        return False
    value, reference = metric["values"][-1], statistics.median(before)
    sign, way = (1.0, "smaller") if metric["mode"] == "min" else (-1.0, "larger")
    worse = math.inf if value is None else sign * (value - reference) / max(abs(reference), 1e-12)
    shown = "not finite" if value is None else f"{value:.4g}"
    text = f"{metric['name']} {shown}, and {reference:.4g} before it ({way} is better), at equal epochs"
    if not worse <= _METRIC_COLLAPSED and row["kept"]:
        speed = row["ratio_to_previous"] or {"median": 1.0}
        row.update({"kept": False, "verdict": "hurt", "reason": f"{text} (throughput {speed['median']:.2f}×)"})
        return True
    if not worse <= _REMARK:
        row["notes"].append(f"{text}: one seed cannot tell whether that is noise")
    return False


PARITY_POINTS = 0.02  # most validation accuracy that a rung may cost at equal epochs
TIE = 0.03  # variants whose medians are this close count as equally fast
TOLD = 1.2  # the ends of an interval, the larger ÷ the smaller, that still says what a part brings
WORTH = 1.01  # a gain below one per cent is not worth a change
LIKELY = 1.05  # a gain that is not proven may be measured for longer from this median on
COSTS = 0.9  # a change hurts if its whole interval lies below this; slightly slower is "no gain"
MAYBE = 1.05  # measuring goes on as long as a gain of this much is not ruled out
CUT_OFF_BOUND = 0.4  # of the best: upper bound of a variant that was cut off while warming up
LOAD_BOUND = 0.5  # of the recipe before it: background load does not explain a rate below this
#: Fields that decide how the cores are used: their gain depends on the background load.
_CORE_FIELDS = {"runtime", "loader", "num_workers", "engine", "num_devices"}


def verdict_of(ratio: stats.Interval) -> str:
    """``helped``, ``no gain`` or ``hurt`` from the interval of a throughput ratio.

    >>> verdict_of({"median": 1.4, "ci95": [1.3, 1.5], "n": 7})
    'helped'
    >>> verdict_of({"median": 1.1, "ci95": [0.9, 1.4], "n": 7})
    'no gain'
    >>> [verdict_of({"median": 0.7, "ci95": [0.6, high], "n": 7}) for high in (0.89, COSTS)]
    ['hurt', 'no gain']
    """
    if helps(ratio):
        return "helped"
    return "hurt" if ratio["ci95"][1] < COSTS else "no gain"


def helps(ratio: stats.Interval) -> bool:
    return ratio["ci95"][0] > 1.0 and ratio["median"] >= WORTH


def compare(
    row: RungRow, field: Sequence[C], variants: Sequence[Variant], naive: Contender, best: Contender | None,
    scatter: Scatter | None = None,
) -> C | None:  # fmt: skip
    """Fill a row with the throughput of its variants; return the contender to go on with, or None if none ran.

    It is the first that ties with the fastest, among those certain to help if there are any: variants are listed from
    the smallest change to the largest, and a larger batch or more workers without a gain are not worth their price.
    ``field`` was measured in turn with ``naive`` and ``best``; ``scatter`` is as the contest used it.
    """
    for contender, variant in zip(field, variants):
        changes = {name: list(value) if isinstance(value, tuple) else value for name, value in variant.changes.items()}
        entry: VariantRow = {
            "label": variant.label, "changes": changes, "status": "failed" if contender.failure else "ran",
            "reason": str(contender.failure) if contender.failure else contender.cut, "samples_per_sec": None,
            "ratio_to_previous": None, "chosen": False, "lost": False,
        }  # fmt: skip
        if contender.failure is None and contender.rates:
            entry["samples_per_sec"] = stats.interval(contender.rates)
            if best is not None and best.rates and best is not contender:
                entry["ratio_to_previous"] = against(contender, best, len(field), scatter)
        row["variants"].append(entry)
    ran = [c for c in field if c.failure is None and c.rates]
    if not ran:
        return None
    chosen = (choice(field, best, scatter) if best is not None else None) or _first_of_fastest(ran)
    choose(row, chosen, field, naive)
    return chosen


def choice(field: Sequence[C], best: Contender, scatter: Scatter | None) -> C | None:
    """The contender that :func:`compare` chooses if it is certain to help; else None."""
    ran = [c for c in field if c.failure is None and c.rates and c is not best]
    helping = [c for c in ran if best.rates and helps(against(c, best, len(field), scatter))]
    return _first_of_fastest(helping) if helping else None


def _first_of_fastest(field: Sequence[C]) -> C:
    medians = [stats.interval(c.rates)["median"] for c in field]
    return next(c for c, median in zip(field, medians) if median * (1 + TIE) >= max(medians))


def against(contender: Contender, best: Contender, many: int, scatter: Scatter | None) -> stats.Interval:
    """The ratio to the best; a variant cut off while warming up was twice below a quarter of it."""
    if contender.beside:
        return ratio_over_starts(contender.rates, contender.beside, contender.starts, scatter or Scatter(), many)
    if contender.cut and len(contender.rates) == 1:
        median = contender.rates[0] / stats.interval(best.rates)["median"]
        return {"median": median, "ci95": [0.0, max(median, CUT_OFF_BOUND)], "n": 1}
    return ratio_at_look(contender.rates, best.rates, many, scatter)


def choose(row: RungRow, chosen: Contender, field: Sequence[Contender], naive: Contender) -> None:
    """Make one variant the row's: its throughput, ratios, recipe and changes."""
    for contender, entry in zip(field, row["variants"]):
        entry["chosen"] = contender is chosen
        if contender is chosen:
            row["samples_per_sec"] = entry["samples_per_sec"]
            row["ratio_to_previous"] = entry["ratio_to_previous"]
            row["changes"] = entry["changes"]
    row["recipe"] = chosen.recipe.to_dict()
    if chosen is naive:
        row["speedup_vs_naive"], row["speedup_ci95"] = 1.0, [1.0, 1.0]
    elif row.get("over_naive") and row["ratio_to_previous"]:
        ratio = row["ratio_to_previous"]
        bounded = ratio if ratio["ci95"][0] > 0 else {**ratio, "ci95": None}
        chained = stats.combine([row["over_naive"], bounded])
        row["speedup_vs_naive"], row["speedup_ci95"] = chained["median"], chained["ci95"]
    elif naive.rates and chosen.rates:
        together = min(len(chosen.rates), len(naive.rates))  # the naive script leaves a long contest early
        speedup, last = stats.ratio_interval(chosen.rates[:together], naive.rates[:together]), row["ratio_to_previous"]
        one = chosen.beside[:together] == naive.rates[:together] or (last and last["median"] == speedup["median"])
        if last and one and last["ci95"][0] > 0:
            speedup = last  # the previous rung is naive: one ratio has one interval, that of all looks at it
        row["speedup_vs_naive"], row["speedup_ci95"] = speedup["median"], stats.bounds(speedup)


def next_best(row: RungRow, field: Sequence[C]) -> C | None:
    """The smallest other change that helped, after a fast variant lost accuracy; or None. Tried ones stay in it."""
    if row["kept"] or row["ratio_to_previous"] is None or not helps(row["ratio_to_previous"]):
        return None
    first = next(e for e in row["variants"] if e["chosen"])
    for contender, entry in zip(field, row["variants"]):
        ratio = entry["ratio_to_previous"]
        if entry is not first and not entry["lost"] and ratio is not None and helps(ratio):
            first["reason"], first["lost"] = row["reason"], True
            row["reason"] = None
            return contender
    return None


def judge(row: RungRow, background_pct: float, *, has_best: bool) -> None:
    """Fill a row, as :func:`compare` left it, with verdict, ``kept`` and the reason.

    A loss measured under background load gives no verdict: threads lose more than the load's share of the cores, and a
    helpful change seems to hurt. A contest that was too short for an answer gives none either.
    """
    row["status"] = "ran"
    if not has_best or row["ratio_to_previous"] is None:
        row.update({"verdict": "n/a", "kept": True})
        return
    ratio = row["ratio_to_previous"]
    row["verdict"] = verdict_of(ratio)
    row["kept"] = helps(ratio)
    if row["kept"]:
        return
    low, high = ratio["ci95"]
    bounds = f" {stats.around(ratio)}" if low > 0 else ""
    measured = row["reason"] = f"{ratio['median']:.2f}× the recipe before it{bounds}"
    shares_cores = bool(_CORE_FIELDS & set(row.get("changes") or ()))  # spinning threads are 0.3 times as fast there
    if background_pct >= DISTURBED_PCT and (high >= LOAD_BOUND or shares_cores):
        row["notes"] = [note for note in row["notes"] if not note.startswith(BACKGROUND)]  # the reason repeats it
        not_measurable(row, f"{BACKGROUND} {background_pct:.0f} % of the cores; it measured {measured}")
    elif row["verdict"] == "no gain" and not row.get("contest_decided", True):
        few = "1 slice does" if ratio["n"] == 1 else f"{ratio['n']} slices do"
        not_measurable(row, f"{few} not tell, and there was no time for more; {measured}")


def judge_accuracy(row: RungRow, loss: Loss | None) -> bool:
    """Withdraw a gain if accuracy was certainly lost. Returns whether it was.

    "hurt" needs a second run that loses accuracy, too, unless the accuracy collapsed: one run may be unlucky.
    """
    if loss is None or not row["kept"] or not loss.certain(PARITY_POINTS):
        return False
    ratio = row["ratio_to_previous"]
    assert ratio is not None, "what was kept was measured"
    why = f"{loss.sentence} at equal epochs (throughput {ratio['median']:.2f}×)"
    row.update({"kept": False, "verdict": "hurt", "reason": why})
    if loss.runs < 2 and not loss.collapsed:
        not_measurable(row, f"{loss.sentence} in one run, and there was no time for a second")
    return True


def not_measurable(row: RungRow, why: str) -> None:
    row.update({"verdict": "n/a", "kept": False, "measurable": False, "reason": f"not measurable here now: {why}"})
