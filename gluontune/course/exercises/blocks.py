"""Exercises in Gluon code: records, blocks, trainers with a schedule, quantization, layouts, losses.

Each checker draws its data anew.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from gluontune import runtime
from gluontune.core.arrays import distance
from gluontune.course.exercises._registry import alike, calling, close, exercise, values_of


@exercise("write-record", "lambda image, label, key: mx.recordio.pack(mx.recordio.IRHeader(0, label, key, 0), image)")
def _write_record(answer: Callable[..., Any]) -> str | None:
    """The bytes of an image record, read back by MXNet."""
    mx, rng = runtime.mxnet(), np.random.default_rng()
    image = rng.bytes(int(rng.integers(40, 90)))
    label, key = float(rng.integers(1, 999)), int(rng.integers(1000, 9999))
    with calling("an image's bytes, a label and a key"):
        found = bytes(answer(image, label, key))
    if found == image:
        return "Those are the image's bytes alone; a header with label and key stands before them."
    if image not in found:
        return "The image's bytes are not in it as they are: nothing is decoded or compressed."
    with calling("mx.recordio.unpack"):
        header, content = mx.recordio.unpack(found)
    if content != image:
        return "mx.recordio.unpack finds other bytes than the image's: the header is IRHeader(flag, label, id, id2)."
    if not (np.ndim(header.label) == 0 and float(header.label) == label):
        if close(float(np.ravel(header.label)[0]), key):
            return "Label and key are exchanged: IRHeader(flag, label, id, id2)."
        return f"The label is read back as {header.label}; it was {label:g}."
    return None if header.id == key else f"The key is read back as {header.id}; it was {key}."


@exercise("write-hybrid-forward", "lambda F, x: F.where(x > 0, x, 0.1 * x)")
def _write_hybrid_forward(answer: Callable[..., Any]) -> str | None:
    """x where it is positive, a tenth of it elsewhere, imperatively and as a graph."""
    mx, rng = runtime.mxnet(), np.random.default_rng()
    x = rng.normal(size=(5, int(rng.integers(3, 9)))).astype(np.float32)

    class Learners(mx.gluon.HybridBlock):  # type: ignore[name-defined,misc]
        def hybrid_forward(self, F: Any, x: Any) -> Any:
            return answer(F, x)

    found = {}
    once = "It decides once for the whole batch; F.where decides for each number."
    graph = "A graph has no values yet: it cannot decide by an `if`, or call mx.nd. Use F.where, or F.relu."
    wrong = {"imperative": [("ambiguous", once)], "hybridized": [("", graph)]}
    for mode in wrong:
        block = Learners()
        if mode == "hybridized":
            block.hybridize()
        with calling("mx.nd and an array", *wrong[mode]):
            found[mode] = values_of(block(mx.nd.array(x)))
    truth = np.where(x > 0, x, 0.1 * x)
    if found["imperative"].shape != truth.shape:
        return f"For an array of shape {x.shape} it gives one of shape {found['imperative'].shape}."
    relu = "That is ReLU: negative numbers keep a tenth of their size."
    known = ((truth, None), (np.maximum(x, 0), relu), (x, once), (0.1 * x, once))
    hint = alike(found["imperative"], *known, otherwise="x where x > 0; 0.1 times x elsewhere.", atol=1e-5)
    return hint or alike(found["hybridized"], (truth, None), otherwise="As a graph it computes something else.")


_TRAINER = """
def make(params, peak, warmup, drop):
    plan = mx.lr_scheduler.MultiFactorScheduler([drop], factor=0.1, base_lr=peak, warmup_steps=warmup)
    return mx.gluon.Trainer(params, "sgd", {"learning_rate": peak, "lr_scheduler": plan})
