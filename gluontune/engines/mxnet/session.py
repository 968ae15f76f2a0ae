"""A training process on MXNet's engine: composes the parts of a recipe, and takes steps."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np

from gluontune import compute, monitor
from gluontune.compute.process import told_of_deconvolutions
from gluontune.convert.bridge.references import doubtful
from gluontune.core.errors import GluontuneError, UsageError
from gluontune.engines.base import SAMPLED_EVERY, Arrays, Command, Engine, State
from gluontune.engines.mxnet.commands import Population, exchange_alone, gradients, training_alone
from gluontune.engines.mxnet.context import Context, Optimization, may_draw, meet, seed_all, seed_step
from gluontune.engines.mxnet.job_step import make_step
from gluontune.engines.mxnet.steps import Step, try_one_batch
from gluontune.engines.mxnet.work import Work, prepare
from gluontune.engines.progress import MethodSteps
from gluontune.job.batches import Outcome, Score, first, make_score, to_numpy
from gluontune.job.checkpoint import read
from gluontune.job.data import make_feed
from gluontune.job.job import load_job
from gluontune.methods.losses import trained_layers
from gluontune.parallel.kvstore import contexts
from gluontune.recipe import Recipe, rules
from gluontune.runtime import mxnet, set_data


class Session(Engine):
    """One rank of a training run on MXNet's engine.

    Attributes:
        context, work, optimization: its place of computation, its nets and data, its updates.
        training_step: turns a batch into losses and gradients; see :mod:`gluontune.engines.mxnet.steps`.
        tried: the outcome of one validation batch, which selects the metric.
    """

    name = "mxnet"
    context: Context
    work: Work
    optimization: Optimization
    training_step: Step
    tried: Outcome

    def build(self, opened: Callable[[], None] | None = None) -> None:
        recipe, local = self.recipe, self.recipe.engine == "local"
        self.phase = "importing mxnet"
        mx = mxnet()
        self.phase = "meeting the other ranks"
        exchange = meet(recipe, self.rank, self.world)
        self.phase = "finding the devices"
        ctxs = contexts(recipe.devices, recipe.num_devices if local else 1, 0 if local else self.local_rank)
        context = self.context = Context(mx, ctxs, self.rank, self.world, exchange)
        self.phase = "preparing the data type"
        with rules.naming(recipe, "dtype", "devices"):
            compute.start_process(recipe.dtype, context.device)
        self.seed()
        self.phase = "opening the data"
        job = load_job(recipe)
        self.use_feed(make_feed(recipe, job, self.rank, self.world), recipe.global_batch_size)
        if opened is not None:
            opened()
        self.phase = "building the net"
        work = self.work = prepare(recipe, context, job, self.feed)
        self.methods = MethodSteps(recipe, self.rank, self.weights, self.set_weight)
        self.training_step = make_step(recipe, work, self.methods)
        mean = getattr(job.dataset, "mean", None)
        self.methods.attach(self.feed.train, mean, trained_layers(work.net), _set_trained)
        self.phases = monitor.StepPhases(sync=mx.nd.waitall, every=SAMPLED_EVERY)
        work.remember()
        self.phase = "trying one batch"
        self.seed()
        self.optimization = Optimization(context)
        self.tried = try_one_batch(
            self.training_step, self.optimization, lambda net: compute.set_mode(net, recipe.hybridize)
        )
        self.optimization.connect(recipe, work.net)
        self._seeds_steps = self.writer is not None and (job.step is not None or may_draw(work.net))
        if context.device == "cpu" and self.rank == 0:
            self.news += doubtful(work.net) + told_of_deconvolutions()
        self.reset()

    def site(self) -> dict[str, Any]:
        shape, score = self.feed.image_shape, self.new_score()
        steady = self.feed.train.steady_bytes() if shape is None else None
        return {
            "device": self.context.device, "gpus": self.context.mx.context.num_gpus(),
            "splits": self.work.job.dataset is not None,
            "image_bytes": shape[0] * shape[1] * shape[2] if shape else steady, "steady": steady is not None,
            "rewrites": self.work.rewrites, "step": self.training_step.name,
            "recurrent": self.work.job.begin is not None, "metric": {"name": score.name, "mode": score.mode},
        }  # fmt: skip

    def remarks(self) -> list[str]:
        scaler = self.optimization.scaler
        return [scaler.scaler.told()] if scaler else []

    def versions(self) -> dict[str, str]:
        return {"mxnet": self.context.mx.__version__}

    def seed(self) -> None:
        seed_all(self.recipe.seed)

    def weights(self, whole: bool) -> Mapping[str, Any]:
        return self.work.data(whole)

    def set_weight(self, place: str, values: Any) -> None:
        set_data(self._by_place[place], values)

    def to_host(self, array: Any) -> np.ndarray:
        return to_numpy(array)

    def to_device(self, values: np.ndarray, place: str) -> Any:
        return self.context.array(values).as_in_context(self.context.ctxs[0])

    def reset(self, epochs: float | None = None) -> None:
        if self.recipe.engine == "kvstore" and self.progress.steps:
            raise GluontuneError("a run over a parameter server starts anew in fresh processes")
        super().reset(epochs)

    def start_anew(self, total: int) -> None:
        self.work.put_initial()
        if self.context.exchange is not None:
            self.context.exchange.take_from_first(self.work.data())
        self._by_place = self.work.parameters
        self._new_trainers(self.recipe, total)

    def _new_trainers(self, recipe: Recipe, total: int) -> None:
        nets = self.work.named_nets if self.training_step.updates else {"net": self.work.net}
        growth, per_epoch = self.methods.updates.growth(), self.batches_per_epoch
        self.optimization.begin(recipe, nets, steps=total, steps_per_epoch=per_epoch, growth=growth)

    def begin_run(self) -> None:
        if not self.rejoins:
            if self.optimization.averaging is not None:
                self.optimization.averaging.publish()
            return
        # It replaces a dead learner: with the shared weights, and its position in schedule and data.
        steps = self.optimization.rejoin()
        epoch, batch = divmod(steps, self.batches_per_epoch)
        self.progress.move(epoch, steps)
        self.load_loader({**self.loader_state(), "epoch": epoch, "batch": batch}, None)
        self.rejoins = self.fresh = False

    def begin_epoch(self) -> None:
        self.training_step.begin(True)

    def train(self, batch: tuple[Any, ...], phase: Any) -> int:
        step, taken = self.training_step, self.progress.steps
        if self._seeds_steps:
            seed_step(self.recipe.seed, self.rank, taken)
        with phase("copy"):
            parts = self.context.parts(batch)
        count = used = sum(len(first(part)) for part in parts)
        if self.methods.selecting(taken):
            with phase("forward"):
                parts = [step.select(place, part, taken) for place, part in enumerate(parts)]
            used = sum(len(first(part)) for part in parts)
        losses = step.train(parts, phase, self.optimization)
        if not step.updates:
            with phase("update"):
                self.optimization.update(self.work.net, used, len(parts), self.methods.updates.size(taken))
        with phase("metrics"):
            self._losses.append([value.mean() for value in losses])
        return count

    def step_losses(self) -> list[float]:
        return [float(np.mean([float(to_numpy(v)) for v in step])) for step in self._losses]

    def new_score(self) -> Score:
        return make_score(self.work.job, self.training_step.loss, self.tried)

    def evaluate(self, batch: tuple[Any, ...]) -> Iterator[tuple[Outcome, Any]]:
        step = self.training_step
        for place, part in enumerate(self.context.parts(batch)):
            yield step.evaluate(place, part, self.optimization), step.views(place, part, self.progress.steps)

    def evaluating(self) -> contextlib.AbstractContextManager[Any]:
        self.training_step.begin(False)
        return contextlib.nullcontext()

    def agree(self) -> None:
        self.phase = "exchanging parameters"
        if self.optimization.averaging is not None:
            self.optimization.averaging.agree()

    def state_dict(self) -> State:
        self.context.mx.nd.waitall()  # see Work.host_weights
        return super().state_dict()

    def part_states(self) -> State:
        header, arrays = {}, {}
        for part in (self.optimization, self.training_step, self.context):
            values, held = part.state_dict()
            header.update(values)
            arrays.update(held)
        return header, arrays

    def load_parts(self, header: dict[str, Any], arrays: Arrays, path: str, epoch: int | None) -> None:
        self.optimization.load_state_dict(header, arrays, path)
        self.training_step.load_state_dict(header, arrays)
        self.context.load_state_dict(header, arrays)
        if self.optimization.averaging is not None:
            self.optimization.averaging.publish(self.progress.steps)

    def read(self, path: str) -> State:
        """Reads on rank 0 if the ranks may be on hosts without the file."""
        exchange, load = self.context.exchange, functools.partial(read, path)
        return load() if exchange is None else exchange.read_once(load)

    def capabilities(self) -> dict[str, Command]:
        mx, progress, optimization = self.context.mx, self.progress, self.optimization
        population = Population(self.recipe, self.work, self.training_step, optimization, progress, self._new_trainers)
        return {
            "training": lambda c: {"found": training_alone(mx, progress, self.steps, c["sizes"], c["seconds"])},
            "gradients": lambda c: gradients(self.work.net),
            "exchange": lambda c: {"found": exchange_alone(self.context, optimization, c["kinds"], c["repeats"])},
            "individual": lambda c: {"found": self._individual(population, c["what"], c["given"])},
        }

    def _individual(self, population: Population, what: str, given: dict[str, Any]) -> dict[str, Any]:
        """One command of a search over weights: ``adopt``, ``mark``, ``back_off``, ``score`` or ``write``."""
        if self.world > 1:
            raise UsageError("a population is trained by processes of one rank each: use engine='local'")
        if self.recipe.methods:
            raise UsageError("recipe field methods: a population trains without; use methods={}")
        usual, metric = self.training_step.name == "usual", self.new_score().name
        if not usual or metric != "accuracy":
            raise UsageError(
                f"recipe field job={self.recipe.job!r}: a population is compared by the accuracy of net(x); this "
                f"job has {f'the metric {metric}' if usual else 'a step() of its own'}"
            )
        self.phase, self.fresh = {"adopt": "taking over an individual", "score": "scoring"}.get(what, self.phase), False
        population.recipe = self.recipe
        return population.commands()[what](**given) or {}

    def close(self) -> None:
        super().close()
        if hasattr(self, "optimization") and self.optimization.averaging is not None:
            self.optimization.averaging.close()


def _set_trained(parameter: Any, trained: bool) -> None:
    parameter.grad_req = "write" if trained else "null"
