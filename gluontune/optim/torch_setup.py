"""A recipe's rates without mxnet."""

from __future__ import annotations

from typing import Any

from gluontune.optim import schedules
from gluontune.recipe import Recipe

__all__ = ["rates_of"]


def rates_of(recipe: Recipe, *, steps: int, steps_per_epoch: int) -> Any:
    """The schedule that :func:`gt.optim.setup_recipe` gives its trainer, as a function ``num_update -> lr``.

    Args:
        steps: training steps in all. steps_per_epoch: those of one epoch.

    >>> recipe = Recipe(schedule="constant", learning_rate=0.1, warmup_epochs=0.5)
    >>> rates = rates_of(recipe, steps=20, steps_per_epoch=20)
    >>> [round(rates(n), 2) for n in (5, 10, 20)]
    [0.05, 0.1, 0.1]
    """
    recipe = recipe.resolved()
    updates = max(1, steps // recipe.accumulate)
    warmup = round(recipe.warmup_epochs * steps_per_epoch / recipe.accumulate)
    return schedules.build(
        recipe.schedule,
        base_lr=recipe.scaled_learning_rate,
        total_updates=updates,
        warmup_updates=min(warmup, updates - 1),
        **{"updates_per_epoch": steps_per_epoch / recipe.accumulate, **recipe.schedule_params},
    )
