"""Figures of studies: bars by set, interactions of pairs, curves with a band, repeats, cost against time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from gluontune.report import formatting as fmt
from gluontune.report.figures import curve_axes
from gluontune.report.svg import INK, SERIES, WIDTH, dot, draw, draw_rows, label, whisker

_COLOURS = (4, 5, 2, 6, 1, 3)
_MARKERS = "osD^vP"
_GRID = 120  # places in time at which the band is read


def set_bars(name: str, values: Sequence[Mapping[str, Any]], unit: str) -> str | None:
    """Horizontal bars in two groups, cumulative and leave-one-out; a text for sets that did not converge.

    ``values`` are ``{"name", "part", "value": {"median", "ci95"} or None, "lost"}``.

    Source of the form: Coleman et al., *DAWNBench*, 2017, Figure 3.
    """
    if not any(entry["value"] for entry in values):
        return None
    top = max(max(_bounds(e["value"])) for e in values if e["value"])
    texts = [f"{e['name']}: {_text(e)}" for e in values]

    def bar(axes: Any, place: int, entry: Mapping[str, Any]) -> None:
        value = entry["value"]
        if value is None:
            axes.text(0, place, f" {entry['lost']}", va="center", style="italic", color=INK["muted"])
            return
        low, high = _bounds(value)
        axes.barh(place, value["median"], height=0.44, color=SERIES[4 if entry["part"] == "cumulative" else 2])
        if high > low:
            whisker(axes, place, value["median"], (low, high))
        axes.text(high + 0.02 * top, place, _text(entry), va="center")

    rows = [(fmt.clean(entry["name"], 54), entry) for entry in values]
    return draw_rows(name, rows, bar, unit, f"{unit}: {'; '.join(texts)}.", limits=(0, 1.25 * top))


def _bounds(value: Mapping[str, Any]) -> Sequence[float]:
    return value["ci95"] or (value["median"], value["median"])


def _text(entry: Mapping[str, Any]) -> str:
    value = entry["value"]
    return entry["lost"] if value is None else fmt.rate(value["median"])


def interaction_dots(name: str, rows: Sequence[Mapping[str, Any]]) -> str | None:
    """Measured ÷ promised gain of each pair of factors, with its interval: 1 if the gains multiply."""
    if not (shown := [r for r in rows if r["ratio"]]):
        return None
    titles = [" × ".join(r["factors"]) if len(r["factors"]) == 2 else "all of them" for r in shown]
    texts = [f"{t} {fmt.gain(r['ratio'])}" for t, r in zip(titles, shown)]
    ends = [1.0, *(end for r in shown for end in _bounds(r["ratio"]))]
    room = max(0.1, max(ends) - min(ends))

    def pair(axes: Any, place: int, r: Mapping[str, Any]) -> None:
        colour = SERIES[{"more than promised": 2, "less than promised": 5}.get(r["verdict"], 7)]
        dot(axes, place, r["ratio"]["median"], _bounds(r["ratio"]), colour)

    return draw_rows(
        name, [(fmt.clean(title, 60), r) for title, r in zip(titles, shown)], pair,
        "measured ÷ promised (1: the gains multiply)", f"Interactions. {'; '.join(texts)}.",
        limits=(min(ends) - 0.06 * room, max(ends) + 0.25 * room), line=1.0,
    )  # fmt: skip


def accuracy_band(name: str, groups: Mapping[str, Sequence[Mapping[str, Any]]], target: float) -> str | None:
    """Validation accuracy against counted seconds: every repeat, their median, and the band between them.

    ``groups`` are the repeats (rows of ``tta.json``) by the recipe's name.
    """
    shown = {title: [r for r in rows if r["val_accuracy"]] for title, rows in groups.items()}
    shown = {title: rows for title, rows in shown.items() if rows}
    if not shown:
        return None
    texts = []
    for title, rows in shown.items():
        ends = [r["val_accuracy"][-1] for r in rows]
        reached = f"{fmt.accuracy(min(ends))} to {fmt.accuracy(max(ends))}"
        texts.append(f"{fmt.clean(title, 40)} ended at {reached} in {len(rows)} repeats")

    def plot(figure: Any) -> None:
        axes = curve_axes(figure, (0.145, 0.14, 0.83, 0.83))
        handles = []
        for place, (title, rows) in enumerate(shown.items()):
            colour = SERIES[_COLOURS[place % 6]]
            for r in rows:
                marks = {"marker": _MARKERS[place % 6], "markersize": 3} if len(r["train_elapsed"]) < 20 else {}
                axes.plot(r["train_elapsed"], _pct(r), color=colour, linewidth=0.8, alpha=0.55, **marks)
            if len(rows) > 1:
                times, low, middle, high = band(rows)
                axes.fill_between(times, low, high, color=colour, alpha=0.2, linewidth=0)
                handles += axes.plot(times, middle, color=colour, linewidth=2.0, label=label(title))
            else:
                style = {"color": colour, "linewidth": 2.0, "marker": _MARKERS[place % 6], "label": label(title)}
                handles += axes.plot(rows[0]["train_elapsed"], _pct(rows[0]), **style)
        axes.axhline(100 * target, color=INK["muted"], linestyle=(0, (3, 3)), linewidth=1)
        axes.text(0.01, 100 * target, f"target {fmt.accuracy(target)}", va="bottom", color=INK["muted"],
                  transform=axes.get_yaxis_transform())  # fmt: skip
        axes.set_xlim(left=0)
        axes.legend(handles=handles, loc="lower right")

    return draw(name, (WIDTH, 3.9), plot, f"Validation accuracy against training time. {'; '.join(texts)}.")


def band(rows: Sequence[Mapping[str, Any]]) -> tuple[Any, Any, Any, Any]:
    """Lowest, median and highest accuracy of several runs over their common time, in percent, linear in between."""
    begin = max(r["train_elapsed"][0] for r in rows)
    end = min(r["train_elapsed"][-1] for r in rows)
    times = np.linspace(begin, max(begin, end), _GRID)
    curves = np.array([np.interp(times, r["train_elapsed"], _pct(r)) for r in rows])
    return times, curves.min(axis=0), np.median(curves, axis=0), curves.max(axis=0)


def repeats(name: str, groups: Mapping[str, Sequence[Mapping[str, Any]]]) -> str | None:
    """A dot for each repeat's time, a cross for each that failed, mean and interval of the median."""
    if not any(r["first"] for rows in groups.values() for r in rows):
        return None
    texts = []
    for title, rows in groups.items():
        times = [r["first"]["train_seconds"] for r in rows if r["first"]]
        between = f"{fmt.duration(min(times))} to {fmt.duration(max(times))}" if times else "never"
        texts.append(f"{fmt.clean(title, 40)}: {between}, {len(times)} of {len(rows)} reached it")
    ends = [(r["first"] or r["spent"])["train_seconds"] for rows in groups.values() for r in rows]

    def dots(axes: Any, place: int, rows: Sequence[Mapping[str, Any]]) -> None:
        times = [r["first"]["train_seconds"] for r in rows if r["first"]]
        lost = [r["spent"]["train_seconds"] for r in rows if not r["first"]]
        colour, ink = SERIES[_COLOURS[place % 6]], {"color": INK["fg"], "linestyle": "none", "clip_on": False}
        axes.plot(times, [place] * len(times), color=colour, marker="o", linestyle="none", alpha=0.8)
        axes.plot(lost, [place] * len(lost), marker="x", markersize=8, **ink)
        if times:
            axes.plot([float(np.median(times))], [place], marker="|", markersize=22, **ink)

    return draw_rows(
        name, [(fmt.clean(title, 44), rows) for title, rows in groups.items()], dots,
        "seconds to the target (cross: ended without it)", f"Repeats. {'; '.join(texts)}.",
        limits=(0, 1.08 * max(ends)),
    )  # fmt: skip


