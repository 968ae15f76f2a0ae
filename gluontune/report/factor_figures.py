"""Figures of a factor analysis: bars by set, as in the seed deck's Figure 3, and how pairs compose."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from gluontune.report import words
from gluontune.report.svg import INK, SERIES, draw

__all__ = ["interaction_dots", "set_bars"]

_WIDTH = 4.8
_ROW = 30  # points for each bar and its name


def set_bars(name: str, values: Sequence[Mapping[str, Any]], unit: str) -> str | None:
    """Horizontal bars in two groups, cumulative and leave-one-out; what did not converge is written, not drawn.

    Args:
        values: ``{"name", "part", "value": {"median", "ci95"} or None, "lost"}``.
        unit: of the values.

    Source of the form: Coleman et al., *DAWNBench*, 2017, Figure 3.
    """
    if not any(entry["value"] for entry in values):
        return None
    top = max(max(_bounds(e["value"])) for e in values if e["value"])
    said = [f"{e['name']}: {_text(e)}" for e in values]

    def plot(figure: Any) -> None:
        height = figure.get_size_inches()[1] * 72
        axes = figure.add_axes((0.375, 44 / height, 0.605, 1 - 52 / height))
        place, before = 0.0, values[0]["part"]
        ticks = []
        for entry in values:
            if entry["part"] != before:
                place, before = place + 0.6, entry["part"]
            ticks.append((place, entry["name"]))
            value = entry["value"]
            if value is None:
                axes.text(0, place, f" {entry['lost']}", va="center", style="italic", color=INK["muted"])
            else:
                colour = SERIES[4 if entry["part"] == "cumulative" else 2]
                axes.barh(place, value["median"], height=0.62, color=colour)
                low, high = _bounds(value)
                if high > low:
                    error = [[max(0.0, value["median"] - low)], [max(0.0, high - value["median"])]]
                    axes.errorbar(value["median"], place, xerr=error, color=INK["fg"], capsize=3, fmt="none")
                axes.text(high + 0.02 * top, place, _text(entry), va="center")
            place += 1
        axes.set_yticks([at for at, _ in ticks], [words.clean(text, 24) for _, text in ticks])
        axes.set_ylim(place - 0.4, -0.6)
        axes.set_xlim(0, 1.25 * top)
        axes.set_xlabel(unit)
        axes.grid(axis="x")

    return draw(name, (_WIDTH, (_ROW * len(values) + 80) / 72), plot, f"{unit}: {'; '.join(said)}.")


def _bounds(value: Mapping[str, Any]) -> tuple[float, float]:
    low, high = value["ci95"] or (value["median"], value["median"])
    return low, high


def _text(entry: Mapping[str, Any]) -> str:
    value = entry["value"]
    return entry["lost"] if value is None else words.rate(value["median"])


def interaction_dots(name: str, rows: Sequence[Mapping[str, Any]]) -> str | None:
    """Measured ÷ promised for each pair of factors, with its interval: 1 means that they compose."""
    shown = [r for r in rows if r["ratio"]]
    if not shown:
        return None
    titles = [" × ".join(r["factors"]) if len(r["factors"]) == 2 else "all of them" for r in shown]
    said = [f"{t} {words.ratio_with_interval(r['ratio']['median'], r['ratio']['ci95'])}" for t, r in zip(titles, shown)]

    def plot(figure: Any) -> None:
        height = figure.get_size_inches()[1] * 72
        axes = figure.add_axes((0.04, 44 / height, 0.92, 1 - 52 / height))
        ends = [1.0] + [end for r in shown for end in (r["ratio"]["ci95"] or [r["ratio"]["median"]])]
        room = max(0.1, max(ends) - min(ends))
        axes.set_xlim(min(ends) - 0.06 * room, max(ends) + 0.25 * room)
        for place, (title, r) in enumerate(zip(titles, shown)):
            ratio, verdict = r["ratio"], r["verdict"]
            low, high = ratio["ci95"] or [ratio["median"]] * 2
            colour = SERIES[{"more than promised": 2, "less than promised": 5}.get(verdict, 7)]
            axes.text(axes.get_xlim()[0], place - 0.18, words.clean(title, 60), va="bottom")
            axes.plot([low, high], [place, place], color=INK["fg"], linewidth=1.4, marker="|", markersize=7)
            axes.plot([ratio["median"]], [place], color=colour, marker="o", markersize=8)
        axes.axvline(1.0, color=INK["muted"], linestyle=(0, (3, 3)), linewidth=1)
        axes.set_ylim(len(shown) - 0.5, -0.85)
        axes.set_yticks([])
        axes.spines["left"].set_visible(False)
        axes.set_xlabel("measured ÷ promised (1: the gains multiply)")
        axes.grid(axis="x")

    return draw(name, (_WIDTH, (34 * len(shown) + 60) / 72), plot, f"Interactions. {'; '.join(said)}.")
