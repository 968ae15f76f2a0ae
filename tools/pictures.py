"""Draws the pictures at the begin of lessons into ``notebooks/pictures``: ``python -m tools.pictures``.

Bars in time, or boxes and arrows, in the style of the figures. The colours are variables of the page.
"""

from __future__ import annotations

import hashlib
import html
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Union

from gluontune.report.svg import INK, ON_SERIES, SERIES, WIDTH, draw

FOLDER = Path(__file__).resolve().parents[1] / "notebooks" / "pictures"
Figure = tuple[tuple[float, float], str, Callable[[Any], None]]  # size in inches, description, drawing function
Part = tuple[str, float, str]  # kind (load, compute, exchange, idle, other), length, text


@dataclass(frozen=True)
class Lanes:
    """Simultaneous activities, a lane each; time runs to the right."""

    caption: str
    lanes: Mapping[str, Sequence[Part]]


@dataclass(frozen=True)
class Box:
    """A box of a picture that is 100 wide; ``y`` grows downwards."""

    x: float
    y: float
    text: str
    kind: str = "idle"
    width: float = 20
    height: float = 9


@dataclass(frozen=True)
class Boxes:
    """Boxes by name, and arrows between them: ``(from, to)``, with optional ``labels``."""

    caption: str
    height: float
    boxes: Mapping[str, Box]
    arrows: Sequence[tuple[str, str]]
    labels: Mapping[tuple[str, str], str] = field(default_factory=dict)
    bend: float = 0.0

    def joined(self) -> list[tuple[Box, Box, str]]:
        """The arrows as boxes, with their labels."""
        return [(self.boxes[a], self.boxes[b], self.labels.get((a, b), "")) for a, b in self.arrows]


def _steps(count: int, *parts: Part) -> list[Part]:
    return [part for _ in range(count) for part in parts]


def _row(y: float, texts: Mapping[str, str], kind: str = "idle", width: float = 20) -> dict[str, Box]:
    """Boxes side by side over the whole width."""
    space = 100 / len(texts)
    return {
        name: Box(space * k + (space - width) / 2, y, text, kind, width) for k, (name, text) in enumerate(texts.items())
    }


def _chain(caption: str, *texts: str) -> Boxes:
    """Four boxes, one after the other."""
    boxes = _row(4, dict(zip("abcd", texts)), "compute", 19)
    return Boxes(caption, 18, boxes, [("a", "b"), ("b", "c"), ("c", "d")])


_RANKS = {f"r{k}": f"rank {k}\nthe whole net" for k in range(4)}
_WALL = Boxes(
    "Data parallelism: each rank has the whole net and a part of the batch",
    52,
    {
        **_row(0, {f"b{k}": f"part {k} of\nthe batch" for k in range(4)}, "load"),
        **_row(19, _RANKS, "compute"),
        "sum": Box(20, 40, "the gradients are summed;\nall make the same update", "exchange", 60, 11),
    },
    [pair for k in range(4) for pair in ((f"b{k}", f"r{k}"), (f"r{k}", "sum"))],
)
_SERVER = Boxes(
    "A parameter server: all ranks send to one place, and all get the sum from it",
    40,
    {
        "server": Box(30, 0, "server: adds up, updates", "exchange", 40, 11),
        **_row(29, {f"r{k}": f"rank {k}" for k in range(4)}, "compute"),
    },
    [pair for k in range(4) for pair in ((f"r{k}", "server"), ("server", f"r{k}"))],
    bend=0.08,
)
_AROUND = [("r0", "r1"), ("r1", "r2"), ("r2", "r3"), ("r3", "r0")]
_RING = Boxes(
    "A ring all-reduce: each rank sends one piece at a time to the next; there is no busy middle",
    46,
    {
        f"r{k}": Box(x, y, f"rank {k}", "compute", 22, 10)
        for k, (x, y) in enumerate([(10, 0), (68, 0), (68, 34), (10, 34)])
    },
    _AROUND,
    dict.fromkeys(_AROUND, "a quarter"),
)
_MODEL = Lanes(
    "Model parallelism: each device has a part of the net, and waits for the part before it",
    {
        "device 0: layers 1–10": [("compute", 2, "forward"), ("idle", 4, "waits"), ("compute", 3, "backward")],
        "device 1: layers 11–20": [("idle", 2, "waits"), ("compute", 2, "forward"), ("compute", 2, "backward"),
                                   ("idle", 3, "waits")],
    },
)  # fmt: skip

