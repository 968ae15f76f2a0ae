"""Figures of the lessons: lines, bars and paths over a surface, in the reader's light or dark theme."""

from __future__ import annotations

import hashlib
import textwrap
from collections.abc import Mapping, Sequence
from typing import Any, Callable, Union

import numpy as np

from gluontune.core import stats
from gluontune.core.errors import UsageError
from gluontune.course.figures import Markup, captioned
from gluontune.report.svg import INK, ON_PANEL, SERIES, WIDTH, draw, label

# neighbours differ in lightness, not in hue alone; more than six are hard to distinguish
_COLOURS = (4, 5, 2, 6, 1, 3, 0)
_DASHES: tuple[Any, ...] = ("-", (0, (5, 2)), (0, (1, 1.2)), (0, (6, 2, 1, 2)), "-", (0, (5, 2)), (0, (1, 1.2)))
_MARKERS = "os^DvPX"
_BAR, _LINE = 46, 13  # points: a bar with its name above it, and each further line of that name
Pair = tuple[Sequence[float], Sequence[float]]


def figure_of(caption: str, alt: str, size: tuple[float, float], plot: Callable[[Any], None]) -> Markup:
    """One figure with its caption; ``alt`` describes it for who cannot see it; ``size`` in inches."""
    name = "gt" + hashlib.sha256(f"{caption}{alt}".encode()).hexdigest()[:10]
    svg = draw(name, size, plot, f"{caption}. {alt}".strip())
    return captioned(svg, caption)


def _thousands(axis: Any) -> None:
    axis.set_major_formatter(lambda v, _: f"{v:,.0f}" if abs(v) >= 1000 else f"{v:g}")


def _powers(axis: Any) -> None:
    """Ticks at powers of ten, as text without TeX; also at 2 and 5 times them on short axes."""
    from matplotlib.ticker import LogLocator

    raised = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")

    def name(value: float, _: Any) -> str:
        power = int(np.floor(np.log10(value) + 1e-9)) if value > 0 else 0
        if -3 <= power <= 4:
            return f"{value:,.5g}"
        times = f"{value / 10.0**power:.3g}"
        return f"{'' if times == '1' else f'{times}·'}10{str(power).translate(raised)}"

    low, high = sorted(axis.get_view_interval())
    if low > 0 and high / low < 300:
        axis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axis.set_major_formatter(name)
    axis.set_minor_formatter("")


def lines(
    series: Mapping[str, Pair],
    *,
    x: str,
    y: str,
    caption: str,
    log_x: bool = False,
    log_y: bool = False,
    steps: bool = False,
    markers: bool = False,
    points: Sequence[str] = (),
    limits: Mapping[str, float] | None = None,
) -> Markup:
    """Lines over a shared axis.

    Args:
        series: labels to ``(xs, ys)``.
        x, y: names of the axes, with units.
        caption: one line below the figure, which also begins its alternative text.
        log_x, log_y: logarithmic axes.
        steps: values hold until the next one, as in a schedule.
        markers: mark each point.
        points: labels that are drawn as marks alone, without a line.
        limits: labels to heights of horizontal lines.

    >>> figure = lines({"a": ([0, 1], [1.0, 0.5])}, x="update", y="rate", caption="Halved once")
    >>> 'aria-label="Halved once. a: from 1 to 0.5' in str(figure)
    True
    """
    if not series or any(len(xs) != len(ys) or len(xs) == 0 for xs, ys in series.values()):
        raise UsageError("lines(series): give at least one label with as many xs as ys")
    alt = "; ".join(
        f"{name}: from {ys[0]:.4g} to {ys[-1]:.4g}, least {np.nanmin(ys):.4g}, greatest {np.nanmax(ys):.4g}"
        for name, (_, ys) in series.items()
    )

    def plot(figure: Any) -> None:
        axes = figure.add_subplot()
        for place, (name, (xs, ys)) in enumerate(series.items()):
            colour = SERIES[_COLOURS[place % 7]]
            axes.plot(
                xs, ys, color=colour, linestyle="none" if name in points else _DASHES[place % 7], linewidth=1.8,
                label=label(name), marker=_MARKERS[place % 7] if markers or name in points else None, markersize=5,
                drawstyle="steps-post" if steps else "default",
            )  # fmt: skip
        for name, height in (limits or {}).items():
            axes.axhline(height, color=INK["muted"], linestyle=(0, (3, 3)), linewidth=1)
            begins, ends = (min(abs(ys[at] - height) for _, ys in series.values()) for at in (0, -1))
            edge, side = (0.01, "left") if ends < begins else (0.99, "right")  # where no line ends upon it
            axes.annotate(
                name, (edge, height), xycoords=("axes fraction", "data"), ha=side, va="bottom", color=INK["muted"]
            )
        axes.set(xlabel=x, ylabel=y)
        for axis, log, scale in ((axes.xaxis, log_x, axes.set_xscale), (axes.yaxis, log_y, axes.set_yscale)):
            if log:
                scale("log")
                _powers(axis)
            else:
                _thousands(axis)
        tried = sorted({x for xs, _ in series.values() for x in xs})
        few = len(tried) <= (8 if log_x else 5)
        if few and all(float(place).is_integer() for place in tried):  # ticks at the measured workers or batches
            axes.xaxis.set_ticks(tried)
            axes.xaxis.set_ticks([], minor=True)
        axes.grid()
        _finish(figure, axes, list(series))

    rows = _legend_rows(list(series))
    return figure_of(caption, alt, (WIDTH, 3.0 + 0.24 * rows), plot)


