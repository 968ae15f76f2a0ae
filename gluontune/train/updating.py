"""The trainer of a session: what a recipe says about the optimizer, handed to ``gt.optim``."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from gluontune import optim
from gluontune.parallel.horovod import Exchange
from gluontune.recipe import Recipe

if TYPE_CHECKING:
    from gluontune.train.session import Session

__all__ = ["make_trainer", "make_trainers"]


def make_trainers(session: Session, recipe: Recipe, total_steps: int) -> dict[str, Any]:
    """New trainers: one for each net where the job updates them itself, else one for all. Arguments as below."""
    if session.kind.updates:
        return {name: make_trainer(session, recipe, total_steps, net) for name, net in session.named_nets().items()}
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
    exchange: Callable[[list[Any]], None] | None = None
    if session.exchange is not None and not apart:
        exchange = session.exchange.sum_gradients
        if isinstance(session.exchange, Exchange) and recipe.compression == "fp16":
            exchange = functools.partial(session.exchange.sum_gradients, compression="fp16")
    return optim.setup_recipe(
        recipe,
        session.net if net is None else net,
        steps=total_steps,
        steps_per_epoch=session.batches_per_epoch,
        growth=session.methods.updates.growth(),
        kvstore=None if apart else "dist_sync" if servers else kvstore,
        update_on_kvstore=False if servers else None,
        compression_params=compression,
        exchange=exchange,
    )
