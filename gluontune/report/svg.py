"""Matplotlib figures as inline SVG that follows the page's light or dark theme: drawn in marker colours, each of which
becomes a CSS variable of the page. Matplotlib's object API is used, never pyplot and its global state.
"""

from __future__ import annotations

import io
import re
import warnings
import xml.etree.ElementTree as ET
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

T = TypeVar("T")

# Role: marker colour. Not black or white: matplotlib omits values that equal SVG's defaults.
INK = {"fg": "#010203", "muted": "#040506", "grid": "#070809", "panel": "#0a0b0c"}
ON_PANEL = {"facecolor": INK["panel"], "edgecolor": "none", "pad": 0.8}  # of text in front of lines
WIDTH = 4.8  # inches: 346 px, about a phone's width; a desktop shows it half as large again
SERIES = tuple(f"#1020{n:02x}" for n in range(8))  # --c0 … --c7: Okabe and Ito's palette, in style.css
ON_SERIES = tuple(f"#1021{n:02x}" for n in range(8))  # --i0 … --i7: ink that reads on each of them

_VARIABLES = {
    **{colour: f"var(--{role})" for role, colour in INK.items()},
    **{colour: f"var(--c{n})" for n, colour in enumerate(SERIES)},
    **{colour: f"var(--i{n})" for n, colour in enumerate(ON_SERIES)},
}
_GAP = 8  # pixels between the labels of two ticks
_RC = {
    "svg.fonttype": "none",  # text stays text: small, searchable, in the reader's font
    "svg.hashsalt": "gluontune",  # the same figure gives the same bytes
    "text.parse_math": False,  # a dollar sign in a user's name is a dollar sign
    "font.family": "DejaVu Sans",  # matplotlib's own, for measuring; the page sets what is shown
    "font.size": 10.5,
    "axes.edgecolor": INK["muted"],
    "axes.labelcolor": INK["fg"],
    "axes.facecolor": "none",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.axisbelow": True,
    "figure.facecolor": "none",
    "grid.color": INK["grid"],
    "grid.linewidth": 0.8,
    "legend.frameon": False,
    "text.color": INK["fg"],
    "xtick.color": INK["muted"],
    "xtick.labelcolor": INK["fg"],
    "ytick.color": INK["muted"],
    "ytick.labelcolor": INK["fg"],
    "path.simplify": True,
}


def draw(name: str, size: tuple[float, float], plot: Callable[[Any], None], alt: str) -> str:
    """An ``<svg>`` element for HTML.

    ``name`` is the prefix of its ids, ``size`` in inches (72 CSS pixels before the page scales it); ``plot`` draws on a
    ``matplotlib.figure.Figure``; ``alt`` describes it for who cannot see it.
    """
    import matplotlib
    from matplotlib.backends.backend_svg import FigureCanvasSVG
    from matplotlib.figure import Figure

    out = io.StringIO()
    with matplotlib.rc_context(_RC), warnings.catch_warnings():  # type: ignore[arg-type]
        warnings.simplefilter("ignore")  # a glyph that matplotlib's font lacks is in the reader's
        figure = Figure(figsize=size, dpi=72)
        FigureCanvasSVG(figure)
        plot(figure)
        _fit_ticks(figure)
        figure.savefig(out, format="svg", metadata=dict.fromkeys(("Creator", "Date", "Format", "Type")))
    return _themed(out.getvalue(), name, alt)


def draw_rows(
    name: str, rows: Sequence[tuple[str, T]], plot: Callable[[Any, int, T], None], unit: str, alt: str, *,
    limits: tuple[float, float], line: float | None = None,
) -> str:  # fmt: skip
    """Draw horizontal rows, each with its name above it, so that long names cost no width on a phone.

    ``plot`` draws a row, given the axes, its place and its value; ``line`` is a dashed line to compare values with.
    """

    def whole(figure: Any) -> None:
        height = figure.get_size_inches()[1] * 72
        axes = figure.add_axes((0.02, 44 / height, 0.95, 1 - 48 / height))
        axes.set_ylim(len(rows) - 0.68, -0.72)
        axes.set_yticks([])
        axes.spines["left"].set_visible(False)
        axes.set_xlim(*limits)
        for place, (title, value) in enumerate(rows):
            axes.text(limits[0], place - 0.28, title, va="bottom", weight="bold", bbox=ON_PANEL)
            plot(axes, place, value)
        if line is not None:
            axes.axvline(line, color=INK["muted"], linestyle=(0, (3, 3)), linewidth=1)
        axes.set_xlabel(unit)
        axes.grid(axis="x")

    return draw(name, (WIDTH, (46 * len(rows) + 52) / 72), whole, alt)


