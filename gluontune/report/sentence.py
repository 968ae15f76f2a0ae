"""A ladder in words: its headline sentence, the changes to keep, the file to run, the rungs that were asked again."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from gluontune.core import stats
from gluontune.core.errors import GluontuneError
from gluontune.core.events import deciding
from gluontune.core.files import open_regular
from gluontune.report import formatting as fmt
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
        if (failed := next((row for row in rows if row["status"] == "failed"), None)) is not None:
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
    speed = f"{fmt.rate(best['samples_per_sec']['median'])} {fmt.unit(ladder)}"
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
    if (fall := before[-1] - after[-1]) <= PARITY:
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
    if not (phases := {name: share for name, share in naive["phases_pct"].items() if name != "rest"}):
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
        what, outcome = fmt.RUNG_TEXTS.get(row["name"], fmt.clean(row["name"], 60)), fmt.outcome(row)
        if row["name"] == "naive":
            continue
        if outcome == "failed":
            parts.append(f"{fmt.clean(row['name'], 60)} failed{_why(row)}")
        elif row["kept"] and outcome in ("not measurable", "no gain"):
            together.append(what)
        elif outcome == "not measurable":
            unknown.append(what)
        elif outcome == "hurt":
            parts.append(f"{what} hurt{_why(row)}")
        elif outcome == "no gain":
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


_LARGEST = 200_000  # bytes of a script or a recipe that a page includes
_KEEP = {
    "together": "All of it at once",
    "environment": "Set threads and allocator before MXNet starts", "multi-worker": "Decode images in worker processes",
    "records": "Read the images from RecordIO, or keep them in memory", "hybridized": "Compile the net to a graph",
    "mixed-precision": "Compute in 16 bits", "large-batch": "Take larger steps",
    "multi-device": "Train in several processes", "modern-engine": "Compute the same net with PyTorch",
    "methods": "Train fewer epochs, by methods that make more of each",
}  # fmt: skip


def advice(ladder: Mapping[str, Any], folder: Path | None) -> dict[str, Any]:
    """The first steps: ``{"kept": [(change, gain)], "files": [{"name", "command", "text"}], "without", "next"}``.

    ``without`` is the reason why there is no script; ``next`` are sentences if nothing was kept.
    """
    kept = []
    for row in ladder["rungs"]:
        if row["kept"] and row["in_best"] and row["name"] != "naive":
            ratio, what = deciding(row), fmt.decided_by(row)
            change = _what(row["name"], row["changes"], ladder["base_recipe"])
            if row["name"] == "records" and ladder.get("script"):
                change = "Keep the samples in memory"
            kept.append((change, f"{fmt.ratio(ratio['median'])} {what}" if ratio else ""))
    for answer in ladder["revisited"]:
        if answer["adopted"] and answer["kind"] == "asked again" and answer["ratio"]:
            kept.append((_what(answer["rung"], {}, {}), f"{fmt.ratio(answer['ratio']['median'])} the speed"))
    files: Mapping[str, Any] = found if isinstance(found := ladder.get("files"), Mapping) else {}
    shown = []
    for kind, command in (("script", "python {}"), ("command", "sh {}"), ("yaml", "gluontune train --recipe {}")):
        name = files.get(kind)
        text = _read(folder, name) if folder is not None and isinstance(name, str) else None
        if text is not None:
            shown.append({"name": fmt.clean(name, 40), "command": command.format(name), "text": text})
    reason = fmt.clean(files.get("reason") or "", 200)
    without = f"There is no best.py: {reason}." if reason else ""
    return {"kept": kept, "files": shown, "without": without, "next": [] if kept else _next(ladder["rungs"])}


def _next(rungs: list[dict[str, Any]]) -> list[str]:
    """The next steps after a ladder that kept nothing.

    >>> _next([{"status": "skipped", "reason": "not measured: the budget was used up by the rungs before it"}])
    ['Give it more time: gluontune ladder --budget 20m']
    """
    texts = []
    if any(row.get("measurable") is False for row in rungs):
        texts.append("Climb again when the other programs are done: they had the cores that some rungs need")
    if any(row["status"] == "skipped" and "budget" in str(row["reason"]) for row in rungs):
        texts.append("Give it more time: gluontune ladder --budget 20m")
    if any(row["status"] == "failed" for row in rungs):
        texts.append("Mend the failed rung; its row has the reason")
    if not texts and any(row["status"] == "ran" and row["name"] != "naive" for row in rungs):
        texts.append("Leave the job as it is: nothing that was tried made it faster here")
    return texts


def _what(rung: str, changes: Mapping[str, Any], base: Mapping[str, Any]) -> str:
    """A rung's change in words; large-batch may have kept another optimizer without a larger batch.

    >>> _what("large-batch", {"optimizer": "muon", "batch_size_per_device": 64}, {"batch_size_per_device": 64})
    'Train with Muon, in fewer epochs'
    >>> _what("large-batch", {"optimizer": "lars", "batch_size_per_device": 512}, {"batch_size_per_device": 64})
    'Take larger steps, with LARS'
    """
    optimizer = changes.get("optimizer")
    if rung == "large-batch" and isinstance(optimizer, str):
        name = fmt.clean({"muon": "Muon"}.get(optimizer, optimizer.upper()), 30)
        before, now = _update_size(base), _update_size({**base, **changes})
        return f"{_KEEP[rung]}, with {name}" if now > before else f"Train with {name}, in fewer epochs"
    return _KEEP.get(rung, fmt.clean(rung, 60))


def _update_size(recipe: Mapping[str, Any]) -> float:
    """Images of an update on one device."""
    return math.prod(fmt.number(recipe.get(name)) or 1.0 for name in ("batch_size_per_device", "accumulate"))


def _read(folder: Path, name: str) -> str | None:
    """The text of a file beside ``ladder.json``, or None."""
    if Path(name).name != name:
        return None
    try:
        with open(open_regular(folder / name), encoding="utf-8") as file:
            return file.read(_LARGEST)
    except (GluontuneError, OSError, ValueError):
        return None


def best_row(ladder: Mapping[str, Any]) -> dict[str, Any] | None:
    """The row of the best recipe: the last kept rung's, with the figures of a change that was adopted after it."""
    best, kept = ladder["best"], [row for row in ladder["rungs"] if row["kept"]]
    row = next((row for row in ladder["rungs"] if row["name"] == best.get("name")), kept[-1] if kept else None)
    if row is None or not any(a["adopted"] for a in ladder["revisited"]) or not best.get("samples_per_sec"):
        return row
    taken = ("name", "recipe", "samples_per_sec", "speedup_vs_naive", "speedup_ci95")
    return {**row, **{name: best.get(name) for name in taken}}