BOOK: Mapping[str, Union[Lanes, Boxes]] = {
    "machine": Lanes(
        "Four cores and a program with two threads: half of the machine waits",
        {
            "cores 1 and 2": [("compute", 4, "step 1"), ("compute", 4, "step 2")],
            "cores 3 and 4": [("idle", 8, "nothing to do")],
        },
    ),
    "naive": Lanes(
        "The naive script: load, then compute, then load again",
        {
            "one process": _steps(3, ("load", 3, "load"), ("compute", 2, "compute")),
            "what the device sees": _steps(3, ("idle", 3, "waits"), ("compute", 2, "busy")),
        },
    ),
    "workers": Lanes(
        "With a worker the next batch is made while the device computes",
        {
            "worker": [*_steps(4, ("load", 2, "load")), ("idle", 2, "done")],
            "device": [("idle", 2, "waits"), *_steps(4, ("compute", 2, "compute"))],
        },
    ),
    "records": Boxes(
        "Many small files are opened one by one; a record file stays open",
        44,
        {
            **_row(0, {f"f{k}": f"{k}.jpg" for k in range(4)}, "load", 16),
            "many": Box(25, 16, "open, read, close: four times", "other", 50),
            "rec": Box(5, 34, "images.rec: header, image, header, image …", "load", 62),
            "one": Box(78, 34, "read", "other", 18),
        },
        [*((f"f{k}", "many") for k in range(4)), ("rec", "one")],
    ),
    "graph": Lanes(
        "Imperative: Python calls each operator. A graph is handed over once",
        {
            "imperative": _steps(3, ("other", 1, "call"), ("compute", 1.4, "run")),
            "graph": [("other", 1, "call"), *_steps(3, ("compute", 1.4, "run")), ("idle", 2, "done earlier")],
        },
    ),
    "bits": Lanes(
        "The bits of a number: sign (s), exponent (how large), significand (which digits)",
        {
            "float32, 32 bits": [("other", 1, "s"), ("load", 8, "exponent: 8"), ("compute", 23, "significand: 23")],
            "float16, 16 bits": [("other", 1, "s"), ("load", 5, "5"), ("compute", 10, "10"), ("idle", 16, "saved")],
            "bfloat16, 16 bits": [("other", 1, "s"), ("load", 8, "8"), ("compute", 7, "7"), ("idle", 16, "saved")],
        },
    ),
    "large-batch": Lanes(
        "The same images: eight updates, or two. A large batch takes fewer steps through the loss",
        {
            "small batches": _steps(8, ("compute", 1, "step")),
            "large batches": [*_steps(2, ("compute", 3, "one step")), ("idle", 2, "done earlier")],
        },
    ),
    "data-parallel": _WALL,
    "exchange": Lanes(
        "Two ranks: each step ends with the exchange, and the faster rank waits for the slower one",
        {
            "rank 0": _steps(2, ("compute", 3, "compute"), ("idle", 0.8, "waits"), ("exchange", 1.2, "sum")),
            "rank 1": _steps(2, ("compute", 3.8, "compute"), ("exchange", 1.2, "sum")),
        },
    ),
    "model-parallel": _MODEL,
    "parameter-server": _SERVER,
    "ring": _RING,
    "descent": _chain(
        "One update of any optimizer: look at some points, take the slope, make a step",
        "some points", "gradient g", "state: m, v", "step",
    ),
    "optimizers": Boxes(
        "One gradient, three rules: what an optimizer remembers decides the step that it makes",
        44,
        {
            "g": Box(0, 16, "gradient g", "load", 22, 11),
            **{n: Box(34, y, text, "compute", 34, 11) for n, y, text in (
                ("a", 0, "SGD\nremembers nothing"), ("b", 16, "momentum\nremembers v"),
                ("c", 32, "Adam\nremembers m and v"),
            )},
            "w": Box(80, 16, "weights w", "exchange", 20, 11),
        },
        [pair for n in "abc" for pair in (("g", n), (n, "w"))],
    ),
    "schedule": Lanes(
        "A schedule is a plan for the learning rate, made before training",
        {
            "one rate": [("compute", 9, "moves far, but never settles")],
            "a plan": [("load", 1.5, "warm up"), ("compute", 4, "high: move far"), ("exchange", 2.5, "fall: settle"),
                       ("other", 1, "end")],
        },
    ),
    "composing": Lanes(
        "A step waits for its slowest part: the same gain counts only once the other is there",
        {
            "base": [("load", 5, "load"), ("compute", 3, "compute")],
            "graph alone": [("load", 5, "load"), ("compute", 1.5, "compute"), ("idle", 1.5, "gain")],
            "both": [("load", 1, ""), ("compute", 1.5, "compute"), ("idle", 5.5, "gain: nearly all")],
        },
    ),
    "inference": Lanes(
        "Latency: how long one image waits. Throughput: how many are answered in a second",
        {
            "one by one": _steps(4, ("compute", 2, "1 image")),
            "a batch": [("compute", 4, "4 images"), ("idle", 4, "done earlier; each waited longer")],
        },
    ),
    "assessment": _chain(
        "The grader runs your script by its own clock, and judges the net that it saves",
        "your script", "saved net", "hidden\nimages", "points",
    ),
    "modern-engine": _chain(
        "The job stays; its graph is what another engine computes, and a check says whether it computes the same",
        "job.py", "graph", "PyTorch", "check",
    ),
    "project": _chain(
        "The way of this lesson: look, change one thing at a time, search, keep the recipe",
        "doctor", "ladder", "tune", "recipe.yaml",
    ),
}  # fmt: skip

