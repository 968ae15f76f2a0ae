"""The training process from the inside: builds what a recipe says, and takes steps.

There is one training step in gluontune, :meth:`Session.step`; the ladder, the launcher, the method's
repeats and the notebooks all drive this one through :mod:`gluontune.train.group`.
"""

from __future__ import annotations

import functools
import random
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from gluontune import compute, monitor, rules
from gluontune.bridge.references import doubtful
from gluontune.errors import GluontuneError
from gluontune.methods.freezing import trained_layers
from gluontune.parallel import horovod
from gluontune.parallel.averaging import Averaging
from gluontune.parallel.devices import choose_kvstore, clear_idle, contexts
from gluontune.parallel.summing import SharedExchange
from gluontune.reading import understood
from gluontune.runtime import as_net_array, mxnet, set_data
from gluontune.train.arrays import first, parts_of, to_numpy
from gluontune.train.base_session import SAMPLED_EVERY, BaseSession
from gluontune.train.checkpoint import read
from gluontune.train.checks import try_one_batch
from gluontune.train.exchanging import make_averaging, meet, rejoin
from gluontune.train.feed import make_feed
from gluontune.train.job import Job, load_job
from gluontune.train.kinds import make_kind
from gluontune.train.method_steps import MethodSteps
from gluontune.train.metrics import finite, make_score
from gluontune.train.preparing import prepare_nets
from gluontune.train.self_description import common, site
from gluontune.train.snapshot import capture, may_draw, parameters, restore, seed_step
from gluontune.train.step_kind import StepKind
from gluontune.train.updating import make_trainers

__all__ = ["Session"]


