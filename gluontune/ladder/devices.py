"""How many devices are best, and why not more: what the ladder's last rung has to say besides its verdict.

More devices are not always better (deck 000): the exchange of gradients costs time in each step, the loader may be the
limit, and on a CPU the processes share the cores that one of them could use alone.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Optional

from gluontune import stats
from gluontune.ladder.judge import TIE
from gluontune.ladder.measure import Contender

__all__ = ["compare_counts", "look_into"]

_SHARE = 0.1  # of a step's time: what takes less explains nothing
_REPEATS = 9
_PROBE_S = 0.4


def look_into(contender: Contender) -> dict[str, Optional[float]]:
    """Where a step of several ranks goes: each part measured alone, as shares (0 … 1) of the step's time.

    Returns:
        ``{"exchange", "input"}``; None for a part that one process with several GPUs does not show.
    """
    found: dict[str, Optional[float]] = {"exchange": None, "input": None}
    group = contender.group
    if group is None or not contender.rates:
        return found
    rate = stats.interval(contender.rates)["median"]
    with contender.guarded():
        group.resume()
        step_ms = 1e3 * group.samples_per_step / rate
        if group.world > 1:
            held = group.gradients()
            each = max(1, held["bytes"] // 4 // held["tensors"])
            exchange = group.exchange_alone([[held["tensors"], each]], _REPEATS)[0]["ms"]
            found["exchange"] = min(1.0, exchange / step_ms)
        loading = group.loading_alone(_PROBE_S)["samples_per_sec"]
        found["input"] = min(1.0, rate / group.world / loading)
        group.pause()
    return found


def compare_counts(
    one: Contender, field: Sequence[Contender], shares: Mapping[str, Mapping[str, Optional[float]]], gpus: bool
) -> Optional[dict[str, Any]]:
    """One device beside several: which number is best, with efficiency and the reason.

    Args:
        one: the best recipe so far, measured in the same rounds as ``field``.
        shares: by label, what :func:`look_into` found.
        gpus: whether a device is a GPU. Processes on a CPU share its cores: their efficiency is the throughput over
            that of one process with all cores, not over so many times it.

    Returns:
        ``{"rows": [{"label", "devices", "samples_per_sec", "efficiency", "exchange_share", "input_share"}], "best",
        "sentence"}``; None where nothing can be compared.
    """
    ran = [c for c in field if c.failure is None and c.rates and one.rates]
    if one.failure is not None or not ran:
        return None
    alone = one.recipe.num_devices
    rows = [_row(one, one, alone, {}, gpus), *(_row(c, one, alone, shares.get(c.label, {}), gpus) for c in ran)]
    fastest = max(row["samples_per_sec"]["median"] for row in rows)
    best = next(r for r in rows if r["samples_per_sec"]["median"] * (1 + TIE) >= fastest)
    return {"rows": rows, "best": best["devices"], "sentence": _sentence(rows, best, gpus)}


def _row(c: Contender, one: Contender, alone: int, shares: Mapping[str, Optional[float]], gpus: bool) -> dict[str, Any]:
    count, ratio = c.recipe.num_devices, None if c is one else _ratio(c.rates, one.rates)
    speedup = 1.0 if ratio is None else ratio["median"]
    return {
        "label": c.label,
        "devices": count,
        "samples_per_sec": stats.interval(c.rates),
        "speedup": ratio,
        "efficiency": speedup / (count / alone) if gpus else speedup,
        "exchange_share": shares.get("exchange"),
        "input_share": shares.get("input"),
    }


def _ratio(mine: Sequence[float], theirs: Sequence[float]) -> stats.Interval:
    """Of the rounds that both were measured in: a slow one leaves its contest early."""
    together = min(len(mine), len(theirs))
    return stats.ratio_interval(mine[:together], theirs[:together])


def _sentence(rows: Sequence[Mapping[str, Any]], best: Mapping[str, Any], gpus: bool) -> str:
    """
    >>> rate = {"median": 90.0, "ci95": [89.0, 91.0], "n": 9}
    >>> two = {"label": "2 processes", "devices": 2, "samples_per_sec": rate, "efficiency": 0.9,
    ...        "exchange_share": 0.25, "input_share": 0.02}
    >>> one = {**two, "devices": 1, "samples_per_sec": {**rate, "median": 100.0}, "efficiency": 1.0}
    >>> _sentence([one, two], one, gpus=False)
    '1 process is best here: 2 processes reach 0.90 times its throughput; the exchange of gradients takes 25 % ...'
    >>> as_fast = {**two, "efficiency": 1.0, "speedup": {"median": 1.0, "ci95": [0.92, 1.1], "n": 9}}
    >>> _sentence([one, as_fast], as_fast, gpus=False)
    '2 processes: 1.00 times one process (95 %: 0.92–1.10), no certain difference'
    """
    what = ("GPU", "GPUs") if gpus else ("process", "processes")
    count = best["devices"]
    name = f"{count} {what[count != 1]}"
    others = [r for r in rows if r["devices"] != count]
    own, speedup = best["efficiency"], best.get("speedup")
    if speedup is not None and speedup["ci95"][0] <= 1:
        low, high = speedup["ci95"]
        return (
            f"{best['label']}: {speedup['median']:.2f} times one {what[0]} (95 %: {low:.2f}–{high:.2f}), no certain "
            "difference"
        )
    if count > 1:
        reached = f"efficiency {100 * own:.0f} %" if gpus else f"{own:.2f} times one process with all cores"
        return f"{name} are best here: {best['label']}, {reached}{_reason([best], gpus)}"
    if not others:
        return f"{name} is best here"
    rival = max(others, key=lambda r: r["samples_per_sec"]["median"])
    ratio = rival["samples_per_sec"]["median"] / best["samples_per_sec"]["median"]
    reason = _reason([rival], gpus)
    return f"{name} is best here: {rival['label']} reach {ratio:.2f} times its throughput{reason}"


def _reason(rows: Sequence[Mapping[str, Any]], gpus: bool) -> str:
    """What the missing part goes to, where it was measured."""
    found = []
    for row in rows:
        exchange, loading = row["exchange_share"], row["input_share"]
        if exchange is not None and exchange >= _SHARE:
            found.append(f"the exchange of gradients takes {100 * exchange:.0f} % of a step")
        if loading is not None and loading >= 0.5:
            found.append(f"the loader is at {100 * loading:.0f} % of what it can give")
        if not found and row["efficiency"] < 0.95:
            found.append(
                "neither exchange nor loader explains it: waits for the slowest, or memory that they share"
                if gpus
                else "neither exchange nor loader explains it: the processes share cores and memory"
            )
    return f"; {', '.join(found)}" if found else ""
