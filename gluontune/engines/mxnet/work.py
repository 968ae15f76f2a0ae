"""The nets and data of a rank of MXNet's engine, ready to train."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from gluontune import compute
from gluontune.compute.process import explored
from gluontune.core.errors import GluontuneError, UsageError
from gluontune.engines.mxnet.context import Context, parameters, seed_all
from gluontune.engines.progress import initialize, refuse_methods
from gluontune.job.batches import described, hint_of, to_numpy
from gluontune.job.data import Feed
from gluontune.job.job import Job, give_values
from gluontune.job.user_file import blaming
from gluontune.recipe import Recipe, rules
from gluontune.runtime import set_data


@dataclass
class Work:
    """The nets of a job and its data.

    Args:
        net: a block with all parameters. nets: the argument of the job's step: the same, or a dict of blocks.
        rewrites: names of the rewrites that apply to it.
        initial: the known parameters of the seeded start, by Gluon's names.
    """

    context: Context
    job: Job
    feed: Feed
    net: Any
    nets: Any
    rewrites: list[str]
    initial: dict[str, np.ndarray] = field(default_factory=dict)

    @property
    def named_nets(self) -> dict[str, Any]:
        """The job's nets by name: ``net``, if any."""
        return self.nets if isinstance(self.nets, dict) else {"net": self.nets}

    @property
    def parameters(self) -> dict[str, Any]:
        return parameters(self.net)

    def data(self, whole: bool = True) -> dict[str, Any]:
        """The arrays of the first context by place; ``whole``: with those that are not trained."""
        all_of = self.parameters.items()
        return {place: p.data(self.context.ctxs[0]) for place, p in all_of if whole or p.grad_req != "null"}

    def remember(self) -> None:
        """Save the values of parameters that have new ones as the seeded start."""
        for name, parameter in self.net.collect_params().items():
            if name not in self.initial and parameter._data:
                self.initial[name] = to_numpy(parameter.data(self.context.ctxs[0]))

    def put_initial(self) -> None:
        for name, parameter in self.net.collect_params().items():
            set_data(parameter, self.context.array(self.initial[name], parameter.dtype))

    def host_weights(self) -> dict[str, np.ndarray]:
        """Copies of all parameters, by place.

        MXNet must be idle: a convolution in predict mode reorders its weight for oneDNN, and a copy meanwhile has
        other numbers.
        """
        self.context.mx.nd.waitall()
        return {place: array.asnumpy() for place, array in self.data().items()}


def prepare(recipe: Recipe, context: Context, job: Job, feed: Feed) -> Work:
    """The nets of a job, with parameters on every context; the random streams are freshly seeded."""
    mx = context.mx
    made = job.net()
    several = isinstance(made, Mapping)
    nets = {str(name): block for name, block in made.items()} if several else {"net": made}
    for name, block in nets.items():
        if not isinstance(block, mx.gluon.Block):
            which = f"for {name!r} " if several else ""
            raise GluontuneError(
                f"{job.place('net')}net() of the job returned {which}{type(block).__name__}; return a Gluon Block"
            )
    if not nets:
        raise GluontuneError(f"{job.place('net')}net() of the job returned no net")
    seed_all(recipe.seed)  # after the draws of net()
    for block in nets.values():
        if not give_values(block, context.ctxs):
            block.collect_params().reset_ctx(context.ctxs)
        compute.refuse_np(block)
        compute.set_mode(block, "imperative")
    if several or job.step is not None:
        refuse_methods(recipe, job.place("step"), "what the nets take is known to the job's step() only", "net")
        if recipe.rewrites:
            raise UsageError(
                f"recipe field rewrites={list(recipe.rewrites)}: {job.place('step')}what the nets take is known to the "
                "job's step() only, and a rewrite must be tried; use rewrites=[]"
            )
        # Compiled after the first batch: Gluon draws first values layer by layer, but in another order when compiled.
        return Work(context, job, feed, _together(mx, nets) if several else made, nets if several else made, [])
    inputs = feed.inputs(context.ctxs[0])
    shapes = ", ".join(str(tuple(getattr(x, "shape", ()))) for x in inputs)
    with blaming(job.file, "the net", job.function("net"), f"a batch of shape {shapes}", hint_of(inputs)):
        explored(lambda: made(*inputs))
        mx.nd.waitall()
    with rules.naming(recipe, "methods", "job" if recipe.job else "net"):
        initialize(recipe, feed, job, made)
    rewrites = compute.rewrites_for(made, *inputs, device=context.device)
    if recipe.rewrites:
        compute.apply_rewrites(made, recipe.rewrites, *inputs)
    if recipe.dtype == "float16":
        made.cast("float16")
    compute.set_mode(made, recipe.hybridize)
    if feed.stage is not None:
        made = compute.with_input_stage(made, feed.stage)
        compute.set_mode(made, recipe.hybridize)
    return Work(context, job, feed, made, made, rewrites)


def _together(mx: Any, nets: dict[str, Any]) -> Any:
    whole = mx.gluon.Block(prefix="")
    for name, block in nets.items():
        whole.register_child(block, name)
    return whole


def first_batch(job: Job, loader: Any, name: str) -> tuple[Any, ...]:
    """The first of the ``training`` or ``validation`` data; an error names the job's line."""
    with blaming(job.file, f"the {name} data", job.function("data")):
        batches = iter(loader.epoch(0))
        batch = next(batches, None)
        close = getattr(batches, "close", None)
        if close is not None:
            close()
    if batch is None:
        raise GluontuneError(f"{job.place('data')}the {name} data give no batch")
    return tuple(batch)


def check_classes(work: Work, loss: Any, part: tuple[Any, ...], scores: Any) -> None:
    """Check scores against labels, for a softmax loss over classes.

    Args:
        part: of a batch, with class numbers. scores: of its inputs.
    """
    job, losses = work.job, work.context.mx.gluon.loss
    *inputs, label = part
    if not isinstance(loss, losses.SoftmaxCrossEntropyLoss):
        return
    seen = f"a batch of {described(part)}"
    with blaming(job.file, "the net", job.function("net"), seen, hint_of(part)):
        output = scores(inputs)
        work.context.mx.nd.waitall()
    where, count = job.place("net"), len(label)
    shape = getattr(output, "shape", None)
    if shape is None and type(loss) is not losses.SoftmaxCrossEntropyLoss:
        return  # a loss of the job over several outputs
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
