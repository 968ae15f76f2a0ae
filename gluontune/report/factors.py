"""Factor analysis for the reader: a sentence, terminal tables, and a page with the deck's kind of figure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from gluontune.report import formatting as fmt
from gluontune.report.study import figure, finish, row, study, table, text_tables
from gluontune.report.study_figures import interaction_dots, set_bars


def factors_sentence(document: Mapping[str, Any]) -> str:
    """The result in a line: the gain of all factors, harmful factors, and gains that do not multiply."""
    if "methods" in document:
        return _methods_sentence(document)
    by_name = {tuple(s["set"]): s for s in document["sets"]}
    names = tuple(factor["name"] for factor in document.get("factors", ()))
    whole = (by_name.get(names) or {}).get("throughput") or {}
    parts = []
    if names and whole.get("ratio"):
        parts.append(f"all {len(names)} factors: {fmt.gain(whole['ratio'])} the base's throughput")
    if hurts := [r["factor"] for r in document["leave_one_out"].get("throughput", ()) if r["verdict"] == "hurts"]:
        parts.append(f"faster without {', '.join(hurts)}")
    together = next((r for r in document["interactions"].get("throughput", ()) if len(r["factors"]) > 2), None)
    if together and together["promised"]:
        parts.append(f"their gains alone promised {fmt.ratio(together['promised']['median'])}")
    if lost := [s["name"] for s in document["sets"] for t in s["tta"] if not t["converged"]]:
        parts.append(f"{len(set(lost))} sets did not converge to a target")
    return "; ".join(parts) or "nothing was measured"


def _methods_sentence(document: Mapping[str, Any]) -> str:
    rows, together = document["methods"], document["together"]
    target = fmt.accuracy(document["given"]["targets"][0])
    pays = [f"{r['name']} {fmt.ratio(r['ratio']['median'])}" for r in rows if r["verdict"] == "pays"]
    parts = [f"{len(pays)} of {len(rows)} methods pay to {target}" + (f": {', '.join(pays)}" if pays else "")]
    if better := [f"{r['name']} {_points(r['points'])}" for r in rows if r["verdict"] == "more accurate"]:
        parts.append(f"more accurate in the same epochs: {', '.join(better)}")
    if together["ratio"]:
        parts.append(f"{' + '.join(together['methods'])} together: {fmt.gain(together['ratio'])}")
    if lost := [r["name"] for r in rows if r["verdict"] in ("did not converge", "failed")]:
        parts.append(f"not there: {', '.join(lost)}")
    return "; ".join(parts)


def _points(found: Mapping[str, Any] | None) -> str:
    """
    >>> _points({"mean": 0.012, "ci95": [-0.003, 0.027]}), _points({"mean": -0.01, "ci95": None}), _points(None)
    ('+1.2 points (95 %: -0.3–+2.7)', '-1.0 points', '')
    """
    if found is None:
        return ""
    around = f" (95 %: {100 * found['ci95'][0]:+.1f}–{100 * found['ci95'][1]:+.1f})" if found["ci95"] else ""
    return f"{100 * found['mean']:+.1f} points{around}"


def factors_tables(document: Mapping[str, Any]) -> list[Any]:
    """The sets, and the gains of pairs against the product of their factors' gains, for a terminal.

    Args:
        document: a ``factors.json``.

    >>> from rich.console import Console
    >>> ratio = {"median": 2.0, "ci95": [1.9, 2.1], "n": 9}
    >>> rate = {"median": 500.0, "ci95": [490.0, 510.0], "n": 9}
    >>> whole = {"name": "records", "set": ["records"], "parts": ["cumulative"], "tta": [],
    ...          "throughput": {"samples_per_sec": rate, "ratio": ratio, "status": "ran", "reason": None}}
    >>> document = {"given": {"targets": []}, "sets": [whole], "leave_one_out": {}, "interactions": {}}
    >>> Console(width=80).print(*factors_tables(document))
    The sets
    Factors switched on        Part  img/s                × base
    records              cumulative    500  2.0× (95 %: 1.9–2.1)
    """
    return text_tables(_tables(document))


def _tables(document: Mapping[str, Any]) -> list[dict[str, Any]]:
    tables = [_methods_table(document)] if "methods" in document else []
    tables.append(_sets_table(document))
    for title, found in document["leave_one_out"].items():
        rows = [row(r["factor"], fmt.gain(r["ratio"]), r["verdict"]) for r in found if r["ratio"]]
        head = ["Factor", "Brings on top of the rest", "Verdict"]
        tables.append(table(f"Leave one out: {title}", head, rows, _BRINGS))
    for title, found in document["interactions"].items():
        names = [" × ".join(r["factors"]) if len(r["factors"]) == 2 else "all" for r in found]
        rows = [
            row(name, *(fmt.gain(r[key]) for key in ("promised", "measured", "ratio")), r["verdict"])
            for name, r in zip(names, found)
        ]
        head = ["Factors", "Promised", "Measured", "Measured ÷ promised", "Verdict"]
        tables.append(table(f"Interactions: {title}", head, rows, _COMPOSED))
    return [found for found in tables if found["rows"]]


_BRINGS = "Gain of all factors ÷ gain of all without this one: above 1 it helps on top of the others."
_COMPOSED = (
    "Promised: the product of the gains of each factor alone. Below 1 in the fourth column they get in each other's "
    "way; above 1 one makes room for the other."
)
_SOONER = (
    "The base's time to the accuracy ÷ the time with the method, by seed: above 1 it is there sooner. Times are "
    "known by the epoch; a method that is more accurate after the same epochs needs fewer of them."
)


def _methods_table(document: Mapping[str, Any]) -> dict[str, Any]:
    together = document["together"]
    found = [*document["methods"], {**together, "name": " + ".join(together["methods"]), "reason": None}]
    rows = [
        row(r["name"], fmt.gain(r["ratio"]), _points(r["points"]), r["verdict"], why=r["reason"])
        for r in found
        if r["name"] and r["verdict"] != "not known"
    ]
    return table("The methods", ["Method", "Base ÷ method", "Accuracy at the end", "Verdict"], rows, _SOONER)


def _sets_table(document: Mapping[str, Any]) -> dict[str, Any]:
    targets = document["given"]["targets"]
    rows = []
    for entry in document["sets"]:
        speed = entry["throughput"] or {}
        rate, times = speed.get("samples_per_sec"), {found["target"]: found for found in entry["tta"]}
        cells = [entry["name"], ", ".join(entry["parts"]), fmt.rate(rate["median"] if rate else None)]
        cells += [fmt.gain(speed.get("ratio")), *(_time(times.get(target)) for target in targets)]
        reasons = [speed["reason"]] if speed.get("reason") else []
        reasons += [reason for found in entry["tta"][:1] for reason in found["reasons"]]
        rows.append(row(*cells, why="; ".join(reasons)))
    head = ["Factors switched on", "Part", "img/s", "× base", *(f"to {fmt.accuracy(target)}" for target in targets)]
    caption = "img/s drifts with the machine; × base was measured in turn with the base, and counts."
    if targets:
        caption += " DNC: did not converge to the target within the run; in brackets the best accuracy."
    return table("The sets", head, rows, caption)


def _time(found: Mapping[str, Any] | None) -> str:
    if found is None:
        return "—"
    if not found["converged"]:
        share = f"{found['runs'] - found['reached']} of {found['runs']} " if found["runs"] > 1 else ""
        return f"{share}DNC ({fmt.accuracy(found['best_accuracy'])})"
    return fmt.duration(found["seconds"]["median"])


def finish_factors(document: dict[str, Any], folder: str | Path) -> None:
    """Give the document of :func:`gt.ladder.factors` its sentence; write ``factors.json`` and ``factors.html``."""
    finish(document, folder, "factors", factors_sentence, factors_view)


def factors_view(document: Mapping[str, Any], key: str) -> dict[str, Any]:
    """The study of a document of ``gluontune factors``."""
    given = document["given"]
    figures: list[dict[str, Any]] = []
    bars = "Above: factors switched on one after the other. Below: all but one. DNC: did not converge."
    if "methods" in document:
        bars = "Each method alone; below, the best together. DNC: did not converge."
    for title, unit, values in _measures(document):
        figures.append(figure(f"Factor by factor: {title}", set_bars(f"bars-{len(figures)}", values, unit), bars))
    apart = "Left of the line: their joint gain is less than the product of their gains alone."
    for title, found in document["interactions"].items():
        svg = interaction_dots(f"pairs-{len(figures)}", found)
        figures.append(figure(f"Do they compose? {title}", svg, apart))
    return study(
        key=key,
        headline=factors_sentence(document),
        over=f"{document['dataset']['name']} · {given['recipe']['net']} · {given['pace']} pace",
        of=document,
        remarks=[
            *(f"{factor['name']}: {factor['sentence']}" for factor in document.get("factors", ())),
            *(f"{name} was not analysed: {reason}" for name, reason in document.get("skipped", {}).items()),
            *document.get("notes", ()),
        ],
        figures=figures,
        tables=_tables(document),
        recipes={"The base recipe": given["recipe"]},
    )


def _measures(document: Mapping[str, Any]) -> list[tuple[str, str, list[dict[str, Any]]]]:
    """The values of the bars: times to each target, if there are targets, and throughput."""
    shown = _shown(document["sets"])
    found: list[tuple[str, str, list[dict[str, Any]]]] = []
    for place, target in enumerate(document["given"]["targets"]):
        values = []
        for name, part, entry in shown:
            if not entry["tta"]:
                continue
            seen = entry["tta"][place]
            lost = "" if seen["converged"] else f"DNC ({fmt.accuracy(seen['best_accuracy'])})"
            values.append({"name": name, "part": part, "value": None if lost else seen["seconds"], "lost": lost})
        found.append((f"time to {fmt.accuracy(target)}", "seconds of training", values))
    values = []
    for name, part, entry in shown:
        if speed := entry["throughput"]:
            lost = "failed" if speed["status"] == "failed" else ""
            values.append({"name": name, "part": part, "value": speed["ratio"], "lost": lost})
    found.append(("throughput", "× the base's throughput", values))
    return [measure for measure in found if measure[2]]


def _shown(sets: Sequence[Mapping[str, Any]]) -> list[tuple[str, str, Mapping[str, Any]]]:
    """Cumulative sets from the base on, named by their last factor, then all but one; of methods, all sets."""
    if any("method" in s["parts"] for s in sets):
        return [(s["name"], "leave one out" if "together" in s["parts"] else "cumulative", s) for s in sets]
    cumulative = sorted((s for s in sets if {"base", "cumulative"} & set(s["parts"])), key=lambda s: len(s["set"]))
    found = [(f"+ {s['set'][-1]}" if s["set"] else "base", "cumulative", s) for s in cumulative]
    without = {part: s for s in sets for part in s["parts"] if part.startswith("without ")}
    largest: list[str] = max((s["set"] for s in sets), key=len, default=[])
    rest = [(f"all − {name}", "leave one out", without[f"without {name}"]) for name in largest if without]
    return found + rest