def revisited_lines(ladder: Mapping[str, Any]) -> list[str]:
    """A line for each rung that was asked again or left out once, on top of the best recipe.

    >>> revisited_lines({"revisited": [{"rung": "environment", "kind": "asked again", "verdict": "helped",
    ...     "adopted": True, "reason": None, "interaction": None,
    ...     "first": {"median": 1.0, "ci95": [0.97, 1.03]}, "ratio": {"median": 1.3, "ci95": [1.2, 1.4]}}]})
    ['environment, asked again: 1.00× when it was climbed, 1.30× (95 %: 1.20–1.40) on top of the best; adopted']
    """
    lines = []
    for answer in ladder["revisited"]:
        first, ratio = answer["first"], answer["ratio"]
        texts = []
        if first and answer["kind"] == "asked again":
            texts.append(f"{fmt.ratio(first['median'])} when it was climbed")
        if ratio:
            texts.append(f"{fmt.gain(ratio)} on top of the best")
        yes, no = ("adopted", "not adopted") if answer["kind"] == "asked again" else ("it goes", "it stays")
        outcome = yes if answer["adopted"] else no if ratio else answer["reason"] or "not asked"
        text = "; ".join(part for part in (", ".join(texts), fmt.clean(outcome, 200)) if part)
        lines.append(f"{fmt.clean(answer['rung'], 40)}, {fmt.clean(answer['kind'], 20)}: {text}")
    return lines
