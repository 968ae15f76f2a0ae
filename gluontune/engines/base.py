"""What the training processes of both engines have in common, and what each must have."""

from __future__ import annotations

import resource
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from gluontune.core.errors import GluontuneError
from gluontune.job.checkpoint_writer import Writer
from gluontune.job.data import Feed
from gluontune.monitor import StepPhases
from gluontune.recipe import Recipe

__all__ = ["SAMPLED_EVERY", "BaseSession"]

SAMPLED_EVERY = 25  # one step in so many is cut into phases by waits


class BaseSession(ABC):
    """One rank of a training run, in its own process, on one engine.

    Args:
        recipe: what to train.
        rank, world: this process among the ranks of the run.
        checkpoints: ``{"folder", "keep"}`` where the run keeps checkpoints, or None.
        rejoins: the process before this one has died: go on from the weights that the others share.
        local_rank: among the ranks of this machine, which is that of its GPU; None: all ranks are here.

    Attributes:
        phase: what the session is doing, for error messages.
        feed, phases: the loaders; the times of the phases of a step.
        batches_per_epoch: steps in one epoch, the same on all ranks.
        samples_per_step: images of this rank in one step.
        steps_taken: steps since the seeded start, those before a checkpoint included. epoch: of the next batch.
        fresh: whether everything is as at the seeded start.
        repeated: a batch that each step takes, in place of the loader's; None: the loader's.
    """

    feed: Feed
    phases: StepPhases
    batches_per_epoch: int
    samples_per_step: int

    def __init__(
        self,
        recipe: Recipe,
        rank: int = 0,
        world: int = 1,
        checkpoints: dict[str, Any] | None = None,
        rejoins: bool = False,
        local_rank: int | None = None,
    ):
        self.recipe, self.rank, self.world, self.rejoins = recipe, rank, world, rejoins
        self.local_rank = rank if local_rank is None else local_rank
        self.phase = "starting"
        self.writer = Writer(**checkpoints) if checkpoints else None
        self.epoch = self.steps_taken = 0
        self.repeated: tuple[Any, ...] | None = None
        self._batches: Iterator[Any] | None = None
        self.fresh = False

    @abstractmethod
    def build(self, opened: Callable[[], None] | None = None) -> None:
        """Open the data, make the net: all that comes before the first step.

        Args:
            opened: called once the data are there, before anything is exchanged with other ranks.
        """

    @abstractmethod
    def site(self) -> dict[str, Any]:
        """What the ladder and the other ranks ask of the process that is there."""

    def warnings(self) -> list[str]:
        """Remarks on what is trained, for the result's notes."""
        return []

    @abstractmethod
    def common(self) -> dict[str, Any]:
        """What must be alike on all ranks."""

    @abstractmethod
    def reset(self, epochs: float | None = None) -> None:
        """Back to the seeded start: parameters, optimizer, schedule, random streams, first epoch.

        Args:
            epochs: the length of the training from now on, to which the schedule is fitted; None leaves it.
        """

    @abstractmethod
    def steps(self, count: int) -> dict[str, Any]:
        """Take ``count`` steps and wait until they are really done.

        Returns:
            ``{"samples", "seconds", "loss"}`` of this rank; ``loss`` is the mean over the steps.
        """

    @abstractmethod
    def validate(self) -> dict[str, Any]:
        """The metric and the mean loss over the validation samples, by this rank's net.

        Returns:
            ``{"metric": {"name", "mode", "value"}, "flipped", "accuracy", "loss", "samples", "seconds"}``;
            ``accuracy`` is None where the job has another metric, ``flipped`` (the metric with test-time flips) where
            the recipe asks for none.
        """

    @abstractmethod
    def agree(self) -> None:
        """Bring all ranks to the same parameters, where they train apart between exchanges."""

    @abstractmethod
    def restore(self, path: str) -> None:
        """Go on from a checkpoint, after :meth:`build` or :meth:`reset`."""

    @abstractmethod
    def _capture(self) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
        """Header and arrays of a checkpoint; the arrays are copies."""

    def checkpoint(self, extra: dict[str, Any], wait: bool) -> dict[str, Any]:
        """Copy all that a resumed run needs, and have it written; see :meth:`Writer.save`."""
        assert self.writer is not None
        self.phase = "writing a checkpoint"
        if self.writer.busy and not wait:
            return {"written": None, "error": None, "skipped": True}
        header, arrays = self._capture()
        return {**self.writer.save({**header, **extra}, arrays, wait), "skipped": False}

    def next_batch(self) -> tuple[Any, ...]:
        """The next batch, over the end of an epoch."""
        if self.repeated is not None:
            return self.repeated
        for _ in range(2):
            if self._batches is None:
                self._batches = iter(self.feed.train.epoch(self.epoch))
            batch: tuple[Any, ...] | None = next(self._batches, None)
            if batch is not None:
                return batch
            self._batches = None
            self.epoch += 1
            self._epoch_begins()
        raise GluontuneError("the training data gave no batch in a whole epoch")

    def _epoch_begins(self) -> None:  # noqa: B027 (an engine without recurrent state has nothing to do)
        """The loader begins another epoch of training."""

    def close_batches(self) -> None:
        """Let the epoch under way go."""
        close = getattr(self._batches, "close", None)
        if close is not None:
            close()
        self._batches = None

    def _fit_to(self, epochs: float | None) -> bool:
        """Take the new length of the training; whether there is anything to reset."""
        if epochs is not None and epochs != self.recipe.epochs:
            self.recipe, self.fresh = self.recipe.override(epochs=epochs), False
        return not self.fresh

    def _check_batches(self, images: int, batch_size: int) -> None:
        if self.batches_per_epoch == 0:
            raise GluontuneError(
                f"{images} training images make no whole batch of {batch_size}: use a smaller batch_size_per_device or "
                "last_batch='keep'"
            )

    def memory_mib(self) -> dict[str, float]:
        """Highest resident memory of this process, MiB."""
        return {"peak_rss_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024}

    def close(self) -> None:
        """Finish the checkpoint that is being written, and stop the loaders' threads and workers."""
        if self.writer is not None:
            self.writer.finish()
        if hasattr(self, "feed"):
            self.close_batches()
            self.feed.close()
