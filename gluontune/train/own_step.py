"""The kinds of step that the job writes itself: a ``step``, and one that does its own updates, such as a GAN's."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from gluontune.errors import GluontuneError
from gluontune.runtime import as_net_array, set_data
from gluontune.train.arrays import first, flat, mapped
from gluontune.train.outcome import Outcome
from gluontune.train.step_kind import Part, Phase, Recorded, check_loss
from gluontune.train.userfile import blaming

if TYPE_CHECKING:
    from gluontune.train.session import Session

__all__ = ["OwnStep", "UpdatingStep"]


class OwnStep(Recorded):
    """The job's ``step(net, *batch)``, with its recurrent state where it has one."""

    name = "step"

    def __init__(self, session: Session):
        super().__init__(session)
        self.nets, self.stage = session.nets, session.feed.stage
        self._step, self._begin = self.job.step, self.job.begin
        self._loss_of = f"{self.job.place('step')}step()'s loss"
        self._states: dict[bool, dict[int, tuple[int, Any]]] = {True: {}, False: {}}

    def call(self, place: int, part: Part, training: bool, **more: Any) -> Outcome:
        """One call of ``step``; its state is kept for the next."""
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
            self._states[training][place] = (len(first(part)), mapped(_detached, values.pop()))
        if not 1 <= len(values) <= 2:
            raise GluontuneError(f"{self.job.place('step')}step() returned {len(values)} values; return {wanted}")
        loss, output = (*values, None)[:2]
        check_loss(loss, part, output, self._loss_of)
        return Outcome(loss, output, part[-1] if len(part) > 1 else None)

    def forward(self, place: int, part: Part, training: bool) -> Outcome:
        return self.call(place, part, training)

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
        ctx = self.session.ctxs[place]
        return mapped(lambda array: array if array is None else array.as_in_context(ctx), found)

    def begin(self, training: bool) -> None:
        self._states[training].clear()

    def state(self) -> list[Any]:
        return [leaf for _, (_, held) in sorted(self._states[True].items()) for leaf in flat(held)]

    def state_parts(self) -> list[int]:
        return [size for _, (size, _) in sorted(self._states[True].items())]

    def set_state(self, arrays: list[Any], parts: list[int]) -> None:
        self.begin(True)
        if self._begin is None or not arrays:
            return
        left = iter(arrays)
        for place, size in enumerate(parts):
            # The nesting is begin()'s own; the checkpoint has the arrays in order.
            ctx = self.session.ctxs[place]
            fresh = self._fresh(place, size)
            held = mapped(functools.partial(_next_of, left, ctx), fresh)
            self._states[True][place] = (size, held)


class UpdatingStep(OwnStep):
    """A ``step`` that records, goes backward and updates by itself, such as a GAN's."""

    name, updates = "updates", True

    def _given(self, inert: bool) -> dict[str, Any]:
        real = self.session.trainers
        trainers = {name: _Inert(real.get(name), self.session) for name in self.session.named_nets()}
        given = trainers if inert else real
        name = self.job.updates
        assert name is not None
        return {name: given if name == "trainers" else next(iter(given.values()))}

    def train(self, parts: list[Part], phase: Phase) -> list[Any]:
        with phase("forward"):  # all of it: the job's own code cannot be cut into phases
            return [self.call(place, part, True, **self._given(False)).loss for place, part in enumerate(parts)]

    def evaluate(self, place: int, part: Part) -> Outcome:
        with self._untouched():
            return self.call(place, part, False, **self._given(True))

    def explore(self, parts: list[Part]) -> None:
        self.evaluate(0, parts[0])
        self.begin(False)

    @contextlib.contextmanager
    def _untouched(self) -> Iterator[None]:
        """Statistics that a recorded pass moves (BatchNorm's) are put back."""
        mx = self.session.mx
        fixed = [p for p in self.session.net.collect_params().values() if p.grad_req == "null"]
        before = {p.name: p.data(self.session.ctxs[0]).copy() for p in fixed if p._data}
        yield
        for p in fixed:
            if p.name in before:
                set_data(p, before[p.name])
            elif p._data:
                value = mx.nd.zeros(p.shape, dtype=p.dtype)
                mx.init.create(p.init or "zeros")._init_weight(mx.init.InitDesc(p.name), value)
                set_data(p, as_net_array(value))


class _Inert:
    """A trainer that updates nothing: the losses of a validation batch are wanted, not its gradients' effect."""

    def __init__(self, trainer: Any, session: Session):
        self._trainer = trainer
        self.learning_rate = session.recipe.scaled_learning_rate if trainer is None else trainer.learning_rate

    def step(self, *_: Any, **__: Any) -> None:
        """Nothing."""

    update = allreduce_grads = set_learning_rate = step

    def __getattr__(self, name: str) -> Any:
        return getattr(self._trainer, name)


def _next_of(left: Iterator[Any], ctx: Any, like: Any) -> Any:
    """The next of the arrays, on ``ctx``, where the state has one."""
    return like if like is None else next(left).as_in_context(ctx)


def _detached(array: Any) -> Any:
    return array if array is None else array.detach()
