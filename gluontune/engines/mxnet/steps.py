"""The training step of MXNet's engine: a new one is a class with a line in ``make_step``."""

from __future__ import annotations

import contextlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from gluontune.core.arrays import mapped
from gluontune.core.errors import GluontuneError, UsageError
from gluontune.engines.mxnet.context import Optimization
from gluontune.engines.mxnet.work import Work, check_classes, first_batch
from gluontune.engines.progress import MethodSteps
from gluontune.job.batches import Outcome, described, first, hint_of, make_score, to_numpy, without_bfloat16
from gluontune.job.user_file import blaming
from gluontune.recipe import Recipe
from gluontune.runtime import as_nd_array, as_net_array

Part = tuple[Any, ...]
Phase = Callable[[str], contextlib.AbstractContextManager[Any]]


class Step(ABC):
    """The way from a batch to losses and gradients.

    Attributes:
        name: ``usual``, ``step`` or ``updates``. updates: whether it updates the parameters.
        loss: the loss block, or None.
    """

    name: str
    updates = False
    loss: Any = None

    def __init__(self, recipe: Recipe, work: Work, methods: MethodSteps):
        self.recipe, self.work, self.methods = recipe, work, methods
        self.job, self.context, self.mx = work.job, work.context, work.context.mx

    @abstractmethod
    def forward(self, place: int, part: Part, training: bool) -> Outcome:
        """The outcome of one context's part, by the nets and the loss."""

    def train(self, parts: list[Part], phase: Phase, optimization: Optimization) -> list[Any]:
        """The losses by context, shape (N,) each; the gradients are in the parameters (or already used)."""
        with self.mx.autograd.record():
            with phase("forward"):
                losses = [self.forward(place, part, True).loss for place, part in enumerate(parts)]
            with phase("backward"):
                self.mx.autograd.backward(optimization.scaled(losses))
        return losses

    def evaluate(self, place: int, part: Part, optimization: Optimization) -> Outcome:
        """One context's part of a validation batch. Changes no parameter."""
        return self.forward(place, part, False)

    def select(self, place: int, part: Part, step: int) -> Part:
        """The samples of a training batch chosen by the recipe's methods by their losses, after ``step`` steps."""
        raise UsageError(f"{self.job.place('step')}the job's step() computes its own loss, which cannot choose samples")

    def views(self, place: int, part: Part, step: int) -> Any:
        """The mean output over an image's views, or None without test-time flips."""
        return None

    def explore(self, parts: list[Part], optimization: Optimization) -> None:
        """A pass that fixes unknown shapes of parameters, and changes nothing else."""
        for place, part in enumerate(parts):
            self.forward(place, part, False)

    def begin(self, training: bool) -> None:
        """An epoch, or a validation, begins."""

    def state_dict(self) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
        """Recurrent state between two training batches, and its number of samples in each context."""
        return {"state_parts": []}, {}

    def load_state_dict(self, header: Mapping[str, Any], arrays: Mapping[str, np.ndarray]) -> None:
        """Restore the result of :meth:`state_dict`."""


