"""The page of a benchmark's document, whichever: one table for each part, bars of what was measured."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from gluontune import stats
from gluontune.report import plain, words
from gluontune.report.factor_figures import set_bars
from gluontune.report.study import row, study

__all__ = ["benchmark_view"]

_WORDS = {"images_per_sec", "samples_per_sec"}
_HIDDEN = {"name", "part", "peer", "status", "reason", "note", "info", "sizes", "recipe"}


def benchmark_view(document: Mapping[str, Any], key: str, label: str = "benchmark") -> dict[str, Any]:
    """The study of a document of ``gluontune bench``."""
    groups = _groups(document)
    tables: list[dict[str, Any]] = []
    figures: list[dict[str, Any]] = []
    for title, rows in groups.items():
        tables.append(_table(title, rows))
        unit = next((k for k in rows[0] if k in _WORDS), None) if rows else None
        if unit is not None:
            bars = [_bar(r, unit) for r in rows]
            figures.append({
                "title": title or words.clean(unit.replace("_", " "), 60),
                "svg": set_bars(f"bars{len(figures)}", bars, unit.replace("_", " ")),
                "caption": "Lines: 95 % intervals over interleaved rounds. What failed is written.",
            })  # fmt: skip
    said = plain.pairs(document.get("conditions") or {})
    return study(
        key=key,
        headline=_headline(document, label),
        over=" · ".join(f"{name} {value}" for name, value in said),
        remarks=_remarks(document),
        figures=figures,
        tables=tables,
        machine=document.get("machine") or {},
    )


def _groups(document: Mapping[str, Any]) -> dict[str, list[Mapping[str, Any]]]:
    """Rows by part; ``rows`` of the document, or those of its ``parts``."""
    found: dict[str, list[Mapping[str, Any]]] = {}
    for r in document.get("rows") or ():
        found.setdefault(_part(r), []).append(r)
    if not found:
        for name, part in document["parts"].items():
            found[name] = list(part["rows"])
    return found


def _part(r: Mapping[str, Any]) -> str:
    if r.get("net") and r.get("batch_size"):
        return f"{r['net']}, batch {r['batch_size']}"
    return str(r.get("part") or "")


def _headline(document: Mapping[str, Any], label: str) -> str:
    ours = document.get("ours")
    ratios = ours.get("ratio_to", {}) if isinstance(ours, Mapping) else {}
    said = [f"{words.ratio(ratio['median'])} {peer}" for peer, ratio in ratios.items()]
    if said and isinstance(ours, Mapping):
        return f"{ours['name']}: {', '.join(said)}"
    best = document.get("best")
    if isinstance(best, Mapping) and best.get("ratio_to_hybridized"):
        return f"{best['name']}: {words.ratio(best['ratio_to_hybridized']['median'])} hybridized float32"
    return label if label == "benchmark" else f"benchmark {label}"


def _remarks(document: Mapping[str, Any]) -> list[str]:
    remarks = []
    for name, part in (document.get("parts") or {}).items():
        if "holds" in part:
            remarks.append(f"{name}: {part['bar']}: {'holds' if part['holds'] else 'does not hold'}")
    notes = {(r.get("peer"), r["note"]) for r in document.get("rows") or () if r.get("note")}
    return remarks + [f"{peer}: {note}" for peer, note in sorted(notes, key=str)]


def _bar(r: Mapping[str, Any], unit: str) -> dict[str, Any]:
    value = r.get(unit)
    part = "cumulative" if r.get("peer") in (None, "gluontune") else "other"
    return {"name": str(r["name"]), "part": part, "value": value, "lost": "" if value else str(r.get("status"))}


def _table(title: str, rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    columns = list(dict.fromkeys(
        k for r in rows for k, v in r.items() if k not in _HIDDEN and _cell(v) and _part(r) != str(v)
    ))  # fmt: skip
    columns = [k for k in columns if len({plain.key(r.get(k)) for r in rows}) > 1 or len(rows) == 1][:7]
    shown = []
    for r in rows:
        status = r.get("status", "ok")
        why = r.get("reason") or ""
        cells = [_cell(r.get(k)) or "—" for k in columns]
        told = why if status == "ok" or why.startswith(status) else f"{status}: {why}".rstrip(": ")
        shown.append(row(r["name"], *cells, why=told))
    head = ["", *(k.replace("_", " ") for k in columns)]
    return {"title": title or "The rows", "head": head, "rows": shown, "caption": "In brackets: 95 % intervals."}


def _cell(value: Any) -> str:
    """A figure as words; nothing for what does not fit a cell.

    >>> _cell({"median": 1234.5, "ci95": [1200.0, 1300.0], "n": 9}), _cell(0.5), _cell([1, 2])
    ('1,234 (1,200–1,300)', '0.5', '')
    """
    if isinstance(value, Mapping):
        if "median" in value:
            low, high = stats.bounds(value) or (None, None)
            around = f" ({words.rate(low)}–{words.rate(high)})" if low is not None else ""
            return f"{words.rate(value['median'])}{around}"
        inner = {k: v for k, v in value.items() if words.number(v) is not None and k != "n"}
        if "speedup" in value:
            return _cell(value["speedup"])
        return " / ".join(f"{k} {words.rate(v)}" for k, v in inner.items()) if inner else ""
    if isinstance(value, (list, tuple)) or value is None or value == "":
        return ""
    return f"{value:.3g}" if isinstance(value, float) and abs(value) < 1000 else plain.said(value)
