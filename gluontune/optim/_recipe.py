"""A recipe's trainer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from gluontune.optim._setup import setup
from gluontune.optim.schedules import stretch
from gluontune.recipe import Recipe


def setup_recipe(
    recipe: Recipe,
    net: Any,
    *,
    steps: int,
    steps_per_epoch: int,
    growth: Sequence[tuple[float, float]] = (),
    **exchange: Any,
) -> Any:
    """A trainer of :func:`gt.optim.setup` with a recipe's optimizer.

    Args:
        recipe: its optimizer, rate, scaling, schedule, warm-up, decay, clipping and ``accumulate`` count.
        net: a Gluon block, or its parameters.
        steps: calls of ``trainer.step()`` in all: the length of the schedule. steps_per_epoch: those of one epoch.
        growth: of :func:`gt.optim.schedules.stretch`, if the updates grow; the caller then sets
            ``trainer.accumulate``.
        exchange: of ``setup``: ``kvstore``, ``update_on_kvstore``, ``compression_params``, ``exchange``.

    Returns:
        The :class:`gluontune.optim.TunedTrainer`.

    Raises:
        UsageError: as ``setup``'s.

    >>> import gluontune as gt
    >>> net = gt.runtime.mxnet().gluon.nn.Dense(2, in_units=3)
    >>> net.initialize()
    >>> recipe = gt.Recipe(optimizer="nag", learning_rate=0.1, schedule="constant", epochs=3, warmup_epochs=1)
    >>> trainer = gt.optim.setup_recipe(recipe, net, steps=30, steps_per_epoch=10)
    >>> [round(trainer.schedule(n), 2) for n in (5, 10, 30)]
    [0.05, 0.1, 0.1]
    """
    recipe = recipe.resolved()
    assert recipe.wd is not None  # the card's, if the recipe had none
    updates = max(1, steps // recipe.accumulate)
    warmup = round(recipe.warmup_epochs * steps_per_epoch / recipe.accumulate)
    trainer = setup(
        recipe.optimizer, net, learning_rate=recipe.learning_rate, global_batch_size=recipe.global_batch_size,
        base_batch_size=recipe.base_batch_size, lr_scaling=recipe.lr_scaling, schedule=recipe.schedule,
        schedule_params=recipe.schedule_params, total_updates=updates, steps_per_epoch=steps_per_epoch,
        warmup_updates=min(warmup, updates - 1), clip_global_norm=recipe.clip_global_norm,
        accumulate=recipe.accumulate, momentum=recipe.momentum, wd=recipe.wd,
        multi_precision=recipe.dtype == "float16", **exchange, **recipe.optimizer_params,
    )  # fmt: skip
    if growth:
        trainer.begin_schedule(stretch(trainer.schedule, growth=growth))
    return trainer
