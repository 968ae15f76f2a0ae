"""Advice from a ladder: the changes to keep, the file to run, and the rungs that were asked again at the end."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from gluontune.core.errors import GluontuneError
from gluontune.core.events import deciding
from gluontune.core.files import open_regular
from gluontune.report import formatting as fmt

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
            kept.append((_what(answer["rung"]), f"{fmt.ratio(answer['ratio']['median'])} the speed"))
    files: Mapping[str, Any] = found if isinstance(found := ladder.get("files"), Mapping) else {}
    shown = []
    for kind, command in (("script", "python {}"), ("command", "sh {}"), ("yaml", "gluontune train --recipe {}")):
        name = files.get(kind)
        text = _read(folder, name) if folder is not None and isinstance(name, str) else None
        if text is not None:
            shown.append({"name": fmt.clean(name, 40), "command": command.format(name), "text": text})
    reason = fmt.clean(files.get("reason") or "", 200)
    return {
        "kept": kept,
        "files": shown,
        "without": f"There is no best.py: {reason}." if reason else "",
        "next": [] if kept else _next(ladder["rungs"]),
    }


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


def _what(rung: str, changes: Mapping[str, Any] | None = None, base: Mapping[str, Any] | None = None) -> str:
    """A rung's change in words; large-batch may have kept another optimizer without a larger batch.

    >>> _what("large-batch", {"optimizer": "muon", "batch_size_per_device": 64}, {"batch_size_per_device": 64})
    'Train with Muon, in fewer epochs'
    >>> _what("large-batch", {"optimizer": "lars", "batch_size_per_device": 512}, {"batch_size_per_device": 64})
    'Take larger steps, with LARS'
    """
    optimizer = (changes or {}).get("optimizer")
    if rung == "large-batch" and isinstance(optimizer, str):
        name = fmt.clean({"muon": "Muon"}.get(optimizer, optimizer.upper()), 30)
        before, now = _update_size(base or {}, {}), _update_size(base or {}, changes or {})
        return f"{_KEEP[rung]}, with {name}" if now > before else f"Train with {name}, in fewer epochs"
    return _KEEP.get(rung, fmt.clean(rung, 60))


def _update_size(base: Mapping[str, Any], changes: Mapping[str, Any]) -> float:
    """Images of an update on one device."""
    both = {**base, **changes}
    return math.prod(fmt.number(both.get(name)) or 1.0 for name in ("batch_size_per_device", "accumulate"))


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
