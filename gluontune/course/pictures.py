"""The picture that a lesson opens with: bars in time, or boxes and arrows, drawn like its figures."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from gluontune.course.figures import Markup
from gluontune.course.picture_book import BOOK, Boxes, Lanes, Part
from gluontune.course.plots import WIDTH, figure_of
from gluontune.errors import UsageError, nearest
from gluontune.report.svg import INK, ON_SERIES, SERIES

__all__ = ["picture"]

_COLOURS = {"load": 1, "compute": 4, "exchange": 2, "idle": None, "other": 0}
_LANE, _TITLE = 30, 15  # points
_ROUND = "round,pad=0.4,rounding_size=1.2"
_BEHIND = {"facecolor": INK["panel"], "edgecolor": "none", "pad": 0.6}


def picture(name: str) -> Markup:
    """A picture of the course by its name.

    Args:
        name: such as ``"ring"``; an unknown one lists what there is.

    Raises:
        UsageError: no such picture.

    >>> "A ring all-reduce" in str(picture("ring"))
    True
    >>> picture("rign")
    Traceback (most recent call last):
        ...
    gluontune.errors.UsageError: picture('rign'): did you mean 'ring'? there are ...
    """
    if name not in BOOK:
        close = nearest(name, list(BOOK))
        hint = f"did you mean {close[0]!r}? " if close else ""
        raise UsageError(f"picture({name!r}): {hint}there are {', '.join(sorted(BOOK))}")
    drawn = BOOK[name]
    return _lanes(drawn) if isinstance(drawn, Lanes) else _boxes(drawn)


@dataclass(frozen=True)
class _Bar:
    start: float
    length: float
    kind: str
    text: str


def _bars(lane: Sequence[Part]) -> list[_Bar]:
    """A lane's parts, one after the other."""
    found, at = [], 0.0
    for kind, length, text in lane:
        found.append(_Bar(at, length, kind, text))
        at += length
    return found


def _lanes(drawn: Lanes) -> Markup:
    lanes = {name: _bars(parts) for name, parts in drawn.lanes.items()}
    end = max(bar.start + bar.length for bars in lanes.values() for bar in bars)
    said = ". ".join(f"{name}: " + ", ".join(bar.text or bar.kind for bar in bars) for name, bars in lanes.items())

    def plot(figure: Any) -> None:
        axes = figure.add_axes((0.01, 0.02, 0.98, 0.96))
        axes.set_axis_off()
        axes.set(xlim=(0, end), ylim=(len(lanes) * (_LANE + _TITLE), 0))
        for place, (name, bars) in enumerate(lanes.items()):
            top = place * (_LANE + _TITLE)
            axes.text(0, top + _TITLE - 3, name, va="bottom", weight="bold", size=9.5)
            for bar in bars:
                _one_bar(axes, bar, top + _TITLE)

    return figure_of(drawn.caption, said, (WIDTH, len(lanes) * (_LANE + _TITLE) / 72 + 0.06), plot)


def _one_bar(axes: Any, bar: _Bar, top: float) -> None:
    colour = _COLOURS[bar.kind]
    if colour is None:
        axes.barh(
            top + 11, bar.length, left=bar.start, height=20, facecolor="none",
            edgecolor=INK["muted"], linestyle=(0, (2, 2)), linewidth=0.8,
        )  # fmt: skip
        ink = INK["muted"]
    else:
        axes.barh(
            top + 11, bar.length, left=bar.start, height=22, color=SERIES[colour],
            edgecolor=INK["panel"], linewidth=1.2,
        )  # fmt: skip
        ink = ON_SERIES[colour]
    axes.text(bar.start + bar.length / 2, top + 11, bar.text, ha="center", va="center", color=ink, size=9)


def _boxes(drawn: Boxes) -> Markup:
    said = "; ".join(f"{a.text} to {b.text}" + (f", {how}" if how else "") for a, b, how in drawn.joined())

    def plot(figure: Any) -> None:
        from matplotlib.patches import FancyArrowPatch, FancyBboxPatch

        axes = figure.add_axes((0.005, 0.01, 0.99, 0.98))
        axes.set_axis_off()
        axes.set(xlim=(0, 100), ylim=(drawn.height, 0))
        patches = {}
        for name, box in drawn.boxes.items():
            colour = _COLOURS[box.kind]
            patch = FancyBboxPatch(
                (box.x + 0.8, box.y + 0.8), box.width - 1.6, box.height - 1.6, boxstyle=_ROUND,
                facecolor="none" if colour is None else SERIES[colour], edgecolor=INK["muted"], linewidth=1,
            )  # fmt: skip
            axes.add_patch(patch)
            patches[name] = patch
            ink = INK["fg"] if colour is None else ON_SERIES[colour]
            middle = (box.x + box.width / 2, box.y + box.height / 2)
            axes.text(*middle, box.text, ha="center", va="center", color=ink, size=9)
        for (a, b), (one, two, how) in zip(drawn.arrows, drawn.joined()):
            ends = [(box.x + box.width / 2, box.y + box.height / 2) for box in (one, two)]
            arrow = FancyArrowPatch(
                *ends, patchA=patches[a], patchB=patches[b], arrowstyle="-|>", mutation_scale=10,
                color=INK["fg"], linewidth=1.2, shrinkA=2, shrinkB=2, connectionstyle=f"arc3,rad={drawn.bend}",
            )  # fmt: skip
            axes.add_patch(arrow)
            if how:
                (x1, y1), (x2, y2) = ends
                axes.text((x1 + x2) / 2, (y1 + y2) / 2 - 1, how, ha="center", va="bottom", size=9,
                          color=INK["fg"], bbox=_BEHIND)  # fmt: skip

    return figure_of(drawn.caption, said, (WIDTH, WIDTH * drawn.height / 100), plot)
