"""Hooks of the training loop: callbacks and checkpoints.

Callbacks get named events in the caller's process, and may end the run. Training runs in other processes, so they get
figures, not the net. Four events:

| event | when | new in it |
|---|---|---|
| ``run_start`` | the processes are ready, before the first step | ``total_steps``, ``steps_per_epoch`` |
| ``steps_end`` | after some steps, about 0.8 s of training | ``steps``, ``loss``, ``samples_per_sec`` |
| ``epoch_end`` | after the validation of an epoch | ``epoch``, ``train_loss``, ``val_loss``, ``val_value`` |
| ``run_end`` | after the last validation | ``stopped_by`` |
"""

from __future__ import annotations

import contextlib
import math
import re
import signal
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any, Callable, Optional, Union

from gluontune.core.errors import GluontuneError, UsageError
from gluontune.core.processes import handling
from gluontune.core.reading import understood
from gluontune.job import checkpoint
from gluontune.recipe import Recipe

EVENTS = ("run_start", "steps_end", "epoch_end", "run_end")


@dataclass
class Moment:
    """The state of a run at an event, for callbacks.

    Args:
        event: of :data:`EVENTS`. recipe: of the run.
        steps, total_steps, steps_per_epoch: taken, of the whole run, and of an epoch.
        epoch: validated epochs.
        seconds: of training until now, without start and validation.
        samples_per_sec: of the last window of steps, over all ranks.
        loss: mean over that window. train_loss: mean over the epoch.
        val_loss, val_value: of the last validation; ``val_metric`` names the value (``accuracy``, or the job's own).
        stopped_by: the callback that ended the run early, with its reason; or None.
    """

    event: str
    recipe: Recipe
    steps: int = 0
    total_steps: int = 0
    steps_per_epoch: int = 0
    epoch: int = 0
    seconds: float = 0.0
    samples_per_sec: Optional[float] = None
    loss: Optional[float] = None
    train_loss: Optional[float] = None
    val_loss: Optional[float] = None
    val_value: Optional[float] = None
    val_metric: str = "accuracy"
    stopped_by: Optional[str] = None
    _asked: list[str] = field(default_factory=list, repr=False)

    def stop(self, reason: str = "") -> None:
        """End the run after this event, with a last validation and, if the run has any, a checkpoint."""
        self._asked.append(reason)


class Callback:
    """A base class with a method for each event. A function of a :class:`Moment` gets all events.

    >>> class FirstLoss(Callback):
    ...     def steps_end(self, now):
    ...         now.stop(f"the loss is {now.loss:.1f}")
    >>> FirstLoss().run_start(Moment("run_start", Recipe()))
    """

    def run_start(self, now: Moment) -> None:
        """The processes are ready."""

    def steps_end(self, now: Moment) -> None:
        """Some steps were taken."""

    def epoch_end(self, now: Moment) -> None:
        """An epoch was validated."""

    def run_end(self, now: Moment) -> None:
        """The run is over."""


class Callbacks:
    """The callbacks of one run.

    >>> seen = []
    >>> calls = Callbacks([lambda now: now.stop("enough")])
    >>> calls.tell(Moment("steps_end", Recipe()))
    >>> calls.stopped_by
    '<lambda>: enough'
    """

    def __init__(self, each: Iterable[Union[Callback, Callable[[Moment], Any]]] = ()):
        self.each = list(each)
        self.stopped_by: str | None = None
        for one in self.each:
            if not callable(one) and not any(callable(getattr(one, name, None)) for name in EVENTS):
                raise UsageError(
                    f"callbacks: {one!r} is no function and has no method {', '.join(EVENTS)}: inherit from "
                    "gt.train.Callback"
                )

    def tell(self, now: Moment) -> None:
        """Call each callback and record the first stop. An exception of a callback ends the run."""
        for one in self.each:
            method = getattr(one, now.event, None) or (one if callable(one) else None)
            if method is None:
                continue
            method(now)
            if now._asked and self.stopped_by is None:
                name = getattr(one, "__name__", type(one).__name__)
                reason = now._asked[0]
                self.stopped_by = f"{name}: {reason}" if reason else name


# A resume requires equal values of these fields. The others are free: a resumed run may be longer, use other numbers
# of threads, or run elsewhere.
_SAME = (
    "dataset", "net", "backend", "augment", "train_samples", "seed", "batch_size_per_device", "accumulate",
    "num_devices", "last_batch", "loader", "optimizer", "dtype", "rewrites",
)  # fmt: skip

_UNITS = {"step": 1.0, "s": 1.0, "sec": 1.0, "second": 1.0, "min": 60.0, "minute": 60.0, "h": 3600.0, "hour": 3600.0}


def parse_interval(text: str) -> tuple[int | None, float | None]:
    """``(steps, seconds)`` between checkpoints; one of them is None.

    >>> parse_interval("500steps"), parse_interval("90s"), parse_interval("5 min")
    ((500, None), (None, 90.0), (None, 300.0))
    """
    found = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([a-z]+?)s?\s*", text.lower())
    unit = found[2] if found else ""
    number = float(found[1]) if found else 0.0
    if unit not in _UNITS or number <= 0 or (unit == "step" and number != int(number)):
        raise UsageError(f"--checkpoint-every {text!r}: give steps or a time, such as 500steps, 90s or 5min")
    if unit == "step":
        return int(number), None
    return None, number * _UNITS[unit]


