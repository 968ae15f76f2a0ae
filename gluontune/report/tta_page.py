"""The page of a time to accuracy: its tiles, figures and tables, and the files of a finished document."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from gluontune.files import write_json
from gluontune.report import tta_figures, words
from gluontune.report.shell import write_study
from gluontune.report.study import over, row, study
from gluontune.report.tta import repeat_cells, summary_lines, titles, tta_sentence

__all__ = ["cost_entries", "finish_tta", "tta_view"]


def cost_entries(document: Mapping[str, Any], label: str = "") -> list[dict[str, Any]]:
    """Points of the cost plot: one for each recipe of a document that reached its target."""
    entries = []
    for name, found in document["summary"].items():
        title = ", ".join(part for part in (label, titles(document)[name]) if part)
        joules = found["joules"]["median"] if found["joules"] else None
        seconds = found["wall_seconds"]["median"]
        entries.append({"name": title, "seconds": seconds, "usd": found["usd"], "joules": joules})
    return entries


def finish_tta(
    document: dict[str, Any], folder: str | Path | None, beside: Sequence[tuple[str, Mapping[str, Any]]] = ()
) -> None:
    """Give the document its sentence; write ``tta.json`` and ``tta.html`` where there is a folder.

    Args:
        beside: ``(label, document)`` of other results to show on the cost plot.

    >>> times = {"repeats": 3, "reached": 0, "failed": 3, "median": None, "ci95": None}
    >>> this = {"train_seconds": times, "wall_seconds": times, "not_reached": 3, "crashed": 0, "usd": None,
    ...         "joules": None}
    >>> one = {"recipe": "this", "seed": 0, "status": "ok", "first": None, "sustained": None, "reason": None,
    ...        "val_accuracy": [0.71]}
    >>> document = {"kind": "tta", "schema_version": 1, "given": {"target": 0.8}, "summary": {"this": this},
    ...             "done": [one], "ratio": None, "parity": None}
    >>> finish_tta(document, None)  # with a folder: tta.json and tta.html, too
    >>> document["sentence"]
    '80.0 % was not reached in any of 3 repeats'
    """
    document["sentence"] = tta_sentence(document)
    if folder is None:
        return
    write_json(Path(folder) / "tta.json", words.finite(document))
    write_study(Path(folder) / "tta.html", tta_view(document, "tta", beside), document)


def tta_view(
    document: Mapping[str, Any], key: str, beside: Sequence[tuple[str, Mapping[str, Any]]] = ()
) -> dict[str, Any]:
    """The study of a finished document; ``beside`` as for :func:`finish_tta`."""
    named = titles(document)
    groups = {
        named[name]: [r for r in document["done"] if r["recipe"] == name] for name in document["given"]["recipes"]
    }
    costs = cost_entries(document)
    for label, other in beside:
        costs += cost_entries(other, label)
    recipes = document["given"]["recipes"]
    return study(
        key=key,
        headline=tta_sentence(document),
        over=over(document, recipes["this"]["net"], f"{len(document['seeds'])} repeats"),
        warn="" if document["complete"] else "This was interrupted: it shows the repeats that were finished.",
        remarks=[*summary_lines(document), document["rule"]],
        tiles=_tiles(document),
        figures=[
            {
                "title": "Accuracy against time",
                "caption": "Thin: each repeat. Thick: their median. Band: from the lowest to the highest.",
                "svg": tta_figures.accuracy_band("band", groups, document["given"]["target"]),
            },
            {
                "title": "The repeats",
                "caption": "Dots: first crossing. Bar: median. Crosses: repeats that ended "
                "without reaching the target.",
                "svg": tta_figures.repeats("repeats", groups),
            },
            {
                "title": "Cost against time",
                "caption": "Lower left is better. The time counts start, warm-up and "
                "validation, too, because they are paid.",
                "svg": tta_figures.cost_against_time("cost", costs),
            },
        ],
        tables=[_repeats_table(document)],
        recipes={f"Recipe: {named[name]}": recipe for name, recipe in recipes.items()},
        machine=document["machine"],
    )


def _tiles(document: Mapping[str, Any]) -> list[tuple[str, str, str]]:
    found = document["summary"]["this"]
    times, wall = found["train_seconds"], found["wall_seconds"]
    bounds = f"95 %: {times['ci95'][0]:.1f}–{times['ci95'][1]:.1f} s" if times["ci95"] else ""
    tiles = [
        ("to the target", words.duration(times["median"]), bounds),
        ("all included", words.duration(wall["median"]), "start, warm-up, validation"),
        (
            "reached",
            f"{times['reached']} of {times['repeats']}",
            f"target {words.accuracy(document['given']['target'])}",
        ),
    ]
    if times["cv_pct"] is not None:
        tiles.append(("varies by", f"{times['cv_pct']:.1f} %", "coefficient of variation"))
    if found["usd"] is not None:
        tiles.append(("cost", f"${found['usd']:.4f}", f"at ${document['price']['usd_per_hour']:g} an hour"))
    return tiles


def _repeats_table(document: Mapping[str, Any]) -> dict[str, Any]:
    rows = []
    for r in document["done"]:
        spent = r["first"] or r["spent"]
        apart = (r["start_seconds"], r["warmup_seconds"], spent["eval_seconds"])
        rows.append(row(*repeat_cells(r, titles(document)), *(f"{seconds:.1f}" for seconds in apart), why=r["reason"]))
    head = ["Recipe", "Seed", "Status", "Epochs", "Training s", "Sustained s", "All s", "Final accuracy"]
    return {
        "title": "The repeats",
        "head": [*head, "Start s", "Warm-up s", "Validation s"],
        "rows": rows,
        "caption": "Training is what counts. Sustained: from there to the end of the run no validation fell below "
        "the target. All: with start, warm-up and validation, which also stand apart on the right.",
    }
