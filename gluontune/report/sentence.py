"""The headline sentence of a ladder, from its JSON."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gluontune.core import stats
from gluontune.report import formatting as fmt
from gluontune.report.advice import best_row
from gluontune.report.read import check_ladder, reason_of

PARITY = 0.02  # the fall of accuracy, as a share, beyond which a faster rung is no gain


def ladder_sentence(ladder: Mapping[str, Any]) -> str:
    """The ladder's result in one sentence.

    It claims no more than the measurements: a gain whose interval reaches 1 is called uncertain, an interruption or
    failure comes first, and rungs that did not help are named.

    >>> rate = {"median": 500.0, "ci95": [490.0, 510.0], "n": 9}
    >>> naive = {"name": "naive", "status": "ran", "kept": True, "samples_per_sec": rate,
    ...          "phases_pct": {"data": 61.0, "forward": 39.0}}
    >>> fast = {**naive, "name": "records", "verdict": "helped", "speedup_vs_naive": 3.9,
    ...         "speedup_ci95": [3.7, 4.1]}
    >>> ladder_sentence({"schema_version": 1, "rungs": [naive, fast], "best": {"name": "records"}})
    '3.9× faster than naive (95 %: 3.7–4.1); what held you back: waiting for data (61 % of the naive step)'
    """
    return "; ".join(sentence_parts(ladder))


def sentence_parts(ladder: Mapping[str, Any]) -> list[str]:
    """The clauses of :func:`ladder_sentence`; the first is the headline.

    Args:
        ladder: a ``ladder.json``.

    >>> rate = {"median": 500.0, "ci95": [490.0, 510.0], "n": 9}
    >>> naive = {"name": "naive", "status": "ran", "kept": True, "samples_per_sec": rate}
    >>> fast = {**naive, "name": "records", "verdict": "helped", "speedup_vs_naive": 3.9,
    ...         "speedup_ci95": [3.7, 4.1]}
    >>> ladder = {"schema_version": 1, "rungs": [naive, fast], "best": {"name": "records"}}
    >>> sentence_parts(ladder)[0]
    '3.9× faster than naive (95 %: 3.7–4.1)'
    """
    ladder = check_ladder(ladder)
    rows = ladder["rungs"]
    measured = [row for row in rows if row["status"] == "ran" and row["samples_per_sec"]]
    if not measured:
        failed = next((row for row in rows if row["status"] == "failed"), None)
        if failed is not None:
            return [f"no rung could be measured: {fmt.clean(failed['name'], 60)} failed{_why(failed)}"]
        return ["no rung was measured" if ladder["complete"] else "interrupted before the first rung was measured"]
    naive = next((row for row in measured if row["name"] == "naive"), None)
    best = best_row({**ladder, "rungs": measured}) or measured[-1]
    speed = _headline(ladder, measured, naive, best)
    proof = proof_clause(ladder)
    parts = [proof, f"throughput: {speed}"] if proof else [speed]
    if not ladder["complete"]:
        parts.append(f"interrupted: {len(measured)} rung{'s' * (len(measured) != 1)} measured so far")
    if naive is not None:
        parts += _accuracy_lost(naive, best) + _held_back(ladder, naive, best)
    for taken in ladder["taken_back"]:  # kept until the proof
        name = fmt.RUNG_TEXTS.get(taken["rung"], fmt.clean(taken["rung"], 60))
        parts.append(f"{name} was {fmt.clean(taken['reason'], 240).rstrip('.')}")
    named = {taken["rung"] for taken in ladder["taken_back"]}
    named |= {a["rung"] for a in ladder["revisited"] if a["adopted"] and a["kind"] == "asked again"}
    parts += _not_helpful([row for row in rows if row["name"] not in named], _here(ladder))
    return parts + [a["interaction"] for a in ladder["revisited"] if a["interaction"]]


def proof_clause(ladder: Mapping[str, Any]) -> str | None:
    """The headline of a proven ladder; None if naive and best were not trained to one accuracy.

    >>> proof_clause({"proof": {"reached": True, "same_accuracy": True, "target": 0.78, "pairs": [{}],
    ...     "seconds": {"naive": 42.0, "best": 9.7}, "ratio": {"median": 4.33, "ci95": None}}})
    '9.7 s instead of 42 s to 78.0 % accuracy: 4.3×, one training each'
    """
    proof = ladder.get("proof") or {}
    ratio = proof.get("ratio")
    if not proof.get("reached") or not ratio or not proof.get("same_accuracy") or ratio["median"] <= 1:
        return None
    seconds, runs = proof["seconds"], len(proof["pairs"])
    times = f"{fmt.duration(seconds['best'])} instead of {fmt.duration(seconds['naive'])}"
    each = "one training each" if runs == 1 else f"{runs} trainings of each, in turn"
    gain = fmt.ratio_with_interval(ratio["median"], stats.bounds({**ratio, "n": runs}))
    return f"{times} to {fmt.accuracy(proof['target'])} accuracy: {gain}, {each}"


def _headline(
    ladder: dict[str, Any], measured: list[dict[str, Any]], naive: dict[str, Any] | None, best: dict[str, Any]
) -> str:
    unit = "img/s" if ladder["dataset"].get("image_shape") else "samples/s"
    speed = f"{fmt.rate(best['samples_per_sec']['median'])} {unit}"
    name = fmt.clean(best["name"], 60)
    if naive is None:
        row = next((row for row in ladder["rungs"] if row["name"] == "naive"), None)
        fate = f"naive failed{_why(row)}" if row and row["status"] == "failed" else "naive was not measured"
        return f"{fate}, so no speedup can be stated; the best rung that ran is {name} with {speed}"
    if best is naive:
        if len(measured) == 1:
            return f"only naive was measured: {speed}"
        if any(row.get("measurable") is False for row in measured):
            return f"no gain could be proven {_here(ladder)} now: naive runs at {speed}"
        return f"nothing that was tried made this job faster than naive ({speed}) {_here(ladder)}"
    gain, bounds = best["speedup_vs_naive"], best["speedup_ci95"]
    if gain is None:
        gain, bounds = best["samples_per_sec"]["median"] / naive["samples_per_sec"]["median"], None
    if gain < 1:
        return f"{fmt.ratio(gain)} the speed of naive: slower, with {name} as the best kept rung"
    text = fmt.ratio_with_interval(gain, bounds)
    if bounds and bounds[0] <= 1:
        return f"no certain gain: {name} measured {text} the speed of naive"
    head, _, tail = text.partition("×")
    return f"{head}× faster than naive{tail}"


def _accuracy_lost(naive: dict[str, Any], best: dict[str, Any]) -> list[str]:
    """The clause about lost accuracy; none if the loss is small or the epochs differ."""
    before, after = naive["val_accuracy"], best["val_accuracy"]
    if not before or len(before) != len(after) or before[-1] is None or after[-1] is None:
        return []
    fall = before[-1] - after[-1]
    if fall <= PARITY:
        return []
    return [f"but its accuracy is {100 * fall:.1f} points below naive's ({fmt.accuracy(after[-1])})"]


def _held_back(ladder: dict[str, Any], naive: dict[str, Any], best: dict[str, Any]) -> list[str]:
    intro = "what limits it" if best is naive else "what held you back"
    known = ladder["verdict"].get("kind") != "unknown"
    text = _inside(str(ladder["verdict"].get("sentence") or "")) if known else ""
    climbed = {row["name"] for row in ladder["rungs"] if row["status"] == "ran"}
    if text and ladder["verdict"].get("next_rung") in climbed:  # the climb has followed this advice
        text = text.partition(": ")[0].partition("; try ")[0]
    if text:
        return [f"{intro}: {text}"]
    phases = {name: share for name, share in naive["phases_pct"].items() if name != "rest"}
    if not phases:
        return []
    longest = max(phases, key=lambda name: phases[name])
    phase = fmt.PHASES.get(longest, fmt.clean(longest, 60))
    return [f"{intro}: {phase} ({phases[longest]:.0f} % of the naive step)"]


def _not_helpful(rows: list[dict[str, Any]], where: str) -> list[str]:
    useless: list[str] = []
    unknown: list[str] = []
    together: list[str] = []
    parts: list[str] = []
    for row in rows:
        what = fmt.RUNG_TEXTS.get(row["name"], fmt.clean(row["name"], 60))
        if row["name"] == "naive":
            continue
        if row["status"] == "failed":
            parts.append(f"{fmt.clean(row['name'], 60)} failed{_why(row)}")
        elif row["status"] == "ran" and row.get("measurable") is False:
            (together if row["kept"] else unknown).append(what)
        elif row["status"] == "ran" and row["verdict"] == "hurt":
            parts.append(f"{what} hurt{_why(row)}")
        elif row["status"] == "ran" and row["verdict"] == "no gain":
            useless.append(what)
        elif row["name"] == "hybridized" and row["status"] == "ran" and _alone_useless(row):
            parts.append("hybridizing helped only together with rewrites of the net")
    if useless:
        listed = useless[0] if len(useless) == 1 else f"{', '.join(useless[:-1])} and {useless[-1]}"
        parts.insert(0, f"{listed} did not help {where}")
    if together:
        parts.append(f"proven only together: {', '.join(together)}")
    if unknown:
        parts.append(f"not measurable here now: {', '.join(unknown)}")
    return parts


def _alone_useless(row: dict[str, Any]) -> bool:
    """Whether hybridizing without rewrites had no gain, although a variant with a rewrite was chosen."""
    chosen = [v for v in row["variants"] if v["chosen"]]
    plain = [v for v in row["variants"] if not v["changes"].get("rewrites") and v["ratio_to_previous"]]
    if not plain or not any(v["changes"].get("rewrites") for v in chosen):
        return False
    return all((v["ratio_to_previous"]["ci95"] or [v["ratio_to_previous"]["median"]])[0] <= 1 for v in plain)


def _here(ladder: dict[str, Any]) -> str:
    """The device of the measurement: this GPU or CPU if the ladder records it, else this machine."""
    devices = {str(row["utilization"].get("device")) for row in ladder["rungs"]}
    devices |= {str(row["recipe"].get("devices")) for row in ladder["rungs"]}
    if "gpu" in devices:
        return "on this GPU"
    return "on this CPU" if "cpu" in devices or ladder["machine"].get("gpus") == [] else "on this machine"


def _inside(sentence: str) -> str:
    """A sentence as a clause: without its full stop and capital, except that of a name (GPU, MXNet)."""
    text = fmt.clean(sentence, 240).rstrip(". ")
    return text[0].lower() + text[1:] if text[1:2].islower() or text[1:2] == " " else text


def _why(row: dict[str, Any]) -> str:
    text = fmt.clean(reason_of(row), 140).rstrip(".")
    return f": {text}" if text else ""