def whisker(axes: Any, place: float, median: float, bounds: Sequence[float]) -> None:
    """The interval of a bar."""
    error = [[max(0.0, median - bounds[0])], [max(0.0, bounds[1] - median)]]
    axes.errorbar(median, place, xerr=error, color=INK["fg"], capsize=3, elinewidth=1.4, capthick=1.4, fmt="none")


def dot(axes: Any, place: float, median: float, bounds: Sequence[float], colour: str, marker: str = "o") -> None:
    """A value with its interval."""
    axes.plot(bounds, [place, place], color=INK["fg"], linewidth=1.6, marker="|", markersize=8)
    axes.plot([median], [place], color=colour, marker=marker, markersize=8)


def standalone(element: str) -> str:
    """An ``<svg>`` of :func:`draw` as a file, which follows its reader's light or dark theme."""
    css = (Path(__file__).parent / "templates" / "style.css").read_text(encoding="utf-8")
    themes = css[css.index(":root") : css.index("* {")]
    own = ":root { --panel: var(--bg); }"  # the figure stands on no panel
    own += " svg { background: var(--bg); font-family: system-ui, sans-serif; fill: var(--fg); }"
    style = f"<style>{themes}{own}</style>"
    head, rest = element.split(">", 1)
    head += ' xmlns="http://www.w3.org/2000/svg" xmlns:xlink="http://www.w3.org/1999/xlink"'
    return f"{head}>{style}{rest}".replace(' href="#', ' xlink:href="#')


def label(text: str) -> str:
    """A legend's label; matplotlib ignores those that start with an underscore."""
    return f"\u200b{text}" if text.startswith("_") else text


def _fit_ticks(figure: Any) -> None:
    """Reduce ticks until their labels do not overlap: matplotlib spaces them for three digits."""
    from matplotlib.ticker import AutoLocator, MaxNLocator

    figure.draw_without_rendering()
    for axes in figure.axes:
        _keep_inside(figure, axes)
        most = 8
        while most > 2 and isinstance(axes.xaxis.get_major_locator(), (AutoLocator, MaxNLocator)):
            boxes = sorted((text.get_window_extent() for text in axes.get_xticklabels()), key=lambda box: box.x0)
            if all(left.x1 + _GAP <= right.x0 for left, right in zip(boxes, boxes[1:])):
                break
            most -= 1
            axes.xaxis.set_major_locator(MaxNLocator(most, steps=[1, 2, 2.5, 5, 10]))
            _keep_inside(figure, axes)


def _keep_inside(figure: Any, axes: Any) -> None:
    """Align the label of a tick at the end of its axis inwards."""
    for text in axes.get_xticklabels():
        text.set_horizontalalignment("center")
        box = text.get_window_extent()
        if box.width and box.x1 > figure.bbox.x1:
            text.set_horizontalalignment("right")
        elif box.width and box.x0 < figure.bbox.x0:
            text.set_horizontalalignment("left")


def _themed(document: str, name: str, alt: str) -> str:
    """Reduce matplotlib's document to an element for an HTML page with other figures."""
    root = ET.fromstring(re.sub(r"<!DOCTYPE[^>]*>", "", document))
    # HTML implies 'xlink:href' and the SVG namespace.
    for element in root.iter():
        element.tag = element.tag.rpartition("}")[2]
        attributes = {key.rpartition("}")[2]: value for key, value in element.attrib.items()}
        if element.tag == "g":
            attributes.pop("id", None)
        element.attrib.clear()
        for key, value in attributes.items():
            if key == "id":
                value = f"{name}-{value}"
            elif key == "href":
                value = value.replace("#", f"#{name}-", 1)
            else:
                value = value.replace("url(#", f"url(#{name}-")
                if key in ("style", "fill", "stroke"):
                    value = _recoloured(value)
            element.attrib[key] = value
        if element.tag == "style" and element.text:
            element.text = _recoloured(element.text)
    view = root.attrib.get("viewBox", "")
    root.attrib.clear()
    root.attrib.update({"viewBox": view, "role": "img", "aria-label": alt})
    return ET.tostring(root, encoding="unicode", short_empty_elements=True)


def _recoloured(style: str) -> str:
    style = re.sub(r"#[0-9a-f]{6}", lambda found: _VARIABLES.get(found.group(), found.group()), style)
    return re.sub(r"font: ([\d.]+)px [^;]+", r"font-size: \1px", style)
