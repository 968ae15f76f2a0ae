"""Who made the training shorter, and what is left of that gain where the proof shows that it was luck."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from gluontune.documents import RungRow
from gluontune.ladder.batching import SHORTER
from gluontune.ladder.judge import verdict_of
from gluontune.stats import Interval

__all__ = ["arrived", "by_time", "next_length", "ratio_at", "shortener", "what_was_shown", "worth_a_try"]


def shortener(rows: Sequence[RungRow]) -> RungRow | None:
    """The kept rung that chose the length of the training, by the time to an accuracy; None where none did."""
    found = [row for row in rows if row["kept"] and "epochs" in row["changes"] and by_time(row)]
    return found[-1] if found else None


def by_time(row: RungRow) -> bool:
    """Whether a kept rung counts by the time to an accuracy."""
    return bool((row["seconds_to_accuracy"] or {}).get("ratio"))


def ratio_at(row: RungRow, epochs: float) -> Interval:
    """The rung's gain in time to the accuracy, were its training ``epochs`` long.

    >>> row = {"recipe": {"epochs": 0.5},
    ...        "seconds_to_accuracy": {"ratio": {"median": 2.0, "ci95": [1.8, 2.2], "n": 9}}}
    >>> ratio_at(row, 1.0)
    {'median': 1.0, 'ci95': [0.9, 1.1], 'n': 9}
    """
    assert row["recipe"] is not None and row["seconds_to_accuracy"] is not None, "what was kept was trained"
    ratio, less = row["seconds_to_accuracy"]["ratio"], row["recipe"]["epochs"] / epochs
    return {"median": less * ratio["median"], "ci95": [less * bound for bound in ratio["ci95"]], "n": ratio["n"]}


def next_length(epochs: float, longest: float) -> float:
    """The length, in epochs, that is tried after one that did not arrive.

    >>> next_length(0.35, 1.0), next_length(0.8, 1.0)
    (0.5, 1.0)
    """
    return min(longest, round(epochs / SHORTER, 3))


def worth_a_try(row: RungRow | None, epochs: float) -> bool:
    """Whether the rung would still be a gain at that length: what cannot win is not trained."""
    return row is None or verdict_of(ratio_at(row, epochs)) == "helped"


def arrived(proof: Mapping[str, Any]) -> bool:
    """Whether the best recipe came to the proof's accuracy, at one of the lengths that were tried."""
    return proof["pairs"][0]["best"]["seconds"] is not None


def what_was_shown(row: RungRow, proof: Mapping[str, Any], longest: float) -> dict[str, Any]:
    """What a rung's row says after a proof in which none of its lengths arrived.

    Args:
        row: of the rung, as it was kept. proof: as ``prove`` gives it. longest: the naive script's epochs.

    Returns:
        ``verdict``, ``measurable`` and ``reason`` of the row.
    """
    last = {"epochs": proof["epochs"], "accuracy": proof["pairs"][0]["best"]["accuracy"]}
    tried = [*proof["missed"], last]
    first = f"{tried[0]['epochs']:g} to " if len(tried) > 1 else ""
    highest = max(each["accuracy"] for each in tried)
    said = (
        f"{first}{last['epochs']:g} epochs did not reach {100 * proof['target']:.1f} % in the proof "
        f"({100 * highest:.1f} %)"
    )
    following = next_length(last["epochs"], longest)
    if last["epochs"] >= longest:
        return {"verdict": "hurt", "measurable": True, "reason": f"taken back: {said}"}
    if worth_a_try(row, following):
        why = f"taken back: {said}, and there was no time for a longer training"
        return {"verdict": "n/a", "measurable": False, "reason": why}
    ratio = ratio_at(row, following)
    low, high = ratio["ci95"]
    length = f"{following:g} epoch{'s' * (following != 1)}"
    why = f"{length} would be no certain gain: {ratio['median']:.2f}× less time (95 %: {low:.2f}–{high:.2f})"
    return {"verdict": verdict_of(ratio), "measurable": True, "reason": f"taken back: {said}, and {why}"}
