"""The trainer of a session: what a recipe says about the optimizer, handed to ``gt.optim``."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

from gluontune import optim
from gluontune.recipe import Recipe

if TYPE_CHECKING:
    from gluontune.train.session import Session

__all__ = ["make_trainer", "make_trainers"]


def make_trainers(session: Session, recipe: Recipe, total_steps: int) -> dict[str, Any]:
    """New trainers: one for each net where the job updates them itself, else one for all. Arguments as below."""
    if session.kind.updates:
        return {
            name: make_trainer(session, recipe, total_steps, net)
            for name, net in session.named_nets().items()
        }
    return {"net": make_trainer(session, recipe, total_steps)}


def make_trainer(session: Session, recipe: Recipe, total_steps: int, net: Any = None) -> Any:
    """A new trainer.

    Args:
        session: a built :class:`gluontune.train.session.Session`.
        recipe: its own, or one with other fields of the optimizer.
        total_steps: length of the schedule; ``accumulate`` of them make an update.
        net: whose parameters; None: all of the session's.
    """
    apart = session.averaging is not None  # parameters are exchanged, not gradients
    servers = recipe.engine == "kvstore" and not apart
    compression, kvstore = None, session.kvstore
    if recipe.compression == "2bit":
        compression = {"type": "2bit", "threshold": recipe.compression_threshold}
        kvstore = "device"  # the one of a process that compresses, even where another measured faster
    exchange = session.exchange.sum_gradients if session.exchange and not apart else None
    if exchange is not None and recipe.compression == "fp16":
        exchange = functools.partial(exchange, compression="fp16")
    recipe = recipe.resolved()
    updates = max(1, total_steps // recipe.accumulate)
    warmup = round(recipe.warmup_epochs * session.batches_per_epoch / recipe.accumulate)
    return optim.setup(
        recipe.optimizer,
        session.net if net is None else net,
        learning_rate=recipe.learning_rate,
        global_batch_size=recipe.global_batch_size,
        base_batch_size=recipe.base_batch_size,
        lr_scaling=recipe.lr_scaling,
        schedule=recipe.schedule,
        schedule_params=recipe.schedule_params,
        total_updates=updates,
        steps_per_epoch=session.batches_per_epoch,
        warmup_updates=min(warmup, updates - 1),
        clip_global_norm=recipe.clip_global_norm,
        accumulate=recipe.accumulate,
        momentum=recipe.momentum,
        wd=recipe.wd,
        multi_precision=recipe.dtype == "float16",
        kvstore=None if apart else "dist_sync" if servers else kvstore,
        update_on_kvstore=False if servers else None,
        compression_params=compression,
        exchange=exchange,
        **recipe.optimizer_params,
    )
