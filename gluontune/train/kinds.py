"""The kinds of training step: net and loss, the job's own ``step``, and a ``step`` that does its own updates.

A session drives any of them through :class:`StepKind` and knows no differences; a new kind is a new class here.
"""

from __future__ import annotations

import contextlib
import functools
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, Protocol

from gluontune.errors import GluontuneError, UsageError
from gluontune.runtime import as_nd_array, as_net_array
from gluontune.train.arrays import described, first, flat, mapped, to_numpy, without_bfloat16
from gluontune.train.method_steps import refuse_step
from gluontune.train.outcome import Outcome
from gluontune.train.userfile import blaming

if TYPE_CHECKING:
    from gluontune.train.session import Session

__all__ = ["StepKind", "make_kind"]

Part = tuple[Any, ...]
Phase = Callable[[str], contextlib.AbstractContextManager[Any]]


class StepKind(Protocol):
    """How a batch becomes losses and gradients.

    Attributes:
        name: ``usual``, ``step`` or ``updates``. updates: whether it updates the parameters itself.
        loss: the loss block, where the kind has one.
    """

    name: str
    updates: bool
    loss: Any

    def train(self, parts: list[Part], phase: Phase) -> list[Any]:
        """The losses by context, shape (N,) each; the gradients lie in the parameters (or have been used)."""

    def evaluate(self, place: int, part: Part) -> Outcome:
        """One context's part of a validation batch. Changes no parameter."""

    def select(self, place: int, part: Part) -> Part:
        """The samples of a training batch that the recipe's methods choose by their losses."""

    def evaluate_views(self, place: int, part: Part, outcome: Outcome, score: Any) -> bool:
        """Score the mean over an image's views, where the recipe's methods ask for it; whether they do."""

    def explore(self, parts: list[Part]) -> None:
        """A pass that fixes the shapes of parameters that did not know them, and changes nothing else."""

    def begin(self, training: bool) -> None:
        """An epoch, or a validation, begins."""

    def state(self) -> list[Any]:
        """Recurrent state between two training batches, as arrays; nothing where there is none."""

    def state_parts(self) -> list[int]:
        """Samples of each context that :meth:`state` belongs to."""

    def set_state(self, arrays: list[Any], parts: list[int]) -> None:
        """Put back what :meth:`state` and :meth:`state_parts` gave."""


def make_kind(session: Session) -> StepKind:
    """The kind of a session's job.

    Raises:
        UsageError: the recipe asks for what this kind cannot do; says why.
    """
    job, recipe = session.job, session.recipe
    if job.step is None:
        if isinstance(session.nets, dict):
            raise GluontuneError(
                f"{job.place('net')}net() returned several nets ({', '.join(session.nets)}), so the job must say what "
                "one step is: def step(nets, *batch): …"
            )
        return _Usual(session)
    why = "the job's step() computes its own loss"
    refuse_step(recipe, job.place("step"), why, "loss", "validation")
    if {"mixup", "cutmix"} & set(recipe.methods):
        refuse_step(recipe, job.place("step"), why, "batch")
    if recipe.dtype == "float16":
        raise UsageError(
            f"recipe field dtype='float16': {job.place('step')}the job's step() chooses what its nets take; use float32"
        )
    if job.updates is None:
        return _Own(session)
    refuse_step(recipe, job.place("step"), "the job's step() does its own updates", "gradient")
    for field, wrong, way in (
        ("accumulate", recipe.accumulate > 1, "1"),
        ("engine", recipe.engine != "local", "'local'"),
        ("num_devices", len(session.ctxs) > 1, "1"),
    ):
        if wrong:
            raise UsageError(
                f"recipe field {field}={getattr(recipe, field)!r}: {job.place('step')}the job's step() does its own "
                f"updates, on one device; use {field}={way}"
            )
    return _Updating(session)


class _Recorded(ABC):
    """What the kinds share whose forward pass is recorded by the session."""

    updates = False
    loss: Any = None

    def __init__(self, session: Session):
        self.session = session
        self.job = session.job

    @abstractmethod
    def forward(self, place: int, part: Part, training: bool) -> Outcome:
        """One context's part through the nets, to the loss."""

    def train(self, parts: list[Part], phase: Phase) -> list[Any]:
        autograd, scaler = self.session.mx.autograd, self.session.scaler
        with autograd.record():
            with phase("forward"):
                losses = [self.forward(place, part, True).loss for place, part in enumerate(parts)]
            with phase("backward"):
                autograd.backward([scaler.scale(v) for v in losses] if scaler else losses)
        return losses

    def evaluate(self, place: int, part: Part) -> Outcome:
        return self.forward(place, part, False)

    def select(self, place: int, part: Part) -> Part:
        raise UsageError(
            f"{self.job.place('step')}the job's step() computes its own loss, which cannot choose samples"
        )

    def evaluate_views(self, place: int, part: Part, outcome: Outcome, score: Any) -> bool:
        return False

    def explore(self, parts: list[Part]) -> None:
        for place, part in enumerate(parts):
            self.forward(place, part, False)

    def begin(self, training: bool) -> None:
        return None

    def state(self) -> list[Any]:
        return []

    def state_parts(self) -> list[int]:
        return []

    def set_state(self, arrays: list[Any], parts: list[int]) -> None:
        return None


