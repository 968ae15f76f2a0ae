"""What the figures say: the fastest variant, the verdict with its interval, and the parity gate."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import Any

from gluontune import stats
from gluontune.ladder.measure import Contender
from gluontune.ladder.rungs import Variant
from gluontune.result import RunResult

__all__ = ["PARITY_POINTS", "choose", "compare", "judge", "next_best", "undecided", "verdict_of"]

PARITY_POINTS = 0.02  # a rung may cost so much validation accuracy at equal epochs, and no more
TIE = 0.03  # variants whose medians are this close are as fast as each other
WORTH = 1.01  # a gain below one per cent is not worth a change
MAYBE = 1.05  # where no gain is proven, but one of so much is not ruled out either, it is worth a second look


def verdict_of(ratio: dict[str, Any]) -> str:
    """``helped``, ``no gain`` or ``hurt`` from the interval of a throughput ratio.

    >>> verdict_of({"median": 1.4, "ci95": [1.3, 1.5], "n": 7})
    'helped'
    >>> verdict_of({"median": 1.1, "ci95": [0.9, 1.4], "n": 7})
    'no gain'
    >>> verdict_of({"median": 0.7, "ci95": [0.6, 0.8], "n": 7})
    'hurt'
    """
    low, high = ratio["ci95"]
    if low > 1.0 and ratio["median"] >= WORTH:
        return "helped"
    return "hurt" if high < 1.0 else "no gain"


def undecided(field: Sequence[Contender], best: Contender | None) -> dict[str, Any] | None:
    """The widest ratio of a contest that has shown no gain and has not ruled one out; None: it is decided.

    A greedy climb that drops a good rung for the noise of its machine pays for it on all that follow: many
    optimizations bring little without the others. A second look, longer than the first, is cheap beside that;
    it lets a change without effect pass as a gain in about 3 instead of 2 of 100 cases (simulated, 10 % noise).
    """
    if best is None or best.failure is not None:
        return None
    ratios = [stats.ratio_interval(c.rates, best.rates) for c in field if c.failure is None]
    if not ratios or any(verdict_of(ratio) == "helped" for ratio in ratios):
        return None
    widest = max(ratios, key=lambda ratio: ratio["ci95"][1])
    return widest if widest["ci95"][1] >= MAYBE else None


def compare(
    row: dict[str, Any],
    field: Sequence[Contender],
    variants: Sequence[Variant],
    naive: Contender,
    best: Contender | None,
) -> Contender | None:
    """Fill a row with the throughput of its variants; return the one to go on with, or None if none ran.

    That is the first one which ties with the fastest: variants are listed from the smallest change to the
    largest, and a larger batch, or more workers, that bring nothing are not worth their price.

    Args:
        row: gets ``variants``, ``samples_per_sec``, ``ratio_to_previous``, ``speedup_vs_naive``, ``recipe``.
        field: the variants' contenders, measured interleaved with ``naive`` and ``best``.
    """
    for contender, variant in zip(field, variants):
        entry: dict[str, Any] = {
            "label": variant.label,
            "changes": _plain(variant.changes),
            "status": "failed" if contender.failure else "ran",
            "reason": str(contender.failure) if contender.failure else None,
            "samples_per_sec": None,
            "ratio_to_previous": None,
            "chosen": False,
        }
        if contender.failure is None:
            entry["samples_per_sec"] = stats.interval(contender.rates)
            if best is not None and best.failure is None and best is not contender:
                entry["ratio_to_previous"] = stats.ratio_interval(contender.rates, best.rates)
        row["variants"].append(entry)
    ran = [
        (c, e["samples_per_sec"]["median"]) for c, e in zip(field, row["variants"]) if e["samples_per_sec"]
    ]
    if not ran:
        return None
    fastest = max(median for _, median in ran)
    chosen = next(c for c, median in ran if median * (1 + TIE) >= fastest)
    choose(row, chosen, field, naive)
    return chosen


def choose(row: dict[str, Any], chosen: Contender, field: Sequence[Contender], naive: Contender) -> None:
    """Make one variant the row's: its throughput, ratios, recipe and changes."""
    for contender, entry in zip(field, row["variants"]):
        entry["chosen"] = contender is chosen
        if contender is chosen:
            for name in ("samples_per_sec", "ratio_to_previous", "changes"):
                row[name] = entry[name]
    row["recipe"] = chosen.recipe.to_dict()
    if chosen is naive:
        row["speedup_vs_naive"], row["speedup_ci95"] = 1.0, [1.0, 1.0]
    elif naive.failure is None:
        speedup = stats.ratio_interval(chosen.rates, naive.rates)
        row["speedup_vs_naive"], row["speedup_ci95"] = speedup["median"], speedup["ci95"]


def next_best(row: dict[str, Any], field: Sequence[Contender]) -> Contender | None:
    """After a variant that was fast but lost accuracy: the smallest change that helped too, or None.

    Those that were tried keep their places among the variants, with what they lost as the reason.
    """
    if row["kept"] or row["ratio_to_previous"] is None or verdict_of(row["ratio_to_previous"]) != "helped":
        return None
    first = next(e for e in row["variants"] if e["chosen"])
    for contender, entry in zip(field, row["variants"]):
        ratio = entry["ratio_to_previous"]
        if entry is first or entry["reason"] is not None or ratio is None:
            continue
        if verdict_of(ratio) == "helped":
            first["reason"] = row["reason"]
            row["reason"] = None
            return contender
    return None


def judge(row: dict[str, Any], result: RunResult, kept: Sequence[float], *, has_best: bool) -> None:
    """Fill a row with verdict, ``kept`` and the reason, from its throughput and its accuracy.

    Args:
        row: as :func:`compare` left it.
        result: of the training of the chosen variant.
        kept: final validation accuracies of the rungs kept so far; their median is the reference, so that
            neither one lucky run nor one unlucky run moves the gate.
        has_best: whether there was a recipe to compare with.
    """
    row["status"] = "ran"
    if not has_best or row["ratio_to_previous"] is None:
        row.update(verdict="n/a", kept=True)
        return
    ratio = row["ratio_to_previous"]
    row["verdict"] = verdict_of(ratio)
    row["kept"] = row["verdict"] == "helped"
    low, high = ratio["ci95"]
    if row["verdict"] != "helped":
        row["reason"] = f"{ratio['median']:.2f}× the recipe before it (95 %: {low:.2f}–{high:.2f})"
    if kept and result.val_accuracy:
        reference, accuracy = statistics.median(kept), result.val_accuracy[-1]
        if accuracy < reference - PARITY_POINTS:
            row.update(verdict="hurt", kept=False)
            lost = 100 * (reference - accuracy)
            row["reason"] = (
                f"validation accuracy {100 * accuracy:.1f} %, {lost:.1f} points below the kept rungs' "
                f"{100 * reference:.1f} % at equal epochs (throughput {ratio['median']:.2f}×)"
            )


def _plain(changes: Any) -> dict[str, Any]:
    return {name: list(value) if isinstance(value, tuple) else value for name, value in changes.items()}
