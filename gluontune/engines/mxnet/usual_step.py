"""The usual kind of step: ``loss(net(input, …), label)``, with what the recipe's methods make of it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from gluontune.core.errors import UsageError
from gluontune.engines.mxnet.step import Part, Recorded, check_loss
from gluontune.job.arrays import mapped, to_numpy, without_bfloat16
from gluontune.job.outcome import Outcome
from gluontune.runtime import as_nd_array, as_net_array

if TYPE_CHECKING:
    from gluontune.engines.mxnet.session import Session

__all__ = ["UsualStep"]


class UsualStep(Recorded):
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
        check_loss(loss, part, output, f"{self.job.place('loss')}the loss")
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