class UsualStep(Step):
    """``loss(net(input, …), label)``, changed by the recipe's methods."""

    name = "usual"

    def __init__(self, recipe: Recipe, work: Work, methods: MethodSteps):
        super().__init__(recipe, work, methods)
        self.loss = self.job.loss()
        self._half = recipe.dtype == "float16"
        self._training_loss = self._changed(self.loss)

    def forward(self, place: int, part: Part, training: bool) -> Outcome:
        *inputs, label = part
        output = self.scores(inputs)
        loss = (self._training_loss if training else self.loss)(output, label)
        check_loss(loss, part, output, f"{self.job.place('loss')}the loss")
        return Outcome(loss, output, label)

    def scores(self, inputs: Any) -> Any:
        """The net's output, float32 even for a net of float16."""
        if self._half:
            inputs = mapped(lambda a: a.astype("float16") if "float32" in str(a.dtype) else a, inputs)
        output = self.work.net(*inputs)
        return mapped(lambda array: array.astype("float32"), output) if self._half else output

    def select(self, place: int, part: Part, step: int) -> Part:
        with self.mx.autograd.pause():
            losses = to_numpy(self._training_loss(self.scores(part[:-1]), part[-1]))
        index = self.context.index(self.methods.select(losses, step, place), place)
        return tuple(as_net_array(self.mx.nd.take(as_nd_array(array), index)) for array in part)

    def views(self, place: int, part: Part, step: int) -> Any:
        def take(images: Any, chosen: Any, axis: int) -> Any:
            return self.mx.nd.take(as_nd_array(images), self.context.index(chosen, place), axis=axis)

        def scores(view: Any) -> Any:
            return without_bfloat16(self.scores((as_net_array(view), *part[1:-1])))

        return self.methods.flipped(step, part[0], (1, 2), take, scores)

    def _changed(self, loss: Any) -> Any:
        """The loss of a training batch, changed by the recipe's methods."""
        losses = self.mx.gluon.loss
        softmax = type(loss) is losses.SoftmaxCrossEntropyLoss and loss._sparse_label and not loss._from_logits
        needing = {"label-smoothing", "mixup", "cutmix", "flip-validation"} & set(self.recipe.methods)
        if needing and (not softmax or loss._weight is not None):
            raise UsageError(
                f"recipe field methods={{{min(needing)!r}: …}}: {self.job.place('loss')}it needs a "
                f"SoftmaxCrossEntropyLoss of class numbers, and the job's loss is {type(loss).__name__}; leave it out"
            )

        def log_softmax(output: Any, axis: int) -> Any:
            return as_net_array(self.mx.nd.log_softmax(as_nd_array(output), axis=axis))

        return self.methods.training_loss(loss, log_softmax, getattr(loss, "_axis", -1))


def check_loss(loss: Any, part: Part, output: Any, what: str) -> None:
    count = len(first(part))
    if getattr(loss, "shape", None) != (count,):
        shape = getattr(loss, "shape", type(loss).__name__)
        given = f"; the net's output has shape {described(output)}" if output is not None else ""
        raise GluontuneError(
            f"{what} has shape {shape} for a batch of {count}: it must give one value per sample, ({count},){given}"
        )


def try_one_batch(step: Step, optimization: Optimization, set_mode: Callable[[Any], None]) -> Outcome:
    """Train one batch without an update, and validate one, before anything is timed. Reset afterwards.

    Args:
        set_mode: compiles one of the nets that need a batch first.

    Returns:
        The outcome of the validation batch, which selects the metric.

    Raises:
        GluontuneError: a misfit: names it, with shapes and types, and the line of the job's file.
    """
    work, job, wait = step.work, step.job, step.mx.nd.waitall
    name = "step" if job.step is not None else "net" if job.function("net") else "loss"
    what = "step()" if job.step is not None else "net() and loss"

    def blamed(batch: Part, kind: str) -> Any:
        return blaming(job.file, what, job.function(name), f"a {kind}batch of {described(batch)}", hint_of(batch))

    def plain_labels(part: Part) -> Part:
        return (*part[:-1], step.methods.class_numbers(part[-1]))

    batch = first_batch(job, work.feed.train, "training")
    parts = step.context.parts(batch)
    if isinstance(step, UsualStep):
        check_classes(work, step.loss, plain_labels(parts[0]), step.scores)
    with blamed(batch, ""):
        step.begin(True)
        step.explore([plain_labels(part) for part in parts], optimization)
        wait()
        work.remember()
        if job.step is not None:
            for block in work.named_nets.values():
                set_mode(block)
        if not step.updates:
            step.train(parts, lambda phase: contextlib.nullcontext(), optimization)
        wait()
    step.begin(True)
    batch = first_batch(job, work.feed.val, "validation")
    with blamed(batch, "validation "):
        step.begin(False)
        outcome = step.evaluate(0, step.context.parts(batch)[0], optimization)
        wait()
    score = make_score(job, step.loss, outcome)
    with blaming(job.file, f"the metric {score.name!r}", job.function("metric"), outcome.shapes()):
        score.update(outcome)
        score.value()
    return outcome
