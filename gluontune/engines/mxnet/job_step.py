"""Training steps of the job: its ``step``, and a ``step`` with its own updates, such as a GAN's."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from gluontune.compute.process import explored
from gluontune.core.arrays import flat, mapped
from gluontune.core.errors import GluontuneError, UsageError
from gluontune.engines.mxnet.context import Optimization
from gluontune.engines.mxnet.steps import Part, Phase, Step, UsualStep, check_loss
from gluontune.engines.mxnet.work import Work
from gluontune.engines.progress import MethodSteps, refuse_methods
from gluontune.job.batches import Outcome, first, to_numpy
from gluontune.job.checkpoint import part_of
from gluontune.job.user_file import blaming
from gluontune.recipe import Recipe
from gluontune.runtime import as_net_array, set_data


class JobStep(Step):
    """The job's ``step(net, *batch)``, with its recurrent state if it has one."""

    name = "step"

    def __init__(self, recipe: Recipe, work: Work, methods: MethodSteps):
        super().__init__(recipe, work, methods)
        self.nets, self.stage = work.nets, work.feed.stage
        self._step, self._begin = self.job.step, self.job.begin
        self._loss_of = f"{self.job.place('step')}step()'s loss"
        self._states: dict[bool, dict[int, tuple[int, Any]]] = {True: {}, False: {}}

    def call(self, place: int, part: Part, training: bool, **more: Any) -> Outcome:
        """One call of ``step``; its state is saved for the next."""
        staged = part if self.stage is None else (self.stage(part[0]), *part[1:])
        if self._begin is not None:
            more["state"] = self._state_of(place, part, training)
        assert self._step is not None
        found = self._step(self.nets, *staged, **more)
        wanted = "(loss, state) or (loss, output, state)" if self._begin is not None else "loss or (loss, output)"
        values = list(found) if isinstance(found, (tuple, list)) else [found]
        if self._begin is not None:
            if len(values) < 2:
                raise GluontuneError(f"{self.job.place('step')}step() must return {wanted}")
            state = mapped(lambda a: None if a is None else a.detach(), values.pop())
            self._states[training][place] = (len(first(part)), state)
        if not 1 <= len(values) <= 2:
            raise GluontuneError(f"{self.job.place('step')}step() returned {len(values)} values; return {wanted}")
        loss, output = (*values, None)[:2]
        check_loss(loss, part, output, self._loss_of)
        return Outcome(loss, output, part[-1] if len(part) > 1 else None)

    forward = call

    def explore(self, parts: list[Part], optimization: Optimization) -> None:
        for place, part in enumerate(parts):
            explored(functools.partial(self._loss, place, part))

    def _loss(self, place: int, part: Part) -> Any:
        return self.forward(place, part, False).loss

    def _state_of(self, place: int, part: Part, training: bool) -> Any:
        size = len(first(part))
        known = self._states[training].get(place)
        if known is None or known[0] != size:
            known = self._states[training][place] = (size, self._fresh(place, size))
        return known[1]

    def _fresh(self, place: int, size: int) -> Any:
        assert self._begin is not None
        with blaming(self.job.file, "begin()", self._begin, f"a batch of {size}"):
            found = self._begin(self.nets, size)
        ctx = self.context.ctxs[place]
        return mapped(lambda array: array if array is None else array.as_in_context(ctx), found)

    def begin(self, training: bool) -> None:
        self._states[training].clear()

    def state_dict(self) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
        held = [value for _, value in sorted(self._states[True].items())]
        leaves = [leaf for _, nested in held for leaf in flat(nested)]
        return {"state_parts": [size for size, _ in held]}, {f"state/{n}": to_numpy(a) for n, a in enumerate(leaves)}

    def load_state_dict(self, header: Mapping[str, Any], arrays: Mapping[str, np.ndarray]) -> None:
        self.begin(True)
        leaves = part_of(arrays, "state")
        if self._begin is None or not leaves:
            return
        left = iter([self.context.array(leaves[name]) for name in sorted(leaves, key=int)])
        for place, size in enumerate(header.get("state_parts", [])):
            # begin() defines the nesting; the checkpoint has the arrays in order.
            held = mapped(functools.partial(_next_of, left, self.context.ctxs[place]), self._fresh(place, size))
            self._states[True][place] = (size, held)