make
"""


@exercise("write-trainer", _TRAINER)
def _write_trainer(answer: Callable[..., Any]) -> str | None:
    """A Trainer whose rate warms up to ``peak``, and is a tenth of it after update ``drop``."""
    mx, rng = runtime.mxnet(), np.random.default_rng()
    peak, warmup = float(rng.uniform(0.2, 0.8)), int(rng.integers(5, 9))
    drop = warmup + int(rng.integers(4, 9))
    weight = mx.gluon.Parameter("weight", shape=(1,))
    weight.initialize()
    rates = [0.0]
    with calling(f"(params, {peak:.2f}, {warmup}, {drop}), and in {drop + 5} steps,"):
        trainer = answer({"weight": weight}, peak, warmup, drop)
        for _ in range(drop + 5):
            with mx.autograd.record():
                loss = weight.data() * 0.0
            loss.backward()
            trainer.step(1)
            rates.append(float(trainer.learning_rate))
    truth = [peak * min(1.0, n / warmup) * (0.1 if n > drop else 1.0) for n in range(len(rates))]
    if np.allclose(rates, truth, atol=0.01 * peak):
        return None
    if np.ptp(rates[1:]) < 1e-9:
        return f"The rate stays at {rates[1]:.3g}: give the optimizer an lr_scheduler."
    if close(rates[1], peak, 0.02):
        return "It begins at the peak: the rate shall warm up first (warmup_steps)."
    if not close(rates[drop], peak, 0.02):
        return (
            f"At update {drop} the rate is {rates[drop]:.3g}, not {peak:.3g}. The Trainer's learning_rate overwrites"
            " the scheduler's base_lr, but not the end of its warm-up: give both the same."
        )
    if close(rates[-1], peak, 0.02):
        return f"After update {drop} the rate shall be a tenth; yours stays at {peak:.3g}."
    wrong = next(n for n in range(len(rates)) if abs(rates[n] - truth[n]) > 0.01 * peak)
    return f"At update {wrong} the rate shall be {truth[wrong]:.3g}; yours is {rates[wrong]:.3g}."


_DEPTH = """
def stochastic_depth(x, branch, keep, training):
    if not training:
        return x + keep * branch
    kept = mx.nd.random.uniform(shape=(len(x),) + (1,) * (x.ndim - 1)) < keep
    return x + kept * branch
stochastic_depth
"""


@exercise("write-stochastic-depth", _DEPTH)
def _write_stochastic_depth(answer: Callable[..., Any]) -> str | None:
    """A residual branch that is dropped for some images, and weighted when predicting."""
    mx, rng = runtime.mxnet(), np.random.default_rng()
    keep = float(rng.uniform(0.4, 0.8))
    x, branch = (rng.uniform(1, 2, size=(800, 3)).astype(np.float32) for _ in range(2))
    with calling(f"two arrays (800, 3) and keep={keep:.2f}"):
        trained, predicted = (
            values_of(answer(mx.nd.array(x), mx.nd.array(branch), keep, training)) for training in (True, False)
        )
    if trained.shape != x.shape or predicted.shape != x.shape:
        return f"For arrays of shape {x.shape} it gives {trained.shape} and {predicted.shape}."
    share = (trained - x) / branch
    whole = np.isclose(share, 0, atol=1e-3) | np.isclose(share, 1, atol=1e-3)
    if not whole.all():
        return "In training an image's branch is added whole or not at all."
    if np.ptp(share, axis=1).max() > 0.5:
        return "The dice fall once for each image, not for each number: their shape is (batch, 1, …)."
    if np.ptp(share) < 0.5:
        return "All images of the batch share one throw; each one has its own."
    if abs(share.mean() - keep) > 0.12:
        if abs(share.mean() - (1 - keep)) < 0.06:
            return f"{100 * share.mean():.0f} % of the branches were kept: keep is the share that stays."
        return f"{100 * share.mean():.0f} % of the branches were kept; it shall be {100 * keep:.0f} %."
    if np.allclose(predicted, x + branch, atol=1e-3):
        return "In prediction the branch counts as often as it was there in training: keep times."
    return None if np.allclose(predicted, x + keep * branch, atol=1e-3) else "Prediction is x + keep · branch."


_QUANTIZE = """
def quantize(x):
    low, high = min(x.min().asscalar(), 0), max(x.max().asscalar(), 0)
    scale = (high - low) / 255
    zero = round(-low / scale)
    return (x / scale + zero).round().clip(0, 255).astype("uint8"), scale, zero