def bars(
    values: Mapping[str, Union[float, Mapping[str, Any], None]],
    *,
    unit: str,
    caption: str,
    limits: Mapping[str, float] | None = None,
) -> Markup:
    """Horizontal bars; a value may be ``{"median", "ci95"}``, or None for "not measured".

    Args:
        values: labels to heights.
        unit: what the axis shows.
        caption: one line below the figure.
        limits: labels to places of vertical lines.

    >>> figure = bars({"one": 2.0, "two": None}, unit="images/s", caption="Two loaders")
    >>> "one 2; two not measured" in str(figure)
    True
    """
    found = {name: _measured(value) for name, value in values.items()}
    top = max([*(v[2] for v in found.values() if v), *(limits or {}).values(), 1e-12])
    alt = "; ".join(f"{name} {_number(v[0]) if v else 'not measured'}" for name, v in found.items())
    marks = "; ".join(f"{name}: {_number(at)}" for name, at in (limits or {}).items())
    names = [textwrap.wrap(name, 44, break_on_hyphens=False) or [name] for name in found]
    longer = [sum(len(n) - 1 for n in names[: place + 1]) * _LINE for place in range(len(names))]

    def plot(figure: Any) -> None:
        height = figure.get_size_inches()[1] * 72
        axes = figure.add_axes((0.02, 44 / height, 0.92, 1 - (66 if limits else 48) / height))
        axes.set_ylim(len(found) - 0.6 + longer[-1] / _BAR, -0.72)
        axes.set_yticks([])
        axes.spines["left"].set_visible(False)
        for name, at in (limits or {}).items():
            axes.axvline(at, color=INK["muted"], linestyle=(0, (3, 3)), linewidth=1)
            side = "right" if at > 0.5 * top else "left"
            axes.text(at, -0.76, f" {name} ", ha=side, va="bottom", color=INK["muted"], clip_on=False)
        for which, value in enumerate(found.values()):
            place = which + longer[which] / _BAR
            axes.text(0, place - 0.27, "\n".join(names[which]), va="bottom", weight="bold", bbox=ON_PANEL)
            if value is None:
                axes.text(0, place, "not measured", va="center", style="italic", color=INK["muted"])
                continue
            middle, low, high = value
            axes.barh(place, middle, height=0.42, color=SERIES[4])
            if high > low:
                axes.plot([low, high], [place, place], color=INK["fg"], marker="|", markersize=7, linewidth=1.4)
            axes.text(high + top * 0.015, place, _number(middle), va="center", bbox=ON_PANEL)
        axes.set_xlim(0, top * 1.18)
        axes.set_xlabel(unit)
        _thousands(axes.xaxis)
        axes.grid(axis="x")

    size = (WIDTH, (_BAR * len(found) + longer[-1] + (74 if limits else 56)) / 72)
    return figure_of(caption, f"{alt}. {marks}".strip(), size, plot)