class Session(BaseSession):
    """One rank of a training run on MXNet's engine.

    Attributes:
        net: a block with all parameters. nets: what the job's step takes, that block or a dict of several.
        trainers: by name; one, unless the job updates several nets by itself.
        kind: how a batch becomes losses and gradients; see :mod:`gluontune.train.step_kind`.
    """

    job: Job
    kind: StepKind
    net: Any
    nets: Any
    trainers: dict[str, Any]
    scaler: Any = None
    exchange: horovod.Exchange | SharedExchange | None = None
    averaging: Averaging | None = None
    marked: Any = None  # see :mod:`gluontune.train.individual`

    def build(self, opened: Callable[[], None] | None = None) -> None:
        """Import mxnet, open the data, build and initialize the net: all that comes before the first step."""
        recipe, self.trainers = self.recipe, {}
        self.phase = "importing mxnet"
        mx = self.mx = mxnet()
        local = recipe.engine == "local"
        self.phase = "meeting the other ranks"
        self.exchange = meet(self)
        self.phase = "finding the devices"
        self.ctxs = contexts(recipe.devices, recipe.num_devices if local else 1, 0 if local else self.local_rank)
        self.device = self.ctxs[0].device_type
        self.phase = "preparing the data type"
        with rules.naming(recipe, "dtype", "devices"):
            compute.start_process(recipe.dtype, self.device)
        self.seed()
        self.phase = "opening the data"
        self.job = load_job(recipe)
        self.feed = make_feed(recipe, self.job, self.rank, self.world)
        self.methods = MethodSteps(recipe, self.rank, self._live, self._put)
        self.batches_per_epoch = len(self.feed.train)
        self._check_batches(self.feed.num_train, recipe.global_batch_size)
        self.samples_per_step = self.feed.batch_size
        if opened is not None:
            opened()
        self.phase = "building the net"
        made = prepare_nets(self)
        self.net, self.nets, self.rewrites = made.net, made.nets, made.rewrites
        self.kind = make_kind(self)
        mean = getattr(self.job.dataset, "mean", None)
        self.methods.attach(self.feed.train, mean, trained_layers(self.net), _set_trained)
        self.phases = monitor.StepPhases(sync=mx.nd.waitall, every=SAMPLED_EVERY)
        self._initial: dict[str, np.ndarray] = {}
        self.remember()
        self.phase = "trying one batch"
        self.seed()
        self.tried = try_one_batch(self)
        self.score = make_score(self.job, self.kind.loss, self.tried)
        self.kvstore = "device"
        if len(self.ctxs) > 1:
            shapes = [p.shape for _, p in self._parameters() if p.grad_req != "null"]
            self.kvstore, _ = choose_kvstore(self.ctxs, shapes)
        self.averaging = make_averaging(self)
        # Ranks behind the gradient of an update.
        self._summed_over = self.world if self.averaging is None else 1
        self._seeds_steps = self.writer is not None and (self.job.step is not None or may_draw(self.net))
        self.reset()

    def site(self) -> dict[str, Any]:
        """What the ladder and the other ranks ask of the process that is there."""
        return site(self)

    def warnings(self) -> list[str]:
        """What may be wrong in MXNet's gradients of this net."""
        return doubtful(self.net) if self.device == "cpu" and self.rank == 0 else []

    def common(self) -> dict[str, Any]:
        """What must be alike on all ranks."""
        return common(self)

    def seed(self) -> None:
        """Begin the random streams of Python, numpy and MXNet anew, from the recipe's seed."""
        random.seed(self.recipe.seed)
        np.random.seed(self.recipe.seed)
        self.mx.random.seed(self.recipe.seed)

    def _parameters(self) -> list[tuple[str, Any]]:
        return list(self.net.collect_params().items())

    def _live(self, whole: bool) -> dict[str, Any]:
        """The parameters by their places in the net; ``whole``: those that are not trained, too."""
        there = parameters(self.net)
        return {name: p.data(self.ctxs[0]) for name, p in there if whole or p.grad_req != "null"}

    def _put(self, name: str, values: Any) -> None:
        set_data(self._by_place[name], values)

    def remember(self) -> None:
        """Take the values of the parameters that have some, and are not known yet, as the seeded start."""
        for name, parameter in self._parameters():
            if name not in self._initial and parameter._data:
                self._initial[name] = to_numpy(parameter.data(self.ctxs[0]))

    def put_initial(self) -> None:
        """All parameters as they were at the seeded start."""
        for name, parameter in self._parameters():
            set_data(parameter, self.array(self._initial[name], parameter.dtype))

    def named_nets(self) -> dict[str, Any]:
        """The job's nets by name; ``net``, where there is one."""
        return self.nets if isinstance(self.nets, dict) else {"net": self.nets}

    @property
    def trainer(self) -> Any:
        """The trainer of the one net, or of the first of several."""
        return next(iter(self.trainers.values()))

    def reset(self, epochs: float | None = None) -> None:
        """Back to the seeded start: parameters, optimizer, schedule, random streams, first epoch.

        Args:
            epochs: the length of the training from now on, to which the schedule is fitted; None leaves it.

        Raises:
            GluontuneError: steps were taken over a parameter server, which keeps the first run's keys.
        """
        if not self._fit_to(epochs):
            return
        recipe = self.recipe
        if recipe.engine == "kvstore" and self.steps_taken:
            raise GluontuneError("a run over a parameter server starts anew in fresh processes")
        self.phase = "setting up the optimizer"
        self.close_batches()
        self.methods.thaw()
        self.put_initial()
        if self.exchange is not None:
            places = {name: p.data(self.ctxs[0]) for name, p in parameters(self.net)}
            self.exchange.take_from_first(places)
        total = max(1, round(recipe.epochs * self.batches_per_epoch))
        self.methods.plan(total)
        self.trainers = make_trainers(self, recipe, total)
        self._by_place = dict(parameters(self.net))
        self.methods.begin(self.batches_per_epoch)
        self.scaler = None
        if recipe.dtype == "float16":
            self.scaler = compute.to_mixed_precision(self.net, self.trainer, "float16")
        self.seed()
        self.kind.begin(True)
        self.epoch, self.steps_taken = 0, 0
        self._losses: list[Any] = []
        self.fresh = not self.rejoins
        if self.rejoins:
            rejoin(self)
        elif self.averaging is not None:
            self.averaging.publish()

    def array(self, values: np.ndarray, dtype: Any = None) -> Any:
        """An array of MXNet's, of the flavour that the job computes with."""
        return as_net_array(self.mx.nd.array(values, dtype=values.dtype if dtype is None else dtype))

    def _epoch_begins(self) -> None:
        self.kind.begin(True)

    def step(self) -> int:
        """One training step, queued asynchronously as Gluon does; returns its number of samples."""
        self.methods.before_step(self.steps_taken)
        with self.phases.step() as phase:
            with phase("data"):
                batch = self.next_batch()
            if self._seeds_steps:
                seed_step(self.recipe.seed, self.rank, self.steps_taken)
            with phase("copy"):
                parts = parts_of(batch, self.ctxs)
            count = used = sum(len(first(part)) for part in parts)
            if self.methods.selecting(self.steps_taken):
                with phase("forward"):
                    parts = [self.kind.select(place, part) for place, part in enumerate(parts)]
                used = sum(len(first(part)) for part in parts)
            losses = self.kind.train(parts, phase)
            if not self.kind.updates:
                for trainer in self.trainers.values():
                    trainer.accumulate = self.methods.updates.size(self.steps_taken)
                self._update(used, len(parts), phase)
            with phase("metrics"):
                self._losses.append([value.mean() for value in losses])
        self.steps_taken += 1
        self.methods.after_step(self.steps_taken)
        return count

    def _update(self, count: int, used: int, phase: Any) -> None:
        if used < len(self.ctxs):
            clear_idle(self.net.collect_params().values(), used)
        with phase("update"):
            (self.scaler or _Plain).step(self.trainer, count * self._summed_over)
            if self.averaging is not None:
                self.averaging.after_step()

    def steps(self, count: int) -> dict[str, Any]:
        """Take ``count`` steps and wait until they are really done.

        Returns:
            ``{"samples", "seconds", "loss"}`` of this rank; ``loss`` is the mean over the steps.
        """
        self.phase = "training"
        self.fresh = False
        self._losses = []
        start = time.perf_counter()
        samples = sum(self.step() for _ in range(count))
        self.phases.wait()
        seconds = time.perf_counter() - start
        values = [float(to_numpy(v)) for step in self._losses for v in step]
        return {"samples": samples, "seconds": seconds, "loss": float(np.mean(values))}

    def _capture(self) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
        return capture(self)

    def restore(self, path: str) -> None:
        """Go on from a checkpoint, after :meth:`build` or :meth:`reset`."""
        self.phase = "reading a checkpoint"
        self.close_batches()
        load = functools.partial(read, path)
        header, arrays = load() if self.exchange is None else self.exchange.read_once(load)
        with understood(path):
            restore(self, header, arrays, path)
        if self.averaging is not None:
            self.averaging.publish(self.steps_taken)
        self.fresh = False

    def agree(self) -> None:
        """Bring all ranks to the same parameters, where they train apart between exchanges."""
        self.phase = "exchanging parameters"
        if self.averaging is not None:
            self.averaging.agree()

    def validate(self) -> dict[str, Any]:
        """The metric and the mean loss over the validation samples, by this rank's net.

        Returns:
            ``{"metric": {"name", "mode", "value"}, "flipped", "accuracy", "loss", "samples", "seconds"}``;
            ``accuracy`` is None where the job has another metric, ``flipped`` (the metric with test-time flips) where
            the recipe asks for none.
        """
        self.phase = "validating"
        score, total, loss = make_score(self.job, self.kind.loss, self.tried), 0, 0.0
        flipped = make_score(self.job, self.kind.loss, self.tried)
        start, views = time.perf_counter(), False
        self.kind.begin(False)
        with self.methods.second_weights():
            for batch in self.feed.val.epoch(0):
                for place, part in enumerate(parts_of(batch, self.ctxs)):
                    outcome = self.kind.evaluate(place, part)
                    score.update(outcome)
                    loss += float(to_numpy(outcome.loss.sum()))
                    total += len(first(part))
                    views = self.kind.evaluate_views(place, part, outcome, flipped)
        if total == 0:
            raise GluontuneError("the validation data set is empty")
        seconds, value = time.perf_counter() - start, score.value()
        return {
            "metric": {"name": score.name, "mode": score.mode, "value": finite(value)},
            "flipped": finite(flipped.value()) if views else None,
            "accuracy": value if score.name == "accuracy" else None,
            "loss": loss / total,
            "samples": total,
            "seconds": seconds,
        }

    def close(self) -> None:
        """Let go of loaders, checkpoints and what the ranks share."""
        super().close()
        if self.averaging is not None:
            self.averaging.close()


def _set_trained(parameter: Any, trained: bool) -> None:
    parameter.grad_req = "write" if trained else "null"


class _Plain:
    """The update without a loss scaler."""

    @staticmethod
    def step(trainer: Any, batch_size: int) -> None:
        trainer.step(batch_size)
