"""The figures of ladders and runs, each from checked rows (see ``gluontune.report.read.check_row``)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from gluontune.core.events import deciding
from gluontune.report import formatting as fmt
from gluontune.report.svg import INK, ON_SERIES, SERIES, draw, label

Row = dict[str, Any]

WIDTH = 4.8  # inches: 346 px, about a phone's width; a desktop shows it half as large again
_ON_PANEL = {"facecolor": INK["panel"], "edgecolor": "none", "pad": 0.8}  # of text in front of lines
_POINTS = 240  # of a utilization series: more are not visible at its size
_MARKERS = "os^Dv*PX"
# Colours of the phases by place in fmt.PHASES; neighbours differ in lightness, not in hue alone.
PHASE_SERIES = {"data": 5, "copy": 1, "forward": 4, "backward": 2, "update": 3, "metrics": 6, "rest": 7}


def throughput(name: str, rows: Sequence[Row], unit: str) -> str | None:
    """Horizontal bars of throughput with their 95 % intervals; None if nothing was measured."""
    if not any(row["samples_per_sec"] for row in rows):
        return None
    texts = [_throughput_text(row, unit) for row in rows]
    top = max(_upper(row) for row in rows)
    baseline = next((r["samples_per_sec"] for r in rows if r["name"] == "naive" and r["samples_per_sec"]), None)

    def plot(figure: Any) -> None:
        axes = _bar_axes(figure, rows)
        for place, row in enumerate(rows):
            speed = row["samples_per_sec"]
            axes.text(0, place - 0.28, _short(row["name"]), va="bottom", weight="bold", bbox=_ON_PANEL)
            if speed is None:
                axes.text(0, place, row["status"], va="center", style="italic", color=INK["muted"])
                continue
            median, bounds = speed["median"], speed["ci95"] or [speed["median"]] * 2
            axes.barh(place, median, height=0.44, color=SERIES[4 if row.get("in_best", row["kept"]) else 7])
            error = [[max(0.0, median - bounds[0])], [max(0.0, bounds[1] - median)]]
            axes.errorbar(
                median, place, xerr=error, color=INK["fg"], capsize=3, elinewidth=1.4, capthick=1.4, fmt="none"
            )
            if row["predicted"]:
                guess = row["predicted"]["samples_per_sec"]
                axes.plot(
                    [guess], [place], color=INK["fg"], marker="D", markersize=6, markerfacecolor=INK["panel"],
                    markeredgewidth=1.4,
                )  # fmt: skip
            text = fmt.rate(median)
            if row["speedup_vs_naive"] and row["name"] != "naive":
                text += f"  ({fmt.ratio(row['speedup_vs_naive'])})"
            room = 0.045 if row["predicted"] else 0.02  # a diamond is wider than a whisker
            axes.text(_upper(row) + top * room, place, text, va="center")
        if baseline is not None:
            axes.axvline(baseline["median"], color=INK["muted"], linestyle=(0, (3, 3)), linewidth=1)
        axes.set_xlim(0, top * 1.34)
        axes.set_xlabel(f"{unit} (median and 95 % interval)")
        axes.xaxis.set_major_formatter(_thousands())
        axes.grid(axis="x")

    return draw(name, _bar_size(rows), plot, f"Throughput of each run. {'; '.join(texts)}.")


def gains(name: str, rows: Sequence[Row]) -> str | None:
    """The gain of each rung over the best before it, with its 95 % interval."""
    ratios = [(row, ratio) for row in rows for ratio in [deciding(row)] if ratio]
    if not ratios:
        return None
    shown, found = [row for row, _ in ratios], [(ratio["median"], ratio["ci95"]) for _, ratio in ratios]
    texts = [f"{_short(row['name'])} {fmt.ratio_with_interval(*gain)}" for row, gain in zip(shown, found)]
    ends = [end for median, bounds in found for end in (bounds or [median])]

    def plot(figure: Any) -> None:
        axes = _bar_axes(figure, shown)
        low, high = min(1.0, *ends), max(1.0, *ends)
        room = max(0.1, high - low)
        axes.set_xlim(low - 0.04 * room, high + 0.5 * room)
        for place, (row, (median, bounds)) in enumerate(zip(shown, found)):
            axes.text(axes.get_xlim()[0], place - 0.28, _short(row["name"]), va="bottom", weight="bold", bbox=_ON_PANEL)
            colour = SERIES[4 if row.get("in_best", row["kept"]) else 7]
            around = bounds or [median, median]
            axes.plot(around, [place, place], color=INK["fg"], linewidth=1.6, marker="|", markersize=8)
            axes.plot(
                [median], [place], color=colour, marker="o" if row.get("in_best", row["kept"]) else "D", markersize=8
            )
            axes.text(
                around[1] + 0.03 * room, place, fmt.ratio_with_interval(median, bounds).replace("95 %: ", ""),
                va="center", bbox=_ON_PANEL,
            )  # fmt: skip
        axes.axvline(1.0, color=INK["muted"], linestyle=(0, (3, 3)), linewidth=1)
        axes.set_xlabel("gain over the best rung before (1 = no change)")
        axes.grid(axis="x")

    return draw(name, _bar_size(shown), plot, f"Gain over the best rung before. {'; '.join(texts)}.")


def phases(name: str, rows: Sequence[Row]) -> str | None:
    """Stacked bars: the share of each phase in the training step."""
    shown = [row for row in rows if sum(row["phases_pct"].values()) > 0]
    if not shown:
        return None
    texts = []
    for row in shown:
        parts = ", ".join(f"{fmt.clean(k, 40)} {v:.0f} %" for k, v in row["phases_pct"].items() if v >= 0.5)
        texts.append(f"{_short(row['name'])}: {parts}")

    def plot(figure: Any) -> None:
        axes = _bar_axes(figure, shown)
        for place, row in enumerate(shown):
            axes.text(0, place - 0.28, _short(row["name"]), va="bottom", weight="bold", bbox=_ON_PANEL)
            left = 0.0
            for phase, share in _ordered(row["phases_pct"]):
                colour = PHASE_SERIES.get(phase, 7)
                axes.barh(
                    place, share, left=left, height=0.44, color=SERIES[colour], edgecolor=INK["panel"], linewidth=1
                )
                if share >= 9:
                    axes.text(
                        left + share / 2, place, f"{share:.0f}", ha="center", va="center", color=ON_SERIES[colour]
                    )
                left += share
        axes.set_xlim(0, 100)
        axes.set_xlabel("share of the training step in percent")
        axes.grid(axis="x")

    return draw(name, _bar_size(shown), plot, f"Phases of the training step. {'; '.join(texts)}.")


def accuracy(name: str, rows: Sequence[Row]) -> str | None:
    """Validation accuracy against training seconds."""
    curves = [(place, row, _curve(row)) for place, row in enumerate(rows)]
    curves = [(place, row, curve) for place, row, curve in curves if curve]
    if not curves:
        return None
    texts = [
        f"{_short(row['name'])} reached {fmt.accuracy(curve[-1][1])} after {fmt.duration(curve[-1][0])}"
        for _, row, curve in curves
    ]
    lines = (len(curves) + 1) // 2

    def plot(figure: Any) -> None:
        axes = figure.add_axes((0.145, 0.0, 0.83, 1.0))
        handles = []
        for place, row, curve in curves:
            handles += axes.plot(
                [x for x, _ in curve],
                [100 * y for _, y in curve],
                color=SERIES[place % 8],
                marker=_MARKERS[place % 8],
                markersize=5.5,
                linewidth=1.8,
                linestyle="-" if row.get("in_best", row["kept"]) else (0, (2, 2)),
            )
        axes.set_xlim(left=0)
        axes.margins(y=0.12)
        axes.set_xlabel("training time in seconds (validation left out)")
        axes.set_ylabel("validation accuracy in percent")
        axes.grid()
        below = 58 + 16 * lines  # points that ticks, the axis' name and the legend need
        height = figure.get_size_inches()[1] * 72
        axes.set_position((0.145, below / height, 0.83, 1 - (below + 8) / height))
        names = [label(_short(row["name"], 18)) for _, row, _ in curves]
        figure.legend(
            handles, names, loc="lower left", bbox_to_anchor=(0.02, 0.0), ncols=2, borderaxespad=0.2, handlelength=2.6
        )

    size = (WIDTH, (270 + 16 * lines) / 72)
    return draw(name, size, plot, f"Validation accuracy against training time. {'; '.join(texts)}.")


def utilization(name: str, row: Row, wide: bool = False) -> str | None:
    """Utilization over time of CPU and GPUs; the computing device is filled. ``wide``: for a single figure."""
    series = _series(row["utilization"])
    if not series:
        return None
    device = str(row["utilization"].get("device", "")).lower()
    mine = [title for title, *_ in series if len(series) == 1 or title.lower().startswith(device or "gpu")]
    texts = [f"{title} on average {_mean(ys):.0f} %" for title, _, _, ys in series]

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

    return draw(
        name,
        (WIDTH, 2.2) if wide else (3.2, 1.65),
        plot,
        f"Utilization of {fmt.clean(row['name'], 44)}: {', '.join(texts)}.",
    )


def utilization_series(row: Row) -> list[tuple[str, int]]:
    """Names and colours of a row's series, for the page's legend."""
    return [(title, colour) for title, colour, _, _ in _series(row["utilization"])]


def _curve(row: Row) -> list[tuple[float, float]]:
    seconds = list(row["elapsed_seconds"])
    if not seconds:
        total = 0.0
        for length in row["epoch_seconds"]:
            total += length or 0.0
            seconds.append(total)
    return [(x, y) for x, y in zip(seconds, row["val_accuracy"]) if x is not None and y is not None]


def _ordered(shares: dict[str, float]) -> list[tuple[str, float]]:
    known = [phase for phase in fmt.PHASES if phase in shares]
    return [(phase, shares[phase]) for phase in [*known, *(p for p in shares if p not in fmt.PHASES)]]


def _bar_size(rows: Sequence[Row]) -> tuple[float, float]:
    return WIDTH, (46 * len(rows) + 52) / 72


def _bar_axes(figure: Any, rows: Sequence[Row]) -> Any:
    """Axes for bars with the names above them, so that long names cost no width on a phone."""
    height = figure.get_size_inches()[1] * 72
    axes = figure.add_axes((0.02, 44 / height, 0.95, 1 - 48 / height))
    axes.set_ylim(len(rows) - 0.68, -0.72)
    axes.set_yticks([])
    axes.spines["left"].set_visible(False)
    return axes


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


def _thousands() -> Any:
    from matplotlib.ticker import FuncFormatter

    return FuncFormatter(lambda value, place: f"{value:,.0f}" if value >= 10 or value == 0 else f"{value:g}")


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


def _mean(values: list[float]) -> float:
    known = [v for v in values if v == v]
    return sum(known) / len(known)