class UpdatingStep(JobStep):
    """A ``step`` with its own recording, backward pass and updates, such as a GAN's."""

    name, updates = "updates", True

    def _given(self, real: dict[str, Any]) -> dict[str, Any]:
        """The argument ``trainers`` or ``trainer`` of ``step``."""
        name = self.job.updates
        assert name is not None
        return {name: real if name == "trainers" else next(iter(real.values()))}

    def train(self, parts: list[Part], phase: Phase, optimization: Optimization) -> list[Any]:
        given = self._given(optimization.trainers)
        with phase("forward"):  # all of it: the job's code cannot be split into phases
            return [self.call(place, part, True, **given).loss for place, part in enumerate(parts)]

    def evaluate(self, place: int, part: Part, optimization: Optimization) -> Outcome:
        rate, real = self.recipe.scaled_learning_rate, optimization.trainers
        inert = self._given({name: _Inert(real.get(name), rate) for name in self.work.named_nets})
        with self._untouched():
            return self.call(place, part, False, **inert)

    def explore(self, parts: list[Part], optimization: Optimization) -> None:
        explored(functools.partial(self.evaluate, 0, parts[0], optimization), record=False)
        self.begin(False)

    @contextlib.contextmanager
    def _untouched(self) -> Iterator[None]:
        """A context that restores statistics changed by a recorded pass (BatchNorm's)."""
        mx = self.mx
        fixed = [p for p in self.work.net.collect_params().values() if p.grad_req == "null"]
        before = {p.name: p.data(self.context.ctxs[0]).copy() for p in fixed if p._data}
        yield
        for p in fixed:
            if p.name in before:
                set_data(p, before[p.name])
            elif p._data:
                value = mx.nd.zeros(p.shape, dtype=p.dtype)
                mx.init.create(p.init or "zeros")._init_weight(mx.init.InitDesc(p.name), value)
                set_data(p, as_net_array(value))


class _Inert:
    """A trainer that updates nothing, for the losses of a validation batch."""

    def __init__(self, trainer: Any, rate: float):
        self._trainer = trainer
        self.learning_rate = rate if trainer is None else trainer.learning_rate

    def step(self, *_: Any, **__: Any) -> None:
        """Nothing."""

    update = allreduce_grads = set_learning_rate = step

    def __getattr__(self, name: str) -> Any:
        return getattr(self._trainer, name)


def _next_of(left: Iterator[Any], ctx: Any, like: Any) -> Any:
    """The next of the arrays, on ``ctx``, if the state has one."""
    return like if like is None else next(left).as_in_context(ctx)


def make_step(recipe: Recipe, work: Work, methods: MethodSteps) -> Step:
    job = work.job
    if job.step is None:
        if isinstance(work.nets, dict):
            raise GluontuneError(
                f"{job.place('net')}net() returned several nets ({', '.join(work.nets)}), so the job must say what "
                "one step is: def step(nets, *batch): …"
            )
        return UsualStep(recipe, work, methods)
    why = "the job's step() computes its own loss"
    refuse_methods(recipe, job.place("step"), why, "loss", "validation")
    if {"mixup", "cutmix"} & set(recipe.methods):
        refuse_methods(recipe, job.place("step"), why, "batch")
    if recipe.dtype == "float16":
        raise UsageError(
            f"recipe field dtype='float16': {job.place('step')}the job's step() chooses what its nets take; use float32"
        )
    if job.updates is None:
        return JobStep(recipe, work, methods)
    refuse_methods(recipe, job.place("step"), "the job's step() does its own updates", "gradient")
    for field, wrong, way in (
        ("accumulate", recipe.accumulate > 1, "1"),
        ("engine", recipe.engine != "local", "'local'"),
        ("num_devices", len(work.context.ctxs) > 1, "1"),
    ):
        if wrong:
            raise UsageError(
                f"recipe field {field}={getattr(recipe, field)!r}: {job.place('step')}the job's step() does its own "
                f"updates, on one device; use {field}={way}"
            )
    return UpdatingStep(recipe, work, methods)
