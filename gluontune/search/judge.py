"""Verdicts from measured rates: the fastest variant, the interval's verdict, the parity gate."""

from __future__ import annotations

from collections.abc import Sequence

from gluontune.core import stats
from gluontune.core.events import RungRow, VariantRow
from gluontune.core.stats import Interval
from gluontune.search.accuracy import Loss
from gluontune.search.measure import BACKGROUND, DISTURBED_PCT, Contender
from gluontune.search.rung import Variant
from gluontune.search.sequential import Scatter, ratio_at_look

PARITY_POINTS = 0.02  # most validation accuracy that a rung may cost at equal epochs
TIE = 0.03  # variants whose medians are this close count as equally fast
WORTH = 1.01  # a gain below one per cent is not worth a change
LIKELY = 1.05  # a gain that is not proven may be measured for longer from this median on
COSTS = 0.9  # a change hurts if its whole interval lies below this; slightly slower is "no gain"
MAYBE = 1.05  # measuring goes on as long as a gain of this much is not ruled out
CUT_OFF_BOUND = 0.4  # of the best: upper bound of a variant that was cut off while warming up
LOAD_BOUND = 0.5  # of the recipe before it: background load does not explain a rate below this
#: Fields that decide how the cores are used: their gain depends on the background load.
_CORE_FIELDS = {"runtime", "loader", "num_workers", "engine", "num_devices"}


def verdict_of(ratio: Interval) -> str:
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


def helps(ratio: Interval) -> bool:
    """Whether a gain is certain, and worth a change."""
    return ratio["ci95"][0] > 1.0 and ratio["median"] >= WORTH


def compare(
    row: RungRow, field: Sequence[Contender], variants: Sequence[Variant], naive: Contender, best: Contender | None,
    scatter: Scatter | None = None,
) -> Contender | None:  # fmt: skip
    """Fill a row with the throughput of its variants; return the contender to go on with, or None if none ran.

    It is the first that ties with the fastest, among those certain to help if there are any: variants are listed from
    the smallest change to the largest, and a larger batch or more workers without a gain are not worth their price.

    Args:
        field: the variants' contenders, measured in turn with ``naive`` and ``best``. scatter: as the contest used it.
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
                entry["ratio_to_previous"] = _against(contender, best, len(field), scatter)
        row["variants"].append(entry)
    ran = [(c, e) for c, e in zip(field, row["variants"]) if e["samples_per_sec"]]
    if not ran:
        return None
    proven = [(c, e) for c, e in ran if e["ratio_to_previous"] and helps(e["ratio_to_previous"])]
    medians = [(c, e["samples_per_sec"]["median"]) for c, e in proven or ran if e["samples_per_sec"]]
    fastest = max(median for _, median in medians)
    chosen = next(c for c, median in medians if median * (1 + TIE) >= fastest)
    choose(row, chosen, field, naive)
    return chosen


def _against(contender: Contender, best: Contender, many: int, scatter: Scatter | None) -> Interval:
    """The ratio to the best; a variant cut off while warming up was twice below a quarter of it."""
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
        speedup = stats.ratio_interval(chosen.rates[:together], naive.rates[:together])
        row["speedup_vs_naive"], row["speedup_ci95"] = speedup["median"], stats.bounds(speedup)


def next_best(row: RungRow, field: Sequence[Contender]) -> Contender | None:
    """The smallest other change that helped, after a fast variant lost accuracy; or None.

    Tried variants stay in the row, with the lost accuracy as the reason.
    """
    if row["kept"] or row["ratio_to_previous"] is None or not helps(row["ratio_to_previous"]):
        return None
    first = next(e for e in row["variants"] if e["chosen"])
    for contender, entry in zip(field, row["variants"]):
        ratio = entry["ratio_to_previous"]
        if entry is first or entry["lost"] or ratio is None:
            continue
        if helps(ratio):
            first["reason"], first["lost"] = row["reason"], True
            row["reason"] = None
            return contender
    return None


def judge(row: RungRow, background_pct: float, *, has_best: bool) -> None:
    """Fill a row with verdict, ``kept`` and the reason, from its throughput.

    A loss measured under background load gives no verdict: threads lose more than the load's share of the cores, and a
    helpful change seems to hurt. A contest that was too short for an answer gives none either.

    Args:
        row: as :func:`compare` left it. has_best: whether there was a recipe to compare with.
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
        _not_measurable(row, f"{BACKGROUND} {background_pct:.0f} % of the cores; it measured {measured}")
    elif row["verdict"] == "no gain" and not row.get("contest_decided", True):
        _not_measurable(row, f"{ratio['n']} slices do not tell, and there was no time for more; {measured}")


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
        _not_measurable(row, f"{loss.sentence} in one run, and there was no time for a second")
    return True


def _not_measurable(row: RungRow, why: str) -> None:
    row.update({"verdict": "n/a", "kept": False, "measurable": False, "reason": f"not measurable here now: {why}"})
