"""After the best guess was proven at once: each of its rungs explained, by leaving it out."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gluontune.core import stats
from gluontune.core.events import RungRow, VariantRow
from gluontune.core.stats import Interval
from gluontune.recipe import Recipe
from gluontune.search.judge import WORTH, judge
from gluontune.search.measure import Contender
from gluontune.search.results_store import ResultsStore
from gluontune.search.rung import Rung


def held(results: ResultsStore, rung: Rung, best: Recipe, naive: Recipe) -> dict[str, Any]:
    """The fields, with their naive values, in which ``best`` has a rung that was proven together; else empty."""
    together = results.finished("together")
    back = rung.left_out(best, naive) if together is not None and together["kept"] else {}
    return back if together is not None and set(back) & set(together["changes"]) else {}


def over_naive(results: ResultsStore) -> Interval:
    """The best recipe's speed against naive."""
    row = next(r for r in reversed(results.document["rungs"]) if r["kept"])
    value = row["speedup_vs_naive"] or 1.0
    return {"median": value, "ci95": row["speedup_ci95"] or [value, value], "n": 0}


def explained(
    row: RungRow, best: Contender, back: Mapping[str, Any], results: ResultsStore, background_pct: float
) -> bool:
    """Judge a rung by the best recipe ÷ the same without it. Returns whether the recipe keeps it.

    It goes if nothing is lost by that, and stays if its gain is certain, or may be one.

    Args:
        row: with one variant, the recipe without the rung against the best one. back: the fields of that variant.
    """
    lost = row["variants"][0]
    against = lost["ratio_to_previous"]
    assert against is not None, "both were measured"
    ratio, speedup = stats.inverse(against), over_naive(results)
    row["changes"] = {field: best.recipe.to_dict()[field] for field in back}
    kept: VariantRow = {
        **lost, "label": "with it", "changes": row["changes"], "reason": None, "chosen": True,
        "samples_per_sec": stats.interval(best.rates), "ratio_to_previous": ratio,
    }  # fmt: skip
    lost["chosen"], row["variants"] = False, [kept, lost]
    row.update({"samples_per_sec": kept["samples_per_sec"], "ratio_to_previous": ratio, "left_out": True})
    row.update({"speedup_vs_naive": speedup["median"], "speedup_ci95": speedup["ci95"]})
    row["recipe"] = best.recipe.to_dict()
    judge(row, background_pct, has_best=True)
    if row["kept"]:
        row["reason"] = None
    elif row["measurable"] and ratio["median"] < WORTH:
        results.leave_out(row["name"], back)
        return False
    else:
        row.update({"kept": True, "verdict": "n/a", "measurable": False})
        alone = f"no certain gain alone ({ratio['median']:.2f}×)"
        row["reason"] = f"{alone}: it stays as a part of what is proven together"
    return True
