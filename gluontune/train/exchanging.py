"""How a session's ranks meet, and how they exchange parameters where they do not exchange gradients in every step."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from gluontune.errors import GluontuneError
from gluontune.parallel import horovod
from gluontune.parallel.averaging import Averaging, HorovodAveraging, KvstoreAveraging, SharedUpdates
from gluontune.parallel.shared import PATH_VARIABLE
from gluontune.parallel.summing import SharedAveraging, SharedExchange
from gluontune.train.snapshot import parameters

if TYPE_CHECKING:
    from gluontune.train.session import Session

__all__ = ["make_averaging", "meet", "rejoin"]


def meet(session: Session) -> horovod.Exchange | SharedExchange | None:
    """What sums the ranks' gradients; None where a kvstore does, and where there is nothing to sum.

    Raises:
        GluontuneError: Horovod is not installed, or no shared memory was made for this process.
    """
    recipe = session.recipe
    if recipe.engine == "horovod":
        return horovod.join(session.rank, session.world, recipe.batch_size_per_device)
    if recipe.engine == "shared-memory":
        return SharedExchange(_memory(recipe.engine), session.rank, session.world)
    return None


def _memory(engine: str) -> str:
    path = os.environ.get(PATH_VARIABLE)
    if path is None:
        raise GluontuneError(f"engine {engine!r}: no shared memory; start it with gluontune launch --engine {engine}")
    return path


def make_averaging(session: Session) -> Averaging | None:
    """The exchange of parameters that a built session's recipe asks for; None where gradients are exchanged.

    Raises:
        GluontuneError: the recipe's engine is ``async``, and no shared memory was made for this process.
    """
    recipe, world = session.recipe, session.world
    if recipe.engine != "async" and recipe.exchange_every == 1:
        return None
    named = parameters(session.net)

    held = [parameter.data(session.ctxs[0]) for _, parameter in named]  # set_data writes into these

    def arrays() -> list[Any]:
        return held

    if isinstance(session.exchange, horovod.Exchange):
        return HorovodAveraging(arrays, recipe.exchange_every, world, session.exchange.hvd)
    if recipe.engine == "kvstore":
        return KvstoreAveraging(arrays, recipe.exchange_every, world)
    if session.exchange is not None:
        return SharedAveraging(arrays, recipe.exchange_every, world, session.exchange)
    averaged = [parameter.grad_req == "null" for _, parameter in named]
    return SharedUpdates(
        arrays, recipe.exchange_every, world, averaged=averaged, path=_memory(recipe.engine), rank=session.rank
    )


def rejoin(session: Session) -> None:
    """Take the place of a learner that has died: the shared weights, and its place in schedule and data.

    What the optimizer knew of the past (momentum) is lost with the learner.
    """
    assert isinstance(session.averaging, SharedUpdates)  # no other engine lets a learner come back
    steps = session.averaging.rejoin()
    session.steps_taken = steps
    session.epoch, batch = divmod(steps, session.batches_per_epoch)
    loader = session.feed.train
    loader.restore({**loader.state(), "epoch": session.epoch, "batch": batch})
    optimizer = session.trainer._optimizer
    optimizer.begin_num_update = optimizer.num_update = steps
    session.rejoins = False
