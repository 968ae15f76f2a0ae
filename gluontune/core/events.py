"""Events of long work, for bars, tables and logs, and the rows of ``ladder.json`` that some of them hold."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, Optional, TypedDict, Union

from gluontune.core.stats import Interval

if TYPE_CHECKING:
    from typing_extensions import NotRequired


class Progress(TypedDict):
    """Progress of one piece of work: its ``stage``, the share ``done`` (0 … 1), a few words of ``detail``.

    ``name`` is the rung of a ladder; ``recipe``, ``repeat``, ``repeats`` and ``row`` are of a study of repeated
    trainings, ``set``, ``piece``, ``pieces`` and ``rows`` of a study of many settings.
    """

    event: Literal["progress"]
    stage: str
    done: float
    detail: str
    samples_per_sec: Optional[float]
    val_accuracy: Optional[float]
    seconds_left: Optional[float]
    name: NotRequired[str]
    recipe: NotRequired[str]
    repeat: NotRequired[int]
    repeats: NotRequired[int]
    row: NotRequired[dict[str, Any]]
    set: NotRequired[str]
    piece: NotRequired[int]
    pieces: NotRequired[int]
    rows: NotRequired[Sequence[dict[str, Any]]]


class Piece(TypedDict):
    """One of the settings of a study: its name, its number and their count."""

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
    """A function that marks events with their piece of a study."""
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
    """A progress event with all its fields."""
    return {
        "event": "progress", "stage": stage, "done": done, "detail": detail, "samples_per_sec": samples_per_sec,
        "val_accuracy": val_accuracy, "seconds_left": seconds_left,
    }  # fmt: skip


class Guess(TypedDict):
    """A rate predicted before the measurement, and the basis of the prediction."""

    samples_per_sec: float
    basis: str


class VariantRow(TypedDict):
    """One way to climb a rung, with ``status`` ``ran`` or ``failed``; ``changes`` are recipe fields.

    The rung's figures are those of the ``chosen`` one; one that ``lost`` cost accuracy. ``accuracy``, ``epochs`` and
    ``seconds_to_accuracy`` are of the training to the kept accuracy, on the rung of large batches.
    """

    label: str
    changes: dict[str, Any]
    status: str
    reason: Optional[str]
    samples_per_sec: Optional[Interval]
    ratio_to_previous: Optional[Interval]
    chosen: bool
    lost: bool
    predicted: NotRequired[Optional[Guess]]
    accuracy: NotRequired[Optional[float]]
    epochs: NotRequired[float]
    seconds_to_accuracy: NotRequired[Optional[float]]


class RungRow(TypedDict):
    """One rung: its measurements, its verdict, and the recipe that it leaves.

    Args:
        status: ``ran``, ``failed`` or ``skipped``. verdict: ``helped``, ``no gain``, ``hurt`` or ``n/a``; with
            ``measurable`` False it is not known. kept: the climb goes on from its recipe.
        samples_per_sec: of the chosen variant; ``ratio_to_previous``: to the best recipe before it.
        seconds_to_accuracy: of the rung of large batches: ``{"target", "seconds", "ratio", ...}``.
        changes: recipe fields of the chosen variant. variants: all that were tried.
        contest_decided: the slices sufficed for a verdict. devices: the counts that were compared.
        over_naive: speed of the recipe before it against naive, if naive's long steps took no part in this contest.
        left_out: it was measured by leaving it out of the best recipe, which has it.
        on_top_of: the rung that it was measured on top of, where the proof took that one back.
    """

    name: str
    sentence: str
    status: str
    reason: Optional[str]
    verdict: str
    measurable: bool
    kept: bool
    finished: bool
    samples_per_sec: Optional[Interval]
    predicted: Optional[Guess]
    speedup_vs_naive: Optional[float]
    speedup_ci95: Optional[list[float]]
    ratio_to_previous: Optional[Interval]
    epoch_seconds: list[float]
    elapsed_seconds: list[float]
    val_accuracy: list[float]
    val_metric: dict[str, Any]
    accuracy_runs: list[float]
    seconds_to_accuracy: Optional[dict[str, Any]]
    train_loss: list[float]
    steadiness: dict[str, Any]
    phases_pct: dict[str, float]
    phases: dict[str, Any]
    utilization: dict[str, Any]
    peak_rss_mib: Optional[float]
    peak_gpu_mib: Optional[float]
    warmup_seconds: Optional[float]
    seconds: Optional[float]
    variants: list[VariantRow]
    changes: dict[str, Any]
    recipe: Optional[dict[str, Any]]
    error: Optional[dict[str, Any]]
    notes: list[str]
    contest_decided: NotRequired[bool]
    on_top_of: NotRequired[str]
    over_naive: NotRequired[Interval]
    left_out: NotRequired[bool]
    devices: NotRequired[dict[str, Any]]


def deciding(row: Mapping[str, Any]) -> Optional[Interval]:
    """The ratio that a rung was judged by: of the time to an accuracy where that decided, else of throughput."""
    found: Optional[Interval] = (row.get("seconds_to_accuracy") or {}).get("ratio") or row["ratio_to_previous"]
    return found


def rung_row(name: str, sentence: str) -> RungRow:
    """The row of a rung that begins: without further changes, an interrupted one."""
    return {
        "name": name, "sentence": sentence, "status": "skipped", "reason": "interrupted before it was finished",
        "verdict": "n/a", "measurable": True, "kept": False, "finished": False, "samples_per_sec": None,
        "predicted": None, "speedup_vs_naive": None, "speedup_ci95": None, "ratio_to_previous": None,
        "epoch_seconds": [], "elapsed_seconds": [], "val_accuracy": [], "val_metric": {}, "accuracy_runs": [],
        "seconds_to_accuracy": None, "train_loss": [], "steadiness": {}, "phases_pct": {}, "phases": {},
        "utilization": {}, "peak_rss_mib": None, "peak_gpu_mib": None, "warmup_seconds": None, "seconds": None,
        "variants": [], "changes": {}, "recipe": None, "error": None, "notes": [],
    }  # fmt: skip
