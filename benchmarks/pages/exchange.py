"""Figures and the page of ``python -m benchmarks exchange``; reads its document alone."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from gluontune.core import stats
from gluontune.report.study import row, study, write_study
from gluontune.report.svg import SERIES, draw

__all__ = ["exchange_view", "write_exchange_html"]

_SIZE = (4.8, 3.2)
_MARKERS = "osD^"
# Deck 001, "Communication frequency vs. accuracy": accuracy and GPU utilization, percent, at intervals 1 and 8.
_DECK = (
    ("Joule", "57.70", "39.80", "7.90", "35.80"),
    ("Watt", "57.80", "55.10", "4.90", "29.40"),
    ("Age", "74.10", "63.60", "4.00", "24.90"),
    ("MR", "77.20", "50.00", "5.50", "33.70"),
    ("Yelp", "56.90", "20.00", "8.80", "42.90"),
)


def write_exchange_html(document: Mapping[str, Any], path: Path) -> None:
    """One self-contained HTML page.

    Args:
        document: of ``python -m benchmarks exchange``. path: of the HTML file.

    >>> import tempfile
    >>> rate = {"median": 400.0, "ci95": [390.0, 410.0], "n": 9}
    >>> row = {"name": "async, batch 4", "engine": "async", "batch": 4, "samples_per_sec": rate, "reason": "",
    ...        "val_accuracy": None, "async_ratio": None}
    >>> given = {"part": "engines", "recipe": {"dataset": "sample", "net": "mlp"}}
    >>> document = {"given": given, "rows": [row], "created": "2026-01-31T10:00:00", "complete": True, "machine": {}}
    >>> page = Path(tempfile.mkdtemp()) / "exchange.html"
    >>> write_exchange_html(document, page)
    >>> "async" in page.read_text(encoding="utf-8")
    True
    """
    write_study(path, exchange_view(document, "exchange"), document)


def exchange_view(document: Mapping[str, Any], key: str) -> dict[str, Any]:
    """The study of a document of ``python -m benchmarks exchange``."""
    given, engines = document["given"], document["given"]["part"] == "engines"
    title = "Engines at small batches" if engines else "The interval between exchanges"
    rows = document.get("rows", [])
    return study(
        key=key,
        headline=document.get("sentence", "nothing was measured"),
        over=" · ".join([title, given["recipe"]["dataset"], given["recipe"]["net"], document["created"][:16]]),
        warn="" if document["complete"] else "This was interrupted: it shows what was measured until then.",
        figures=_engine_figures(rows) if engines else _interval_figures(rows),
        tables=[_engine_table(rows)] if engines else [_interval_table(rows), _deck_table()],
        recipes={"The base recipe": given["recipe"]},
        machine=document["machine"],
    )


def _lines(
    name: str, rows: Sequence[Mapping[str, Any]], x: str, y: Callable[[Mapping[str, Any]], Any], labels: tuple[str, str]
) -> str | None:
    """One line for each engine; both axes of ``x`` by powers of two."""
    lines: dict[str, list[tuple[float, float]]] = {}
    for entry in rows:
        value = y(entry)
        if value is not None:
            lines.setdefault(entry["engine"], []).append((entry[x], value))
    if not lines:
        return None

    def plot(figure: Any) -> None:
        axes = figure.add_axes((0.14, 0.15, 0.83, 0.82))
        for place, (engine, points) in enumerate(lines.items()):
            axes.plot(*zip(*points), color=SERIES[place], marker=_MARKERS[place % 4], linewidth=2, label=engine)
        ticks = sorted({point[0] for points in lines.values() for point in points})
        axes.set_xscale("log", base=2)
        axes.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
        axes.minorticks_off()
        axes.set_ylim(bottom=0)
        axes.set_xlabel(labels[0])
        axes.set_ylabel(labels[1])
        axes.grid(axis="y")
        axes.legend()

    text = "; ".join(f"{e}: " + ", ".join(f"{a:g} → {b:.1f}" for a, b in p) for e, p in lines.items())
    return draw(name, _SIZE, plot, f"{labels[1]} against {labels[0]}. {text}.")


def _accuracy(entry: Mapping[str, Any]) -> float | None:
    return 100 * entry["val_accuracy"]["median"] if entry["val_accuracy"] else None


def _engine_figures(rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    def rate(entry: Mapping[str, Any]) -> float | None:
        return entry["samples_per_sec"]["median"] if entry["samples_per_sec"] else None

    axis = "images of one rank in a step"
    return [
        {"title": "Throughput", "caption": "", "svg": _lines("rate", rows, "batch", rate, (axis, "images a second"))},
        {"title": "Accuracy", "caption": "",
         "svg": _lines("accuracy", rows, "batch", _accuracy, (axis, "validation accuracy, percent"))},
    ]  # fmt: skip


def _interval_figures(rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    def used(entry: Mapping[str, Any]) -> float | None:
        return 100 * entry["utilization"]["median"] if entry["utilization"] else None

    axis = "steps between exchanges"
    caption = "Speed, in percent of that of ranks which exchange nothing: the share of time that goes to training."
    return [
        {"title": "Accuracy", "caption": "",
         "svg": _lines("accuracy", rows, "every", _accuracy, (axis, "validation accuracy, percent"))},
        {"title": "Utilization", "caption": caption,
         "svg": _lines("used", rows, "every", used, (axis, "time spent training, percent"))},
    ]  # fmt: skip


def _engine_table(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    return {
        "title": "By batch size",
        "head": ["contender", "images a second", "async ÷ it", "accuracy %"],
        "rows": [row(e["name"], _rate(e), _ratio(e["async_ratio"], 1, 2), _percent(e), why=e["reason"]) for e in rows],
        "caption": "Medians with 95 % intervals of interleaved slices; accuracies at equal epochs.",
    }


def _interval_table(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    cells = [
        row(
            e["name"], _rate(e), _ratio(e["utilization"], 100, 0),
            "" if e["cpu_pct"] is None else f"{e['cpu_pct']:.0f}", _percent(e), why=e["reason"],
        )
        for e in rows
    ]  # fmt: skip
    head = ["contender", "images a second", "time spent training %", "CPU %", "accuracy %"]
    return {"title": "By interval", "head": head, "rows": cells, "caption": ""}


def _deck_table() -> dict[str, Any]:
    head = ["task", "accuracy %, every 1", "every 8", "GPU utilization %, every 1", "every 8"]
    return {
        "title": "The seed deck's figures (001)",
        "head": head,
        "rows": [row(*cells) for cells in _DECK],
        "caption": "IBM's text classifiers on GPUs: other data, nets and machine; the form is what compares.",
    }


def _rate(entry: Mapping[str, Any]) -> str:
    rate = entry["samples_per_sec"]
    return stats.said(rate).replace("-", "–") if rate else "failed"


def _ratio(value: Mapping[str, Any] | None, scale: float, digits: int) -> str:
    if not value:
        return ""
    return stats.said(value, f".{digits}f", scale).replace("-", "–")


def _percent(entry: Mapping[str, Any]) -> str:
    return f"{100 * entry['val_accuracy']['median']:.1f}" if entry["val_accuracy"] else ""