def cost_against_time(name: str, entries: Sequence[Mapping[str, Any]]) -> str | None:
    """Dollars (or, without prices, joules) to the target against seconds, for each recipe and machine that has them."""
    unit = "usd" if any(e.get("usd") is not None for e in entries) else "joules"
    shown = [e for e in entries if e.get(unit) is not None and e.get("seconds") is not None]
    if not shown:
        return None
    texts = [f"{fmt.clean(e['name'], 40)}: {e[unit]:.3g} {unit} in {fmt.duration(e['seconds'])}" for e in shown]
    best = {min(shown, key=lambda e: e[key])["name"] for key in (unit, "seconds")}

    def plot(figure: Any) -> None:
        axes = figure.add_axes((0.17, 0.17, 0.78, 0.78))
        for place, e in enumerate(shown):
            colour = SERIES[_COLOURS[place % 6]]
            size = 10 if e["name"] in best else 7
            axes.plot([e["seconds"]], [e[unit]], color=colour, marker=_MARKERS[place % 6], markersize=size)
            notes = [w for w, k in (("cheapest", unit), ("fastest", "seconds"))
                     if e[k] == min(x[k] for x in shown)]  # fmt: skip
            text = fmt.clean(e["name"], 30) + (f" ({', '.join(notes)})" if notes and len(shown) > 1 else "")
            axes.annotate(text, (e["seconds"], e[unit]), textcoords="offset points", xytext=(6, 8))
        axes.set_xlim(0, 1.6 * max(e["seconds"] for e in shown))
        axes.set_ylim(0, 1.25 * max(e[unit] for e in shown))
        axes.set_xlabel("seconds to the target, all included (median)")
        axes.set_ylabel("US dollars" if unit == "usd" else "joules")
        axes.grid()

    return draw(name, (WIDTH, 3.6), plot, f"Cost against time to the target. {'; '.join(texts)}.")


def _pct(r: Mapping[str, Any]) -> list[float]:
    return [100 * value for value in r["val_accuracy"]]
