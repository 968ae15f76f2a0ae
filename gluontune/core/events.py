"""What long work tells as it goes: the events that bars, tables and logs show. Nothing here imports mxnet."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal, Optional, TypedDict, Union

from gluontune.core.ladder_document import RungRow

__all__ = ["LadderEvent", "OnLadderEvent", "OnProgress", "Piece", "Progress", "of_piece", "progress"]


class _Told(TypedDict):
    event: Literal["progress"]
    stage: str
    done: float
    detail: str
    samples_per_sec: Optional[float]
    val_accuracy: Optional[float]
    seconds_left: Optional[float]


class Progress(_Told, total=False):
    """How far one piece of work is.

    Args:
        stage: what is done, such as ``training``. done: 0 … 1 of it. detail: more, in a few words.
        samples_per_sec, val_accuracy: of the training that is on, or None. seconds_left: of the stage, or None.
        name: the rung of a ladder.
        recipe, repeat, repeats: of a study of repeated trainings. row: the repeat that is finished.
        set, piece, pieces: of a study of many settings. rows: what a finished piece has found.
    """

    name: str
    recipe: str
    repeat: int
    repeats: int
    row: dict[str, Any]
    set: str
    piece: int
    pieces: int
    rows: Sequence[dict[str, Any]]


class Piece(TypedDict):
    """One of the settings of a study: its name, its number and how many there are."""

    set: str
    piece: int
    pieces: int


class LadderStart(TypedDict):
    """The rungs that will be climbed."""

    event: Literal["ladder-start"]
    rungs: Sequence[str]
    mode: str
    dataset: Any


class RungStart(TypedDict):
    """A rung begins. ``seconds_left`` is the whole ladder's."""

    event: Literal["rung-start"]
    name: str
    sentence: str
    seconds_left: Optional[float]


class RungEnd(TypedDict):
    """A rung is finished; its row as in ``ladder.json``."""

    event: Literal["rung-end"]
    row: RungRow


class LadderEnd(TypedDict):
    """The climb is over; ``ladder.json`` as it was saved."""

    event: Literal["ladder-end"]
    ladder: dict[str, Any]


LadderEvent = Union[LadderStart, RungStart, Progress, RungEnd, LadderEnd]
OnProgress = Callable[[Progress], None]
OnLadderEvent = Callable[[LadderEvent], None]


def of_piece(on_event: OnProgress, piece: Piece) -> OnProgress:
    """A function that tells events as those of one piece of a study."""
    return lambda event: on_event({**event, **piece})


def progress(
    stage: str,
    done: float,
    detail: str = "",
    *,
    samples_per_sec: float | None = None,
    val_accuracy: float | None = None,
    seconds_left: float | None = None,
) -> Progress:
    """An event of which nothing is missing.

    >>> progress("training", 0.5, "epoch 1/2")["samples_per_sec"] is None
    True
    """
    return {
        "event": "progress",
        "stage": stage,
        "done": done,
        "detail": detail,
        "samples_per_sec": samples_per_sec,
        "val_accuracy": val_accuracy,
        "seconds_left": seconds_left,
    }
