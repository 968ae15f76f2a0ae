"""The trainer of a session: what a recipe says about the optimizer, handed to ``gt.optim``."""

from __future__ import annotations

from typing import Any

from gluontune import optim
from gluontune.recipe import Recipe

__all__ = ["make_trainer"]


def make_trainer(session: Any, recipe: Recipe, total_updates: int) -> Any:
    """A new trainer for the session's net.

    Args:
        session: a built :class:`gluontune.train.session.Session`.
        recipe: its own, or one with other fields of the optimizer.
        total_updates: length of the schedule.
    """
    return optim.setup(
        recipe.optimizer,
        session.net,
        learning_rate=recipe.learning_rate,
        global_batch_size=recipe.global_batch_size,
        base_batch_size=recipe.base_batch_size,
        lr_scaling=recipe.lr_scaling,
        schedule=recipe.schedule,
        total_updates=total_updates,
        warmup_updates=round(recipe.warmup_epochs * session.batches_per_epoch),
        momentum=recipe.momentum,
        wd=recipe.wd,
        multi_precision=recipe.dtype == "float16",
        kvstore="dist_sync" if recipe.engine == "kvstore" else "device",
        update_on_kvstore=False if recipe.engine == "kvstore" else None,
        exchange=session.exchange.sum_gradients if session.exchange else None,
    )
