"""What a factor analysis has found: a row for each set that was measured, and what they say together."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from gluontune import stats
from gluontune.ladder.factorplan import FactorSet, interactions, leave_one_out, plan, quotient, set_name
from gluontune.ladder.measure import Contender
from gluontune.ladder.time_to_target import accuracies, first_crossing

__all__ = ["Row", "conclude", "throughput_row", "tta_of", "tta_row"]

Row = Mapping[str, Any]


def throughput_row(chosen: FactorSet, contender: Contender, base: Contender) -> dict[str, Any]:
    """What the slices of a set, beside those of the base recipe, showed: a finished piece of the document."""
    row: dict[str, Any] = {"kind": "throughput", "set": list(chosen), "status": "ran", "reason": None}
    row.update(samples_per_sec=None, ratio=None)
    if contender.failure is not None:
        row.update(status="failed", reason=str(contender.failure))
        return row
    row["samples_per_sec"] = stats.interval(contender.rates)
    same = contender is base
    row["ratio"] = {"median": 1.0, "ci95": [1.0, 1.0]} if same else stats.ratio_interval(contender.rates, base.rates)
    return row


def tta_row(chosen: FactorSet, seed: int, result: Any, targets: Sequence[float]) -> dict[str, Any]:
    """What a run to the targets showed: a finished piece of the document."""
    places = [first_crossing(accuracies(result), target) for target in targets]
    row: dict[str, Any] = {"kind": "tta", "set": list(chosen), "seed": seed, "status": "ran", "reason": None}
    row["seconds"] = [None if place is None else result.elapsed_seconds[place] for place in places]
    row["epochs"] = [None if place is None else place + 1 for place in places]
    row["best_accuracy"] = max(result.val_accuracy, default=None)
    row["last_accuracy"] = next(iter(result.val_accuracy[-1:]), None)
    row["spent_seconds"] = sum(result.epoch_seconds)
    if result.error is not None:
        row.update(status="failed", reason=f"{result.error['message']} (while {result.error['phase']})")
    return row


def conclude(document: dict[str, Any]) -> None:
    """Fill ``sets``, ``interactions`` and ``leave_one_out`` from the finished pieces."""
    names = [factor["name"] for factor in document.get("factors", [])]
    targets = document["given"]["targets"]
    sets: list[dict[str, Any]] = []
    for chosen, parts in plan(names, document["given"]["pairs"] or document["given"]["every_set"]).items():
        rows = [row for row in document["done"] if tuple(row["set"]) == chosen]
        speed = next((row for row in rows if row["kind"] == "throughput"), None)
        runs = [row for row in rows if row["kind"] == "tta"]
        tta = [tta_of(runs, place, target) for place, target in enumerate(targets)] if runs else []
        sets.append({"set": list(chosen), "name": set_name(chosen), "parts": parts, "throughput": speed, "tta": tta})
    document["sets"] = sets
    document["interactions"], document["leave_one_out"] = {}, {}
    gains = {"throughput": {tuple(s["set"]): (s["throughput"] or {}).get("ratio") for s in sets}}
    for place, target in enumerate(targets):
        gains[f"time to {target:g}"] = _time_gains(sets, place)
    for title, ratios in gains.items():
        found = [row for row in interactions(ratios, names) if row["ratio"] is not None]
        document["interactions"][title] = found
        document["leave_one_out"][title] = leave_one_out(ratios, names)


def tta_of(runs: Sequence[Mapping[str, Any]], place: int, target: float) -> dict[str, Any]:
    """Time to one target over a set's runs; ``converged`` says that all of them reached it."""
    seconds = [row["seconds"][place] for row in runs]
    reached = [value for value in seconds if value is not None]
    interval = stats.interval(reached) if reached else None
    best = [row["best_accuracy"] for row in runs if row["best_accuracy"] is not None]
    return {
        "target": target,
        "seconds": interval,
        "reached": len(reached),
        "runs": len(runs),
        "converged": len(reached) == len(runs),
        "best_accuracy": max(best, default=None),
        "reasons": [row["reason"] for row in runs if row["reason"]],
    }


def _time_gains(sets: Sequence[Mapping[str, Any]], place: int) -> dict[FactorSet, dict[str, Any] | None]:
    """Time of the base ÷ time of each set, where both converged."""
    times = {tuple(s["set"]): s["tta"][place] for s in sets if s["tta"]}
    base = times.get(())
    gains: dict[FactorSet, dict[str, Any] | None] = {}
    for chosen, found in times.items():
        gains[chosen] = None
        if base and base["converged"] and found["converged"]:
            gains[chosen] = quotient(_of_runs(base["seconds"]), _of_runs(found["seconds"]))
    if () in gains and gains[()] is not None:
        gains[()] = {"median": 1.0, "ci95": [1.0, 1.0]}  # the base against itself
    return gains


def _of_runs(interval: Mapping[str, Any]) -> dict[str, Any]:
    """A run or two have no interval, and must not look certain."""
    return {"median": interval["median"], "ci95": stats.bounds(interval)}
