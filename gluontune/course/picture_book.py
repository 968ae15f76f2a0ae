"""What the course's pictures show: plain data, which :mod:`gluontune.course.pictures` draws."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Union

__all__ = ["BOOK", "Box", "Boxes", "Lanes", "Part"]

Part = tuple[str, float, str]  # kind (load, compute, exchange, idle, other), length, text


@dataclass(frozen=True)
class Lanes:
    """What happens at the same time, one lane below the other; time runs to the right."""

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
    """Boxes by name, and arrows between them: ``(from, to)``; ``labels`` says what goes along one of them."""

    caption: str
    height: float
    boxes: Mapping[str, Box]
    arrows: Sequence[tuple[str, str]]
    labels: Mapping[tuple[str, str], str]
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
    {},
)
_SERVER = Boxes(
    "A parameter server: all ranks send to one place, and all get the sum from it",
    40,
    {
        "server": Box(30, 0, "server: adds up, updates", "exchange", 40, 11),
        **_row(29, {f"r{k}": f"rank {k}" for k in range(4)}, "compute"),
    },
    [pair for k in range(4) for pair in ((f"r{k}", "server"), ("server", f"r{k}"))],
    {},
    0.08,
)
_RING = Boxes(
    "A ring all-reduce: each rank sends one piece at a time to the next; there is no busy middle",
    46,
    {
        "r0": Box(10, 0, "rank 0", "compute", 22, 10),
        "r1": Box(68, 0, "rank 1", "compute", 22, 10),
        "r2": Box(68, 34, "rank 2", "compute", 22, 10),
        "r3": Box(10, 34, "rank 3", "compute", 22, 10),
    },
    [("r0", "r1"), ("r1", "r2"), ("r2", "r3"), ("r3", "r0")],
    {("r0", "r1"): "a quarter", ("r1", "r2"): "a quarter", ("r2", "r3"): "a quarter", ("r3", "r0"): "a quarter"},
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
        {},
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
    "descent": Boxes(
        "One update of any optimizer: look at some points, take the slope, make a step",
        18,
        _row(4, {"a": "some points", "b": "gradient g", "c": "state: m, v", "d": "step"}, "compute", 19),
        [("a", "b"), ("b", "c"), ("c", "d")],
        {},
    ),
    "schedule": Lanes(
        "A schedule is a plan for the learning rate, made before training",
        {
            "one rate": [("compute", 9, "moves far, but never settles")],
            "a plan": [
                ("load", 1.5, "warm up"),
                ("compute", 4, "high: move far"),
                ("exchange", 2.5, "fall: settle"),
                ("other", 1, "end"),
            ],
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
    "assessment": Boxes(
        "The grader runs your script by its own clock, and judges the net that it saves",
        18,
        _row(4, {"a": "your script", "b": "saved net", "c": "hidden\nimages", "d": "points"}, "compute", 19),
        [("a", "b"), ("b", "c"), ("c", "d")],
        {},
    ),
    "modern-engine": Boxes(
        "The job stays; its graph is what another engine computes, and a check says whether it computes the same",
        18,
        _row(4, {"a": "job.py", "b": "graph", "c": "PyTorch", "d": "check"}, "compute", 19),
        [("a", "b"), ("b", "c"), ("c", "d")],
        {},
    ),
    "project": Boxes(
        "The way of this lesson: look, change one thing at a time, search, keep the recipe",
        18,
        _row(4, {"a": "doctor", "b": "ladder", "c": "tune", "d": "recipe.yaml"}, "compute", 19),
        [("a", "b"), ("b", "c"), ("c", "d")],
        {},
    ),
}
