"""The figures of ladders and runs, each from checked rows (see ``gluontune.report.read.check_row``)."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

from gluontune.core.events import deciding
from gluontune.report import formatting as fmt
from gluontune.report.svg import INK, ON_PANEL, ON_SERIES, SERIES, WIDTH, dot, draw, draw_rows, label, whisker

Row = dict[str, Any]

_POINTS = 240  # of a utilization series: more are not visible at its size
_MARKERS = "os^Dv*PX"
# Colours of the phases by place in fmt.PHASES; neighbours differ in lightness, not in hue alone.
PHASE_SERIES = {"data": 5, "copy": 1, "forward": 4, "backward": 2, "update": 3, "metrics": 6, "rest": 7}


def throughput(name: str, rows: Sequence[Row], unit: str) -> str | None:
    """Horizontal bars of throughput with their 95 % intervals; None if nothing was measured."""
    if not any(row["samples_per_sec"] for row in rows):
        return None
    texts, top = [_throughput_text(row, unit) for row in rows], max(_upper(row) for row in rows)
    baseline = next((r["samples_per_sec"] for r in rows if r["name"] == "naive" and r["samples_per_sec"]), None)

    def bar(axes: Any, place: int, row: Row) -> None:
        speed = row["samples_per_sec"]
        if speed is None:
            axes.text(0, place, row["status"], va="center", style="italic", color=INK["muted"])
            return
        median, bounds = speed["median"], speed["ci95"] or [speed["median"]] * 2
        axes.barh(place, median, height=0.44, color=SERIES[4 if row.get("in_best", row["kept"]) else 7])
        whisker(axes, place, median, bounds)
        if row["predicted"]:
            hollow = {"markerfacecolor": INK["panel"], "markeredgewidth": 1.4}
            guess = [row["predicted"]["samples_per_sec"]]
            axes.plot(guess, [place], color=INK["fg"], marker="D", markersize=6, **hollow)
        text = fmt.rate(median)
        if row["speedup_vs_naive"] and row["name"] != "naive":
            text += f"  ({fmt.ratio(row['speedup_vs_naive'])})"
        room = 0.045 if row["predicted"] else 0.02  # a diamond is wider than a whisker
        axes.text(_upper(row) + top * room, place, text, va="center")
        axes.xaxis.set_major_formatter(lambda value, _: f"{value:,.0f}" if value >= 10 or value == 0 else f"{value:g}")

    return draw_rows(
        name, _named(rows), bar, f"{unit} (median and 95 % interval)", f"Throughput of each run. {'; '.join(texts)}.",
        limits=(0, top * 1.34), line=baseline and baseline["median"],
    )  # fmt: skip


def gains(name: str, rows: Sequence[Row]) -> str | None:
    """The gain of each rung over the best before it, with its 95 % interval."""
    ratios = [(row, ratio) for row in rows for ratio in [deciding(row)] if ratio]
    if not ratios:
        return None
    shown, found = [row for row, _ in ratios], [(ratio["median"], ratio["ci95"]) for _, ratio in ratios]
    texts = [f"{_short(row['name'])} {fmt.ratio_with_interval(*gain)}" for row, gain in zip(shown, found)]
    ends = [1.0, *(end for median, bounds in found for end in (bounds or [median]))]
    room = max(0.1, max(ends) - min(ends))

    def gain(axes: Any, place: int, row: Row) -> None:
        (median, bounds), good = found[place], row.get("in_best", row["kept"])
        around = bounds or [median, median]
        dot(axes, place, median, around, SERIES[4 if good else 7], "o" if good else "D")
        text = fmt.ratio_with_interval(median, bounds).replace("95 %: ", "")
        axes.text(around[1] + 0.03 * room, place, text, va="center", bbox=ON_PANEL)

    return draw_rows(
        name, _named(shown), gain, "gain over the best rung before (1 = no change)",
        f"Gain over the best rung before. {'; '.join(texts)}.",
        limits=(min(ends) - 0.04 * room, max(ends) + 0.5 * room), line=1.0,
    )  # fmt: skip


def phases(name: str, rows: Sequence[Row]) -> str | None:
    """Stacked bars: the share of each phase in the training step."""
    if not (shown := [row for row in rows if sum(row["phases_pct"].values()) > 0]):
        return None
    texts = []
    for row in shown:
        parts = ", ".join(f"{fmt.clean(k, 40)} {v:.0f} %" for k, v in row["phases_pct"].items() if v >= 0.5)
        texts.append(f"{_short(row['name'])}: {parts}")

    def stacked(axes: Any, place: int, row: Row) -> None:
        left, shares = 0.0, row["phases_pct"]
        for phase in [*(p for p in fmt.PHASES if p in shares), *(p for p in shares if p not in fmt.PHASES)]:
            colour, share = PHASE_SERIES.get(phase, 7), shares[phase]
            edge = {"edgecolor": INK["panel"], "linewidth": 1}
            axes.barh(place, share, left=left, height=0.44, color=SERIES[colour], **edge)
            if share >= 9:
                middle = left + share / 2
                axes.text(middle, place, f"{share:.0f}", ha="center", va="center", color=ON_SERIES[colour])
            left += share

    alt = f"Phases of the training step. {'; '.join(texts)}."
    return draw_rows(name, _named(shown), stacked, "share of the training step in percent", alt, limits=(0, 100))


def accuracy(name: str, rows: Sequence[Row]) -> str | None:
    """Validation accuracy against training seconds."""
    curves = []
    for place, row in enumerate(rows):
        times = row["elapsed_seconds"] or itertools.accumulate(length or 0.0 for length in row["epoch_seconds"])
        curve = [(x, y) for x, y in zip(times, row["val_accuracy"]) if x is not None and y is not None]
        curves += [(place, row, curve)] if curve else []
    if not curves:
        return None
    texts = [
        f"{_short(row['name'])} reached {fmt.accuracy(curve[-1][1])} after {fmt.duration(curve[-1][0])}"
        for _, row, curve in curves
    ]
    lines = (len(curves) + 1) // 2

    def plot(figure: Any) -> None:
        axes = curve_axes(figure, (0.145, 0.0, 0.83, 1.0))
        handles = []
        for place, row, curve in curves:
            style = {"color": SERIES[place % 8], "marker": _MARKERS[place % 8], "markersize": 5.5, "linewidth": 1.8}
            dashes = "-" if row.get("in_best", row["kept"]) else (0, (2, 2))
            handles += axes.plot([x for x, _ in curve], [100 * y for _, y in curve], linestyle=dashes, **style)
        axes.set_xlim(left=0)
        below = 58 + 16 * lines  # points that ticks, the axis' name and the legend need
        height = figure.get_size_inches()[1] * 72
        axes.set_position((0.145, below / height, 0.83, 1 - (below + 8) / height))
        names = [label(_short(row["name"], 18)) for _, row, _ in curves]
        figure.legend(
            handles, names, loc="lower left", bbox_to_anchor=(0.02, 0.0), ncols=2, borderaxespad=0.2, handlelength=2.6
        )

    size = (WIDTH, (270 + 16 * lines) / 72)
    return draw(name, size, plot, f"Validation accuracy against training time. {'; '.join(texts)}.")


def curve_axes(figure: Any, place: tuple[float, float, float, float]) -> Any:
    """Axes of accuracy against training time."""
    axes = figure.add_axes(place)
    axes.margins(y=0.12)
    axes.set_xlabel("training time in seconds (validation left out)")
    axes.set_ylabel("validation accuracy in percent")
    axes.grid()
    return axes


def utilization(name: str, row: Row, wide: bool = False) -> str | None:
    """Utilization over time of CPU and GPUs; the computing device is filled. ``wide``: for a single figure."""
    if not (series := _series(row["utilization"])):
        return None
    device = str(row["utilization"].get("device", "")).lower()
    mine = [title for title, *_ in series if len(series) == 1 or title.lower().startswith(device or "gpu")]
    means = [(title, [y for y in ys if y == y]) for title, _, _, ys in series]
    texts = [f"{title} on average {sum(known) / len(known):.0f} %" for title, known in means]

    def plot(figure: Any) -> None:
        axes = figure.add_axes((0.135, 0.24, 0.84, 0.7) if wide else (0.14, 0.28, 0.83, 0.65))
        for title, colour, xs, ys in series:
            axes.plot(xs, ys, color=SERIES[colour], linewidth=1.3)
            if mine == [title]:  # overlapping fillings are illegible
                axes.fill_between(xs, 0, ys, color=SERIES[colour], alpha=0.25, linewidth=0)
        axes.set_ylim(0, 103)
        axes.set_yticks([0, 50, 100])
        axes.set_xlim(series[0][2][0], max(series[0][2][-1], series[0][2][0] + 1e-3))
        axes.set_xlabel("seconds", labelpad=1)
        if wide:
            axes.set_ylabel("busy, percent")
        axes.grid(axis="y")

    alt = f"Utilization of {fmt.clean(row['name'], 44)}: {', '.join(texts)}."
    return draw(name, (WIDTH, 2.2) if wide else (3.2, 1.65), plot, alt)


def utilization_series(row: Row) -> list[tuple[str, int]]:
    """Names and colours of a row's series, for the page's legend."""
    return [(title, colour) for title, colour, _, _ in _series(row["utilization"])]


def _named(rows: Sequence[Row]) -> list[tuple[str, Row]]:
    return [(_short(row["name"]), row) for row in rows]


def _upper(row: Row) -> float:
    speed = row["samples_per_sec"]
    if not speed:
        return 0.0
    guess = [row["predicted"]["samples_per_sec"]] if row["predicted"] else []
    return max([speed["median"], *(speed["ci95"] or ()), *guess])


def _throughput_text(row: Row, unit: str) -> str:
    speed = row["samples_per_sec"]
    if speed is None:
        return f"{_short(row['name'])}: {row['status']}"
    around = speed["ci95"]
    between = f" (between {fmt.rate(around[0])} and {fmt.rate(around[1])})" if around else ""
    guess = f", predicted {fmt.prediction(row)}" if row["predicted"] else ""
    kept = "" if row["name"] == "naive" or "in_best" not in row else ", kept" if row["in_best"] else ", not kept"
    return f"{_short(row['name'])}: {fmt.rate(speed['median'])} {unit}{between}{guess}{kept}"


def _short(text: str, limit: int = 44) -> str:
    return fmt.clean(text, limit)


def _series(found: dict[str, Any]) -> list[tuple[str, int, list[float], list[float]]]:
    clock = found.get("t_s")
    times = [fmt.number(t) for t in clock] if isinstance(clock, list) else []
    named = [("CPU", 4, found.get("cpu_pct"))]
    gpus = found.get("gpu_util_pct")
    if isinstance(gpus, dict):
        palette = (5, 2, 6, 1, 3, 0)
        named += [(f"GPU {fmt.clean(k, 12)}", palette[n % 6], v) for n, (k, v) in enumerate(gpus.items())]
    series = []
    for title, colour, values in named:
        if not isinstance(values, list) or not any(fmt.number(v) is not None for v in values):
            continue
        xs, ys = _thinned([(t, fmt.number(v)) for t, v in zip(times, values) if t is not None])
        if len(xs) >= 2 and any(y == y for y in ys):
            series.append((title, colour, xs, ys))
    return series


def _thinned(points: list[tuple[float, float | None]]) -> tuple[list[float], list[float]]:
    """At most ``_POINTS`` means of neighbours; a missing reading (N/A) leaves a gap."""
    step = max(1, -(-len(points) // _POINTS))
    xs, ys = [], []
    for start in range(0, len(points), step):
        part = points[start : start + step]
        known = [y for _, y in part if y is not None]
        xs.append(sum(x for x, _ in part) / len(part))
        ys.append(sum(known) / len(known) if known else float("nan"))
    return xs, ys
