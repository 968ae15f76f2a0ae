"""The contract of an engine, and the common course of a step, a validation, a checkpoint."""

from __future__ import annotations

import contextlib
import random
import resource
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Optional

import numpy as np

from gluontune import __version__
from gluontune.core.errors import GluontuneError
from gluontune.core.reading import understood
from gluontune.engines import ENGINES
from gluontune.engines.progress import MethodSteps, Progress
from gluontune.job import checkpoint
from gluontune.job.batches import Outcome, Score, array_score, finite
from gluontune.job.data import Feed
from gluontune.monitor import StepPhases
from gluontune.recipe import Recipe

SAMPLED_EVERY = 25  # one step in so many is split into phases by waits

Command = Callable[[dict[str, Any]], Optional[dict[str, Any]]]
Arrays = Mapping[str, np.ndarray]
State = tuple[dict[str, Any], dict[str, np.ndarray]]  # values for JSON, and arrays by name


class Engine(ABC):
    """One rank of a training run, in its own process.

    An engine implements the abstract methods, and overrides those that suit only numpy's arrays.

    Args:
        recipe: of the run.
        rank, world: this process among the ranks of the run. checkpoints: ``{"folder", "keep"}``, or None.
        rejoins: this process replaces a dead one: it continues from the weights shared by the others.
        local_rank: among the ranks of this machine, which is also its GPU; None: all ranks are here.

    Attributes:
        name: of the engine, as in a recipe's ``backend``. phase: the current activity, for error messages.
        feed, progress: the loaders, and the position of the training.
        methods, phases: the recipe's methods; the times of the phases of a step.
        batches_per_epoch: steps in one epoch, on all ranks alike. samples_per_step: images of this rank in one step.
        fresh: whether the session is at the seeded start. news: remarks not told yet, for the result's notes.
    """

    name: str
    feed: Feed
    progress: Progress
    methods: MethodSteps
    phases: StepPhases
    batches_per_epoch: int
    samples_per_step: int

    def __init__(
        self, recipe: Recipe, rank: int = 0, world: int = 1, checkpoints: dict[str, Any] | None = None,
        rejoins: bool = False, local_rank: int | None = None,
    ):  # fmt: skip
        self.recipe, self.rank, self.world, self.rejoins = recipe, rank, world, rejoins
        self.local_rank = rank if local_rank is None else local_rank
        self.phase = "starting"
        self.writer = checkpoint.Writer(**checkpoints) if checkpoints else None
        self._losses: list[Any] = []  # of the current steps, on the device
        self.fresh = False
        self.news: list[str] = []

    @abstractmethod
    def build(self, opened: Callable[[], None] | None = None) -> None:
        """Open the data (then call ``opened``, before any exchange with other ranks), make the net, :meth:`reset`."""

    @abstractmethod
    def site(self) -> dict[str, Any]:
        """Facts of the process for the ladder and the other ranks."""

    @abstractmethod
    def weights(self, whole: bool) -> Mapping[str, Any]:
        """The engine's arrays of the net by their places in it; ``whole``: with those that are not trained."""

    @abstractmethod
    def start_anew(self, total: int) -> None:
        """Weights of the seeded start, and an optimizer for ``total`` steps."""

    @abstractmethod
    def train(self, batch: tuple[Any, ...], phase: Any) -> int:
        """Forward, backward, update; the losses go to ``_losses``. Returns the number of samples."""

    @abstractmethod
    def evaluate(self, batch: tuple[Any, ...]) -> Iterable[tuple[Outcome, Any]]:
        """The outcomes of a validation batch, each with the mean output over an image's views, or None."""

    def set_weight(self, place: str, values: Any) -> None:
        """Write one of :meth:`weights`."""
        self.weights(True)[place][:] = values

    def to_host(self, array: Any) -> np.ndarray:
        """A copy of one of the engine's arrays."""
        return np.array(array)

    def to_device(self, values: np.ndarray, place: str) -> Any:
        """Values of the host as an array like the weight of that place."""
        return values

    def step_losses(self) -> list[float]:
        """``_losses`` on the host, one number for each step, after waiting."""
        return [float(value) for value in self._losses]

    def new_score(self) -> Score:
        """A new score, which collects a validation into the job's metric."""
        return array_score(**self.site()["metric"])

    def capabilities(self) -> dict[str, Command]:
        """The commands that only this engine's card declares, by name."""
        return {}

    def remarks(self) -> list[str]:
        """Remarks on the training until now, for the result's notes."""
        return []

    def versions(self) -> dict[str, str]:
        """The version of the engine's library."""
        return {}

    def agree(self) -> None:
        """Bring all ranks to the same parameters, if they train apart between exchanges."""

    def begin_run(self) -> None:
        """A training begins at its seeded start."""

    def begin_epoch(self) -> None:
        """The loader begins another epoch of training."""

    def seed(self) -> None:
        """Reset the random streams of Python and numpy to the recipe's seed."""
        random.seed(self.recipe.seed)
        np.random.seed(self.recipe.seed)

    def evaluating(self) -> contextlib.AbstractContextManager[Any]:
        """The context of a validation."""
        return contextlib.nullcontext()

    def part_states(self) -> State:
        """Parts of a checkpoint that only this engine has, such as the optimizer's state."""
        return {}, {}

    def load_parts(self, header: dict[str, Any], arrays: Arrays, path: str, epoch: int | None) -> None:
        """Restore the result of :meth:`part_states`; arguments as for :meth:`load_state_dict`."""

    def loader_state(self) -> dict[str, Any]:
        """The position of the training loader."""
        return dict(self.feed.train.state())

    def load_loader(self, state: dict[str, Any], epoch: int | None) -> None:
        """Restore the loader's position, or the beginning of ``epoch``."""
        self.feed.train.restore(state)

    def read(self, path: str) -> State:
        """Header and arrays of a checkpoint."""
        return checkpoint.read(path)

    def common(self) -> dict[str, Any]:
        """Facts that must be equal on all ranks: versions, data, batches in an epoch."""
        versions = {"gluontune": __version__, **self.versions(), "numpy": np.__version__}
        return {"versions": versions, "data": self.feed.mark(), "batches_per_epoch": self.batches_per_epoch}

    def commands(self) -> dict[str, Command]:
        """The commands of a training process; each returns values for JSON."""
        return {
            "steps": lambda c: self.steps(c["count"]),
            "agree": lambda c: self.agree(),
            "validate": lambda c: self.validate(),
            "reset": lambda c: self.reset(c.get("epochs")),
            "checkpoint": lambda c: self.checkpoint(c["extra"], c["wait"]),
            "restore": lambda c: self.restore(c["path"], c.get("epoch")),
            "phases": lambda c: {"report": self.phases.report()},
            "attribution": lambda c: self.phases.enable(c["on"]),
            "loading": lambda c: {"found": self.progress.loading_alone(c["seconds"])},
            "remarks": lambda c: {"notes": self.remarks()},
            "memory": lambda c: {"peak_rss_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024},
            **self.capabilities(),
        }

    def reset(self, epochs: float | None = None) -> None:
        """Return to the seeded start; ``epochs`` is the new length of the training, to which the schedule is fitted."""
        if epochs is not None and epochs != self.recipe.epochs:
            self.recipe, self.fresh = self.recipe.override(epochs=epochs), False
        if self.fresh:
            return
        self.phase = "setting up the optimizer"
        self.progress.move(0, 0)
        self.load_loader({**self.loader_state(), "epoch": 0, "batch": 0}, None)  # a tried batch is not a step
        self.methods.thaw()
        total = max(1, round(self.recipe.epochs * self.batches_per_epoch))
        self.methods.plan(total)
        self.start_anew(total)
        self.methods.begin(self.batches_per_epoch)
        self.seed()
        self.begin_epoch()
        self._losses, self.fresh = [], True
        self.begin_run()

    def step(self) -> int:
        """One training step, queued by an engine that queues; returns its number of samples."""
        progress = self.progress
        self.methods.before_step(progress.steps)
        with self.phases.step() as phase:
            with phase("data"):
                batch = progress.next_batch()
            count = self.train(batch, phase)
        progress.steps += 1
        self.methods.after_step(progress.steps)
        return count

    def steps(self, count: int) -> dict[str, Any]:
        """This rank's ``{"samples", "seconds", "losses", "loss"}`` of ``count`` finished steps; ``loss``: the mean."""
        self.phase = "training"
        self.fresh, self._losses = False, []
        start = time.perf_counter()
        samples = sum(self.step() for _ in range(count))
        self.phases.wait()
        seconds = time.perf_counter() - start
        losses = self.step_losses()
        return {"samples": samples, "seconds": seconds, "losses": losses, "loss": float(np.mean(losses))}

    def validate(self) -> dict[str, Any]:
        """The metric and the mean loss over the validation samples, by this rank's net.

        Returns:
            ``{"metric": {"name", "mode", "value"}, "flipped", "accuracy", "loss", "samples", "seconds"}``;
            ``accuracy`` is None if the job has another metric, ``flipped`` (the metric with test-time flips) if the
            recipe asks for none.
        """
        self.phase = "validating"
        start, score, flipped = time.perf_counter(), self.new_score(), self.new_score()
        total, loss, views = 0, 0.0, False
        with self.evaluating(), self.methods.second_weights():
            for batch in self.feed.val.epoch(0):
                for outcome, mean in self.evaluate(batch):
                    score.update(outcome)
                    loss += float(self.to_host(outcome.loss.sum()))
                    total += len(outcome.loss)
                    if mean is not None:
                        views = True
                        flipped.update(Outcome(outcome.loss, mean, outcome.label))
        if total == 0:
            raise GluontuneError("the validation data set is empty")
        value = score.value()
        return {
            "metric": {"name": score.name, "mode": score.mode, "value": finite(value)},
            "flipped": finite(flipped.value()) if views else None,
            "accuracy": value if score.name == "accuracy" else None,
            "loss": loss / total, "samples": total, "seconds": time.perf_counter() - start,
        }  # fmt: skip

    def state_dict(self) -> State:
        """Header and arrays of a checkpoint, at the end of a step; the arrays are copies."""
        header, arrays = self.part_states()
        arrays.update({f"parameter/{place}": self.to_host(array) for place, array in self.weights(True).items()})
        averaged, second = self.methods.state_dict(self.to_host)
        position = {"step": self.progress.steps, "epoch": self.progress.epoch, "loader": self.loader_state()}
        return {"backend": self.name, **position, **averaged, **header}, {**arrays, **second}

    def load_state_dict(self, header: dict[str, Any], arrays: Arrays, path: str, epoch: int | None = None) -> None:
        """Restore the result of :meth:`state_dict` in a session that was just built or reset.

        Args:
            path: the file, for errors.
            epoch: the one to restart, after a change of the number of ranks, which divides the data differently;
                steps are then counted as if these ranks had taken all epochs before.
        """
        theirs = header.get("backend", "mxnet")
        if theirs != self.name:
            raise GluontuneError(
                f"{path}: of {ENGINES[theirs].title}'s engine: go on with backend={theirs!r}, or take its net: "
                "gt.train.load"
            )
        saved = checkpoint.part_of(arrays, "parameter")
        checkpoint.check_same_net(self.weights(True), saved, path)
        checkpoint.restore_loader(lambda state: self.load_loader(state, epoch), header["loader"], self.rank, path)
        for place, values in saved.items():
            self.set_weight(place, self.to_device(values, place))
        start = (header["epoch"], header["step"]) if epoch is None else (epoch, epoch * self.batches_per_epoch)
        self.progress.move(*start)
        self.load_parts(header, arrays, path, epoch)
        self.methods.load_state_dict(header, arrays, self.to_device)

    def checkpoint(self, extra: dict[str, Any], wait: bool) -> dict[str, Any]:
        """Copy the state of a resumed run and write it; see :meth:`Writer.save`."""
        assert self.writer is not None
        self.phase = "writing a checkpoint"
        if self.writer.busy and not wait:
            return {"written": None, "error": None, "skipped": True}
        header, arrays = self.state_dict()
        return {**self.writer.save({**header, **extra}, arrays, wait), "skipped": False}

    def restore(self, path: str, epoch: int | None = None) -> None:
        """Continue from a checkpoint, after :meth:`build` or :meth:`reset`; ``epoch`` as of :meth:`load_state_dict`."""
        self.phase = "reading a checkpoint"
        self.progress.close()
        header, arrays = self.read(path)
        with understood(path):
            self.load_state_dict(header, arrays, path, epoch)
        self.fresh = False

    def use_feed(self, feed: Feed, batch_size: int) -> None:
        """Set the loaders, which yield whole batches of ``batch_size`` over all ranks."""
        self.feed, self.progress = feed, Progress(feed, self.begin_epoch)
        self.batches_per_epoch, self.samples_per_step = len(feed.train), feed.batch_size
        if self.batches_per_epoch == 0:
            raise GluontuneError(
                f"{feed.num_train} training images make no whole batch of {batch_size}: use a smaller "
                "batch_size_per_device or last_batch='keep'"
            )

    def close(self) -> None:
        """Finish an unfinished checkpoint, and stop the loaders' threads and workers."""
        if self.writer is not None:
            self.writer.finish()
        if hasattr(self, "feed"):
            self.progress.close()
            self.feed.close()