class _Usual(_Recorded):
    """``loss(net(input, …), label)``."""

    name = "usual"

    def __init__(self, session: Session):
        super().__init__(session)
        self.net = session.net
        self.loss = self.job.loss()
        self._half = session.recipe.dtype == "float16"
        self._training_loss = _training_loss(session, self.loss)

    def forward(self, place: int, part: Part, training: bool) -> Outcome:
        *inputs, label = part
        output = self._scores(inputs)
        loss = (self._training_loss if training else self.loss)(output, label)
        _check_loss(loss, part, output, f"{self.job.place('loss')}the loss")
        return Outcome(loss, output, label)

    def _scores(self, inputs: Any) -> Any:
        if self._half:
            inputs = [mapped(_halved, x) for x in inputs]
        output = self.net(*inputs)
        return mapped(lambda array: array.astype("float32"), output) if self._half else output

    def select(self, place: int, part: Part) -> Part:
        methods, mx = self.session.methods, self.session.mx
        with mx.autograd.pause():
            losses = to_numpy(self._training_loss(self._scores(part[:-1]), part[-1]))
        chosen = methods.select(losses, self.session.steps_taken, place)
        index = mx.nd.array(chosen, dtype="int32", ctx=self.session.ctxs[place])
        return tuple(as_net_array(mx.nd.take(as_nd_array(array), index)) for array in part)

    def evaluate_views(self, place: int, part: Part, outcome: Outcome, score: Any) -> bool:
        mx = self.session.mx

        def take(images: Any, chosen: Any, axis: int) -> Any:
            index = mx.nd.array(chosen, dtype="int32", ctx=self.session.ctxs[place])
            return mx.nd.take(as_nd_array(images), index, axis=axis)

        mean = self.session.methods.flipped(
            self.session.steps_taken,
            part[0],
            (1, 2),
            take,
            lambda view: without_bfloat16(self._scores((as_net_array(view), *part[1:-1]))),
        )
        if mean is None:
            return False
        score.update(Outcome(outcome.loss, mean, part[-1]))
        return True


def _training_loss(session: Session, loss: Any) -> Any:
    """The loss of a training batch, with what the recipe's methods make of it.

    Raises:
        UsageError: a method needs class scores, and the job's loss or net has others.
    """
    methods, job = session.recipe.methods, session.job
    losses = session.mx.gluon.loss
    softmax = type(loss) is losses.SoftmaxCrossEntropyLoss and loss._sparse_label and not loss._from_logits
    needing = {"label-smoothing", "mixup", "cutmix", "flip-validation"} & set(methods)
    if needing and (not softmax or loss._weight is not None):
        raise UsageError(
            f"recipe field methods={{{min(needing)!r}: …}}: {job.place('loss')}it needs a SoftmaxCrossEntropyLoss "
            f"of class numbers, and the job's loss is {type(loss).__name__}; leave it out"
        )

    def log_softmax(output: Any, axis: int) -> Any:
        return as_net_array(session.mx.nd.log_softmax(as_nd_array(output), axis=axis))

    return session.methods.training_loss(loss, log_softmax, getattr(loss, "_axis", -1))


def _halved(array: Any) -> Any:
    return array.astype("float16") if str(array.dtype).find("float32") >= 0 else array


class _Own(_Recorded):
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
        wanted = (
            "(loss, state) or (loss, output, state)" if self._begin is not None else "loss or (loss, output)"
        )
        values = list(found) if isinstance(found, (tuple, list)) else [found]
        if self._begin is not None:
            if len(values) < 2:
                raise GluontuneError(f"{self.job.place('step')}step() must return {wanted}")
            self._states[training][place] = (len(first(part)), mapped(_detached, values.pop()))
        if not 1 <= len(values) <= 2:
            raise GluontuneError(
                f"{self.job.place('step')}step() returned {len(values)} values; return {wanted}"
            )
        loss, output = (*values, None)[:2]
        _check_loss(loss, part, output, self._loss_of)
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


class _Updating(_Own):
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
            return [
                self.call(place, part, True, **self._given(False)).loss for place, part in enumerate(parts)
            ]

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
                p.set_data(before[p.name])
            elif p._data:
                value = mx.nd.zeros(p.shape, dtype=p.dtype)
                mx.init.create(p.init or "zeros")._init_weight(mx.init.InitDesc(p.name), value)
                p.set_data(as_net_array(value))


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


def _check_loss(loss: Any, part: Part, output: Any, what: str) -> None:
    count = len(first(part))
    if getattr(loss, "shape", None) != (count,):
        shape = getattr(loss, "shape", type(loss).__name__)
        given = f"; the net's output has shape {described(output)}" if output is not None else ""
        raise GluontuneError(
            f"{what} has shape {shape} for a batch of {count}: it must give one value per "
            f"sample, ({count},){given}"
        )