@dataclass(frozen=True)
class Checkpoints:
    """Folder and interval of a run's checkpoints.

    Args:
        folder: of this run only.
        every: ``"500steps"``, ``"90s"``, ``"5min"``; each epoch ends with a checkpoint, too.
        keep: number of the newest ones to keep, beside the one with the best validation accuracy.
        resume: go on from the newest intact checkpoint, if there is one.

    >>> import tempfile, gluontune as gt
    >>> folder = tempfile.mkdtemp()
    >>> fast = gt.Recipe(net="mlp", loader="resident", train_samples=512, val_samples=128)
    >>> half = gt.train.run(fast, checkpoints=gt.train.Checkpoints(folder))
    >>> more = fast.override(epochs=2)
    >>> whole = gt.train.run(more, checkpoints=gt.train.Checkpoints(folder, resume=True))
    >>> half.steps, whole.steps, whole.val_accuracy[0] == half.val_accuracy[0]
    (8, 16, True)
    """

    folder: str | Path
    every: str = "5min"
    keep: int = 3
    resume: bool = False

    def __post_init__(self) -> None:
        parse_interval(self.every)
        if isinstance(self.keep, bool) or not isinstance(self.keep, int) or self.keep < 1:
            raise UsageError(f"keep={self.keep!r}: keep at least 1 checkpoint")


class Keeper:
    """The checkpoints of one run, in the driving process; ``stopped_by``: the signal that requested a stop."""

    def __init__(self, recipe: Recipe, plan: Checkpoints):
        self.recipe, self.plan = recipe, plan
        self.every_steps, self.every_s = parse_interval(plan.every)
        self.stopped_by: signal.Signals | None = None
        self._last_step, self._last_time = 0, time.monotonic()
        self._best = -math.inf

    def setup(self) -> dict[str, Any]:
        return {"folder": str(Path(self.plan.folder).resolve()), "keep": self.plan.keep}

    @contextlib.contextmanager
    def holding(self) -> Iterator[Keeper]:
        """Lock the folder against other runs."""
        with checkpoint.locked(self.plan.folder):
            held = checkpoint.files(self.plan.folder)
            if held and not self.plan.resume:
                raise UsageError(
                    f"{self.plan.folder}: holds checkpoints up to {held[0].name} of an earlier run: "
                    "add --resume to go on from there, or choose another folder"
                )
            yield self

    def find(self) -> tuple[Path | None, dict[str, Any], list[str]]:
        """The checkpoint to resume from (of the same model and data set), its header, and notes."""
        path, header, notes = checkpoint.newest(self.plan.folder)
        if path is None:
            return None, {}, notes
        with understood(path):
            self._take(path, header)
        notes = [f"{text}; the one before is used" for text in notes]
        return path, header, [*notes, f"went on from {path} (step {header['step']})"]

    def _take(self, path: Path, header: dict[str, Any]) -> None:
        theirs = Recipe.from_dict(header["recipe"], str(path)).resolved().to_dict()
        mine = self.recipe.resolved().to_dict()
        free = ("num_devices",) if mine["engine"] == theirs["engine"] == "ddp" else ()
        other = [name for name in _SAME if theirs[name] != mine[name] and name not in free]
        if (theirs["job"] is None) != (mine["job"] is None):
            other.insert(0, "job")
        if other:
            there = ", ".join(f"{name}={theirs[name]!r}" for name in other)
            here = ", ".join(f"{name}={mine[name]!r}" for name in other)
            raise GluontuneError(f"{path} is of a run with {there}, and this one has {here}: take another --checkpoint")
        self._last_step, self._best = header["step"], best_score(header)

    def due(self, step: int) -> bool:
        if self.every_steps is not None:
            return step - self._last_step >= self.every_steps
        return time.monotonic() - self._last_time >= (self.every_s or 0.0)

    def steps_until_due(self, step: int) -> int | None:
        """Steps until the next checkpoint is due; None for intervals of time."""
        return None if self.every_steps is None else max(1, self.every_steps - (step - self._last_step))

    def save(
        self, group: Any, step: int, progress: dict[str, Any], score: float | None = None, last: bool = False
    ) -> list[str]:
        """Let rank 0 write a checkpoint; a larger ``score`` is better; ``last``: wait. Returns errors as notes."""
        best = score is not None and score > self._best
        extra = {"recipe": self.recipe.to_dict(), "progress": progress, "val_score": score}
        answer = group.checkpoint(extra, wait=last or best)
        if answer["skipped"]:  # the previous one is still being written: try again after the next window
            return []
        self._last_step, self._last_time = step, time.monotonic()
        self._best = self._best if score is None else max(self._best, score)
        return [] if answer["error"] is None else [f"a checkpoint was not written: {answer['error']}"]

    def way_on(self) -> str:
        there = checkpoint.files(self.plan.folder)
        if not there:
            return f"{self.plan.folder} has no checkpoint yet"
        return f"its newest checkpoint is {there[0]}; go on with the same command and --resume"

    @contextlib.contextmanager
    def listening(self) -> Iterator[None]:
        """Handle signals: the first SIGINT or SIGTERM requests a stop; the second interrupts at once."""

        def stop(number: int, frame: FrameType | None) -> None:
            if self.stopped_by is not None:
                raise KeyboardInterrupt
            self.stopped_by = signal.Signals(number)

        with handling(stop):
            yield


def best_score(header: Mapping[str, Any]) -> float:
    """The best value of the metric until a checkpoint, larger being better; minus infinity if there is none."""
    done = header["progress"]["result"]
    metric = done.get("val_metric") or {"mode": "max", "values": done["val_accuracy"]}
    sign = -1.0 if metric["mode"] == "min" else 1.0
    return max((sign * value for value in metric["values"] if value is not None), default=-math.inf)
