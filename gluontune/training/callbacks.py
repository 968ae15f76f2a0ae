"""Callbacks of a run: they get named events in the caller's process, and may end the run.

Training runs in other processes, so a callback gets figures, not the net. Four events:

| event | when | new in it |
|---|---|---|
| ``run_start`` | the processes are ready, before the first step | ``total_steps``, ``steps_per_epoch`` |
| ``steps_end`` | after some steps, about 0.8 s of training | ``steps``, ``loss``, ``samples_per_sec`` |
| ``epoch_end`` | after the validation of an epoch | ``epoch``, ``train_loss``, ``val_loss``, ``val_value`` |
| ``run_end`` | after the last validation | ``stopped_by`` |
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Callable, Optional, Union

from gluontune.core.errors import UsageError
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