_COLOURS = {"load": 1, "compute": 4, "exchange": 2, "idle": None, "other": 0}
_LANE, _TITLE = 30, 15  # points
_ROUND = "round,pad=0.4,rounding_size=1.2"
_BEHIND = {"facecolor": INK["panel"], "edgecolor": "none", "pad": 0.6}


def drawn(name: str) -> str:
    """The ``<svg>`` of a picture of the book, its caption as ``<title>``."""
    entry = BOOK[name]
    size, alt, plot = _lanes(entry) if isinstance(entry, Lanes) else _boxes(entry)
    prefix = "gt" + hashlib.sha256(f"{entry.caption}{alt}".encode()).hexdigest()[:10]
    head, rest = draw(prefix, size, plot, f"{entry.caption}. {alt}").split(">", 1)
    return f"{head}><title>{html.escape(entry.caption)}</title>{rest}"


def _lanes(drawn: Lanes) -> Figure:
    lanes = drawn.lanes
    end = max(sum(length for _, length, _ in parts) for parts in lanes.values())
    alt = ". ".join(f"{name}: " + ", ".join(text or kind for kind, _, text in parts) for name, parts in lanes.items())

    def plot(figure: Any) -> None:
        axes = figure.add_axes((0.01, 0.02, 0.98, 0.96))
        axes.set_axis_off()
        axes.set(xlim=(0, end), ylim=(len(lanes) * (_LANE + _TITLE), 0))
        for place, (name, parts) in enumerate(lanes.items()):
            top, start = place * (_LANE + _TITLE), 0.0
            axes.text(0, top + _TITLE - 3, name, va="bottom", weight="bold", size=9.5)
            for kind, length, text in parts:
                _bar(axes, kind, start, length, text, top + _TITLE + 11)
                start += length

    return (WIDTH, len(lanes) * (_LANE + _TITLE) / 72 + 0.06), alt, plot


def _bar(axes: Any, kind: str, start: float, length: float, text: str, middle: float) -> None:
    colour = _COLOURS[kind]
    if colour is None:
        ink, dashes = INK["muted"], (0, (2, 2))
        look = {"height": 20, "facecolor": "none", "edgecolor": ink, "linestyle": dashes, "linewidth": 0.8}
    else:
        ink = ON_SERIES[colour]
        look = {"height": 22, "color": SERIES[colour], "edgecolor": INK["panel"], "linewidth": 1.2}
    axes.barh(middle, length, left=start, **look)
    axes.text(start + length / 2, middle, text, ha="center", va="center", color=ink, size=9)


def _boxes(drawn: Boxes) -> Figure:
    alt = "; ".join(f"{a.text} to {b.text}" + (f", {how}" if how else "") for a, b, how in drawn.joined())

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

    return (WIDTH, WIDTH * drawn.height / 100), alt, plot


if __name__ == "__main__":
    for title in BOOK:
        (FOLDER / f"{title}.svg").write_text(drawn(title) + "\n", encoding="utf-8")
