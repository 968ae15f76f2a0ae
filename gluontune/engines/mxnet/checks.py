"""A job tried before anything is timed: one batch trained, one validated, each fault told with its line."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

from gluontune import compute
from gluontune.core.errors import GluontuneError
from gluontune.job.arrays import described, hint_of, parts_of
from gluontune.job.metrics import Score, make_score
from gluontune.job.outcome import Outcome
from gluontune.job.user_file import blaming

if TYPE_CHECKING:
    from gluontune.engines.mxnet.session import Session

__all__ = ["try_one_batch"]


def try_one_batch(session: Session) -> Outcome:
    """Train one batch without an update, and validate one; the session is reset afterwards.

    Returns:
        The outcome of the validation batch, from which the metric is chosen.

    Raises:
        GluontuneError: something does not fit: what, with which shapes and types, and where in the job's file.
    """
    job, wait = session.job, session.mx.nd.waitall
    name = "step" if job.step is not None else "net" if job.function("net") else "loss"
    what = "step()" if job.step is not None else "net() and loss"
    batch = _first_batch(session, session.feed.train, "training")
    seen = f"a batch of {described(batch)}"
    parts = parts_of(batch, session.ctxs)
    if job.step is None:
        *inputs, label = parts[0]
        _check_classes(session, (*inputs, session.methods.plain(label)))
    with blaming(job.file, what, job.function(name), seen + hint_of(batch)):
        session.kind.begin(True)
        session.kind.explore([(*part[:-1], session.methods.plain(part[-1])) for part in parts])
        wait()
        session.remember()
        if job.step is not None:
            for block in session.named_nets().values():
                compute.set_mode(block, session.recipe.hybridize)
        if not session.kind.updates:
            session.kind.train(parts, lambda phase: contextlib.nullcontext())
        wait()
    session.kind.begin(True)
    batch = _first_batch(session, session.feed.val, "validation")
    seen = f"a validation batch of {described(batch)}"
    with blaming(job.file, what, job.function(name), seen + hint_of(batch)):
        session.kind.begin(False)
        outcome = session.kind.evaluate(0, parts_of(batch, session.ctxs)[0])
        wait()
    score = make_score(job, session.kind.loss, outcome)
    _try_score(session, score, outcome)
    return outcome


def _first_batch(session: Session, loader: Any, name: str) -> tuple[Any, ...]:
    job = session.job
    with blaming(job.file, f"the {name} data", job.function("data")):
        batches = iter(loader.epoch(0))
        batch = next(batches, None)
        close = getattr(batches, "close", None)
        if close is not None:
            close()
    if batch is None:
        raise GluontuneError(f"{job.place('data')}the {name} data give no batch")
    return tuple(batch)


def _try_score(session: Session, score: Score, outcome: Outcome) -> None:
    job = session.job
    with blaming(job.file, f"the metric {score.name!r}", job.function("metric"), outcome.shapes()):
        score.update(outcome)
        score.value()


def _check_classes(session: Session, part: tuple[Any, ...]) -> None:
    """Scores against labels, where the loss is a softmax over classes."""
    job, losses = session.job, session.mx.gluon.loss
    *inputs, label = part
    loss = session.kind.loss
    if not isinstance(loss, losses.SoftmaxCrossEntropyLoss):
        return
    seen = f"a batch of {described(part)}"
    with blaming(job.file, "the net", job.function("net"), seen + hint_of(part)):
        output = session.net(*(_half(session, x) for x in inputs))
        session.mx.nd.waitall()
    where, count = job.place("net"), len(label)
    shape = getattr(output, "shape", None)
    if shape is None and type(loss) is not losses.SoftmaxCrossEntropyLoss:
        return  # a loss of the job's own, over several outputs
    if shape is None or len(shape) < 2 or shape[0] != count:
        raise GluontuneError(
            f"{where}net() returns {shape if shape else type(output).__name__} for a batch of {count}: "
            f"it must return class scores of shape ({count}, number of classes) for the softmax loss; give the job "
            "a loss() of its own for anything else"
        )
    axis = loss._axis % len(shape)
    without = tuple(size for place, size in enumerate(shape) if place != axis)
    kept = tuple(1 if place == axis else size for place, size in enumerate(shape))
    given = tuple(label.shape)
    if loss._sparse_label and given == tuple(shape):
        raise GluontuneError(
            f"{job.place('data')}the labels have the shape of the scores, {given}, as one-hot labels have, and the "
            "loss takes class numbers: use SoftmaxCrossEntropyLoss(sparse_label=False), or labels of shape "
            f"{without}"
        )
    if not loss._sparse_label and given != tuple(shape):
        raise GluontuneError(
            f"{job.place('data')}the labels have shape {given}, and the loss (sparse_label=False) takes a score for "
            f"each class, {tuple(shape)}: use sparse_label=True for class numbers"
        )
    if loss._sparse_label and given not in (without, kept):
        raise GluontuneError(
            f"{where}net() returns {tuple(shape)} for labels of shape {given}: it must return class scores of shape "
            f"({count}, number of classes), one row for each label"
        )
    if job.classes is not None and shape[axis] < job.classes:
        raise GluontuneError(
            f"{where}net() returns {shape[axis]} scores, but the data set has {job.classes} classes: "
            f"make its last layer Dense({job.classes})"
        )


def _half(session: Session, array: Any) -> Any:
    half = session.recipe.dtype == "float16" and str(array.dtype).find("float32") >= 0
    return array.astype("float16") if half else array