quantize
"""


@exercise("write-quantize", _QUANTIZE)
def _write_quantize(answer: Callable[..., Any]) -> str | None:
    """uint8 with a scale and a zero point for the range of an array, zero included."""
    mx, rng = runtime.mxnet(), np.random.default_rng()
    for low, high in ((-float(rng.uniform(0.5, 3)), float(rng.uniform(1, 5))), (float(rng.uniform(1, 2)), 5.0)):
        x = np.append(rng.uniform(low, high, 500), [low, high]).astype(np.float32)
        with calling(f"an array between {low:.2f} and {high:.2f}"):
            q, scale, zero = answer(mx.nd.array(x))
            kind, q = np.dtype(q.dtype), values_of(q)
            scale, zero = float(scale), float(zero)
        if kind != np.uint8:
            return f"The integers are {kind.name}: .astype('uint8')."
        if zero != int(zero) or not 0 <= zero <= 255:
            return f"The zero point is an integer from 0 to 255, the one that means 0.0; yours is {zero:g}."
        right = (max(high, 0) - min(low, 0)) / 255
        if not close(scale, right, 0.01):
            if close(scale, 1 / right, 0.01):
                return "Turn the scale over: it is the width of one step, (high − low) / 255."
            if close(scale, (high - low) / 255, 0.01):
                return "The range has to contain 0, or padding with zeros is no longer exact: low is at most 0."
            return f"From {min(low, 0):.3g} to {high:.3g} in 255 steps a step is {right:.4g}; yours is {scale:.4g}."
        off = distance(np.asarray(scale * (q - zero), np.float64), np.asarray(x, np.float64))
        if off > 1.05 * scale:
            return f"scale · (q − zero) is up to {off:.2g} away from x; half a step, {scale / 2:.2g}, is possible."
        if off > 0.75 * scale:
            return "Round to the nearest integer; astype alone cuts off, and errs by up to a whole step."
    return None


_NHWC = """
def to_nhwc(x, weight):
    return x.transpose((0, 2, 3, 1)), weight.transpose((0, 2, 3, 1))
to_nhwc
"""


@exercise("write-nhwc", _NHWC)
def _write_nhwc(answer: Callable[..., Any]) -> str | None:
    """Images (N, C, H, W) and weights (O, C, KH, KW) with their channels last."""
    mx, rng = runtime.mxnet(), np.random.default_rng()
    n, c, h, w, o = (int(k) for k in rng.permutation([2, 3, 5, 6, 7]))
    x, weight = rng.normal(size=(n, c, h, w)), rng.normal(size=(o, c, 1, 3))
    with calling(f"arrays of shapes {x.shape} and {weight.shape}"):
        found = [values_of(a) for a in answer(mx.nd.array(x), mx.nd.array(weight))]
    if len(found) != 2:
        return f"It shall give two arrays; yours gives {len(found)}."
    for mine, given in zip(found, (x, weight)):
        truth = given.transpose(0, 2, 3, 1)
        if mine.shape == given.transpose(0, 3, 2, 1).shape and mine.shape != truth.shape:
            return "Height and width are exchanged: the order of the axes is 0, 2, 3, 1."
        if mine.shape != truth.shape:
            return f"{given.shape} with its channels last is {truth.shape}; yours is {mine.shape}."
        if not np.allclose(mine, truth, atol=1e-5):
            return "The shape is right, the numbers are not: reshape keeps their order, transpose moves them."
    return None


_SMOOTHED = """
def loss(F, scores, label, eps):
    logs = F.log_softmax(scores)
    return -(1 - eps) * F.pick(logs, label) - eps * logs.mean(axis=1)
loss
"""


@exercise("write-loss", _SMOOTHED)
def _write_loss(answer: Callable[..., Any]) -> str | None:
    """Cross-entropy with smoothed labels, a loss for each image."""
    mx, rng = runtime.mxnet(), np.random.default_rng()
    classes, eps = int(rng.integers(4, 9)), float(rng.uniform(0.1, 0.3))
    scores = rng.normal(size=(12, classes)) * 2
    label = rng.integers(0, classes, 12)
    with calling(f"mx.nd, scores (12, {classes}), 12 labels and eps={eps:.2f}"):
        mine = values_of(answer(mx.nd, mx.nd.array(scores), mx.nd.array(label), eps))
    logs = scores - np.log(np.exp(scores).sum(axis=1, keepdims=True))
    picked, mean = logs[np.arange(12), label], logs.mean(axis=1)
    truth = -(1 - eps) * picked - eps * mean
    if mine.shape in ((), (1,)):
        return "A Gluon loss has a value for each image; trainer.step(batch) takes the mean."
    if mine.shape != truth.shape:
        return f"For 12 images it shall give 12 losses; yours has shape {mine.shape}."
    return alike(
        mine,
        (truth, None),
        (-truth, "The sign: a loss is the negative logarithm, and falls."),
        (-picked, "That is the plain loss: eps of it goes to all classes alike."),
        (-(1 - eps) * picked - eps * logs.sum(axis=1), "eps is shared among the classes: take the mean over them."),
        otherwise="(1 − eps) times −log p of the label, plus eps times the mean of −log p over all classes.",
    )
