"""The training process from the inside: builds what a recipe says, and takes steps.

There is one training step in gluontune, :meth:`Session.step`; the ladder, the launcher, the method's
repeats and the notebooks all drive this one through :mod:`gluontune.train.group`.
"""

from __future__ import annotations

import functools
import random
import resource
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from gluontune import compute, monitor
from gluontune.errors import GluontuneError
from gluontune.parallel import horovod
from gluontune.parallel.devices import choose_kvstore, clear_idle, contexts, split_batch
from gluontune.parallel.summing import SharedExchange
from gluontune.recipe import Recipe
from gluontune.runtime import mxnet
from gluontune.train.checkpoint import read
from gluontune.train.checks import check_output
from gluontune.train.exchanging import make_averaging, meet, rejoin
from gluontune.train.feed import Feed, make_feed
from gluontune.train.job import load_job
from gluontune.train.preparing import prepare_net
from gluontune.train.site import site
from gluontune.train.snapshot import Writer, capture, may_draw, parameters, restore, seed_step
from gluontune.train.updating import make_trainer

__all__ = ["Session"]

_SAMPLED_EVERY = 25  # one step in so many is cut into phases by waits


class Session:
    """One rank of a training run, in its own process.

    Args:
        recipe: what to train.
        rank, world: this process among the ranks of the run.
        checkpoints: ``{"folder", "keep"}`` where the run keeps checkpoints, or None.
        rejoins: the process before this one has died: go on from the weights that the others share.
        local_rank: among the ranks of this machine, which is that of its GPU; None: all ranks are here.

    Attributes:
        phase: what the session is doing, for error messages.
        batches_per_epoch: steps in one epoch, the same on all ranks.
        samples_per_step: images of this rank in one step.
        steps_taken: steps since the seeded start, those before a checkpoint included.
    """

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
        self._batches: Iterator[Any] | None = None
        self._fresh, self.steps_taken = False, 0
        self.writer = Writer(**checkpoints) if checkpoints else None
        self.exchange: horovod.Exchange | SharedExchange | None = None

    def build(self, opened: Callable[[], None] | None = None) -> None:
        """Import mxnet, open the data, build and initialize the net: all that comes before the first step.

        Args:
            opened: called once the data are there, before anything is exchanged with other ranks.
        """
        recipe = self.recipe
        self.phase = "importing mxnet"
        mx = self.mx = mxnet()
        local = recipe.engine == "local"
        self.phase = "meeting the other ranks"
        self.exchange = meet(self)
        self.phase = "finding the devices"
        self.ctxs = contexts(
            recipe.devices, recipe.num_devices if local else 1, 0 if local else self.local_rank
        )
        self.device = self.ctxs[0].device_type
        self.phase = "preparing the data type"
        compute.start_process(recipe.dtype, self.device)
        self._seed()
        self.phase = "opening the data"
        self.job = load_job(recipe)
        self.feed: Feed = make_feed(recipe, self.job, self.rank, self.world)
        self.batches_per_epoch = len(self.feed.train)
        if self.batches_per_epoch == 0:
            raise GluontuneError(
                f"{self.feed.num_train} training images make no whole batch of {recipe.global_batch_size}: "
                "use a smaller batch_size_per_device or last_batch='keep'"
            )
        self.samples_per_step = self.feed.batch_size
        if opened is not None:
            opened()
        self.phase = "building the net"
        self.net, self.rewrites = prepare_net(self)
        self.loss = self.job.loss()
        self._initial = {name: p.data(self.ctxs[0]).asnumpy() for name, p in self._parameters()}
        self.kvstore = "device"
        if len(self.ctxs) > 1:
            shapes = [p.shape for _, p in self._parameters() if p.grad_req != "null"]
            self.kvstore, _ = choose_kvstore(self.ctxs, shapes)
        self.averaging = make_averaging(self)
        # Ranks behind the gradient of an update.
        self._summed_over = self.world if self.averaging is None else 1
        self._seeds_steps = self.writer is not None and may_draw(self.net)
        self.phases = monitor.StepPhases(sync=mx.nd.waitall, every=_SAMPLED_EVERY)
        self.reset()

    def site(self) -> dict[str, Any]:
        """What the ladder and the other ranks ask of the process that is there."""
        return site(self)

    def _seed(self) -> None:
        random.seed(self.recipe.seed)
        np.random.seed(self.recipe.seed)
        self.mx.random.seed(self.recipe.seed)

    def _parameters(self) -> list[tuple[str, Any]]:
        return list(self.net.collect_params().items())

    def reset(self) -> None:
        """Back to the seeded start: parameters, optimizer, schedule, random streams, first epoch.

        Raises:
            GluontuneError: steps were taken over a parameter server, which keeps the first run's keys.
        """
        recipe = self.recipe
        if self._fresh:
            return
        if recipe.engine == "kvstore" and self.steps_taken:
            raise GluontuneError("a run over a parameter server starts anew in fresh processes")
        self.phase = "setting up the optimizer"
        self._close_batches()
        for name, parameter in self._parameters():
            parameter.set_data(self.mx.nd.array(self._initial[name], dtype=parameter.dtype))
        if self.exchange is not None:
            places = {name: p.data(self.ctxs[0]) for name, p in parameters(self.net)}
            self.exchange.take_from_first(places)
        total = max(1, round(recipe.epochs * self.batches_per_epoch))
        self.trainer = make_trainer(self, recipe, total)
        self.scaler = None
        if recipe.dtype == "float16":
            self.scaler = compute.to_mixed_precision(self.net, self.trainer, "float16")
        self._seed()
        self.epoch, self.steps_taken = 0, 0
        self._losses: list[Any] = []
        self._fresh = not self.rejoins
        if self.rejoins:
            rejoin(self)
        elif self.averaging is not None:
            self.averaging.publish()

    def _close_batches(self) -> None:
        close = getattr(self._batches, "close", None)
        if close is not None:
            close()
        self._batches = None

    def _next_batch(self) -> tuple[Any, Any]:
        """The next batch, over the end of an epoch."""
        for _ in range(2):
            if self._batches is None:
                self._batches = iter(self.feed.train.epoch(self.epoch))
            batch = next(self._batches, None)
            if batch is not None:
                return batch
            self._batches = None
            self.epoch += 1
        raise GluontuneError("the training data gave no batch in a whole epoch")

    def step(self) -> int:
        """One training step, queued asynchronously as Gluon does; returns its number of images."""
        autograd = self.mx.autograd
        with self.phases.step() as phase:
            with phase("data"):
                images, labels = self._next_batch()
            if self._seeds_steps:
                seed_step(self.recipe.seed, self.rank, self.steps_taken)
            with phase("copy"):
                xs, ys = split_batch(images, self.ctxs), split_batch(labels, self.ctxs)
            with autograd.record():
                with phase("forward"):
                    losses = [self._loss_of(x, y) for x, y in zip(xs, ys)]
                with phase("backward"):
                    autograd.backward([self.scaler.scale(v) for v in losses] if self.scaler else losses)
            count = sum(x.shape[0] for x in xs)
            if len(xs) < len(self.ctxs):
                clear_idle(self.net.collect_params().values(), len(xs))
            with phase("update"):
                (self.scaler or _Plain).step(self.trainer, count * self._summed_over)
                if self.averaging is not None:
                    self.averaging.after_step()
            with phase("metrics"):
                self._losses.append([value.mean() for value in losses])
        self.steps_taken += 1
        return count

    def _loss_of(self, x: Any, y: Any) -> Any:
        output = self.net(x)
        if self.recipe.dtype == "float16":
            output = output.astype("float32")
        loss = self.loss(output, y)
        if loss.shape != (x.shape[0],):
            raise GluontuneError(
                f"the loss has shape {loss.shape} for a batch of {x.shape[0]}: it must give one value per "
                f"sample, ({x.shape[0]},); the net's output has shape {getattr(output, 'shape', type(output))}"
            )
        return loss

    def steps(self, count: int) -> dict[str, Any]:
        """Take ``count`` steps and wait until they are really done.

        Returns:
            ``{"samples", "seconds", "loss"}`` of this rank; ``loss`` is the mean over the steps.
        """
        self.phase = "training"
        self._fresh = False
        self._losses = []
        start = time.perf_counter()
        samples = sum(self.step() for _ in range(count))
        self.phases.wait()
        seconds = time.perf_counter() - start
        values = [float(v.asscalar()) for step in self._losses for v in step]
        return {"samples": samples, "seconds": seconds, "loss": float(np.mean(values))}

    def checkpoint(self, extra: dict[str, Any], wait: bool) -> dict[str, Any]:
        """Copy all that a resumed run needs, and have it written; see :meth:`Writer.save`."""
        assert self.writer is not None
        self.phase = "writing a checkpoint"
        if self.writer.busy and not wait:
            return {"written": None, "error": None, "skipped": True}
        header, arrays = capture(self)
        return {**self.writer.save({**header, **extra}, arrays, wait), "skipped": False}

    def restore(self, path: str) -> None:
        """Go on from a checkpoint, after :meth:`build` or :meth:`reset`."""
        self.phase = "reading a checkpoint"
        self._close_batches()
        load = functools.partial(read, path)
        header, arrays = load() if self.exchange is None else self.exchange.read_once(load)
        restore(self, header, arrays, path)
        if self.averaging is not None:
            self.averaging.publish(self.steps_taken)
        self._fresh = False

    def agree(self) -> None:
        """Bring all ranks to the same parameters, where they train apart between exchanges."""
        self.phase = "exchanging parameters"
        if self.averaging is not None:
            self.averaging.agree()

    def check_output(self) -> None:
        """The net's output against the number of classes, on one batch, before anything is timed."""
        check_output(self.net, self.feed.sample(self.ctxs[0], staged=True), self.job.classes)

    def validate(self) -> dict[str, Any]:
        """Top-1 accuracy and mean loss over the validation images, by this rank's net."""
        self.phase = "validating"
        correct, total, loss = 0.0, 0, 0.0
        start = time.perf_counter()
        for images, labels in self.feed.val.epoch(0):
            for x, y in zip(split_batch(images, self.ctxs), split_batch(labels, self.ctxs)):
                output = self.net(x).astype("float32")
                hits = (output.argmax(axis=1) == y.astype("float32")).sum()
                loss += float(self.loss(output, y).sum().asscalar())
                correct += float(hits.asscalar())
                total += x.shape[0]
        if total == 0:
            raise GluontuneError("the validation data set is empty")
        seconds = time.perf_counter() - start
        return {"accuracy": correct / total, "loss": loss / total, "samples": total, "seconds": seconds}

    def memory_mib(self) -> dict[str, float]:
        """Highest resident memory of this process and of its largest ended worker, MiB."""
        own = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return {"peak_rss_mib": own / 1024}

    def close(self) -> None:
        """Stop the loaders' threads and workers."""
        if self.writer is not None:
            self.writer.finish()
        if hasattr(self, "feed"):
            self._close_batches()
            self.feed.close()
        if getattr(self, "averaging", None) is not None:
            self.averaging.close()


class _Plain:
    """The update without a loss scaler."""

    @staticmethod
    def step(trainer: Any, batch_size: int) -> None:
        trainer.step(batch_size)