def paths(
    surface: Callable[[np.ndarray, np.ndarray], np.ndarray],
    walks: Mapping[str, np.ndarray],
    *,
    x: str,
    y: str,
    caption: str,
    span: tuple[float, float, float, float],
    goal: tuple[float, float] | None = None,
) -> Markup:
    """Walks over a surface seen from above; its contours lie closer where it is steeper (logarithmic heights).

    Args:
        surface: takes two arrays of equal shape, gives the heights, at least 0.
        walks: labels to arrays (steps + 1, 2), the start first.
        x, y: what the axes show.
        caption: one line below the figure.
        span: (x_low, x_high, y_low, y_high) of the part that is shown.
        goal: the lowest point, marked with a star.
    """
    across, up = np.meshgrid(np.linspace(*span[:2], 140), np.linspace(*span[2:], 140))
    heights = np.log10(np.asarray(surface(across, up), float) + 1e-6)
    alt = "; ".join(
        f"{name}: {len(w) - 1} steps, ends at ({w[-1][0]:.3g}, {w[-1][1]:.3g})" for name, w in walks.items()
    )

    def plot(figure: Any) -> None:
        axes = figure.add_subplot()
        axes.contour(across, up, heights, levels=14, colors=INK["muted"], linewidths=0.7, linestyles="-", alpha=0.55)
        for place, (name, walk) in enumerate(walks.items()):
            colour = SERIES[_COLOURS[place % 7]]
            beneath = 0.9 * (len(walks) - 1 - place)  # wider below others, to stay visible on the same path
            axes.plot(
                walk[:, 0], walk[:, 1], color=colour, linewidth=1.6 + beneath,
                marker=_MARKERS[place % 7], markersize=3.6, markevery=max(1, len(walk) // 25), label=label(name),
            )  # fmt: skip
        axes.plot(*next(iter(walks.values()))[0], marker="o", color=INK["fg"], markersize=8, fillstyle="none")
        if goal is not None:
            axes.plot(*goal, marker="*", color=INK["fg"], markersize=12)
        axes.set(xlabel=x, ylabel=y, xlim=span[:2], ylim=span[2:])
        _finish(figure, axes, list(walks))

    rows = _legend_rows(list(walks))
    return figure_of(caption, alt, (WIDTH, 3.7 + 0.24 * rows), plot)


def _legend_rows(names: list[str]) -> int:
    """Rows of the legend: one column for long names, else two; none for a single line."""
    if len(names) < 2:
        return 0
    return len(names) if max(map(len, names)) > 19 else -(-len(names) // 2)


def _finish(figure: Any, axes: Any, names: list[str]) -> None:
    """Axes above, legend below."""
    rows = _legend_rows(names)
    height = figure.get_size_inches()[1] * 72
    low, high = sorted(axes.get_ylim())
    ticks = [tick for tick in axes.yaxis.get_majorticklocs() if low <= tick <= high]
    numbers = axes.yaxis.get_major_formatter().format_ticks(ticks)
    left = (28 + 6.6 * max((len(text) for text in numbers), default=1)) / (WIDTH * 72)
    last = max(axes.xaxis.get_majorticklocs(), default=0.0)
    right = 0.99 - max(6.0, 3.3 * len(axes.xaxis.get_major_formatter()(last))) / (WIDTH * 72)
    axes.set_position((left, (46 + 17 * rows) / height, right - left, 1 - (58 + 17 * rows) / height))
    if rows:
        columns = -(-len(names) // rows)
        figure.legend(loc="lower left", bbox_to_anchor=(0.02, 0.0), ncols=columns, borderaxespad=0.2, handlelength=2.8)


def _measured(value: Any) -> tuple[float, float, float] | None:
    if isinstance(value, Mapping):
        low, high = stats.bounds(value) or (value["median"], value["median"])
        return float(value["median"]), float(low), float(high)
    return None if value is None else (float(value),) * 3


def _number(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"
