"""Updates of a rank's parameters on MXNet's engine: trainers, float16's loss scale, the ranks' averages."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from gluontune import compute, optim
from gluontune.core.errors import GluontuneError
from gluontune.engines.mxnet.context import Context, parameters, shared_memory
from gluontune.job.checkpoint import part_of
from gluontune.optim.trainer import capture_states, restore_states
from gluontune.parallel import horovod
from gluontune.parallel.averaging import Averaging, HorovodAveraging, KvstoreAveraging, SharedUpdates
from gluontune.parallel.kvstore import choose_kvstore, clear_idle
from gluontune.parallel.summing import SharedAveraging
from gluontune.recipe import Recipe


class Optimization:
    """The optimizer's side of a training.

    Attributes:
        trainers: by name; one, unless the job updates several nets itself. scaler: of float16's losses, or None.
        averaging: the exchange of parameters, if gradients are not exchanged in every step, or None.
    """

    def __init__(self, context: Context):
        self.context = context
        self.trainers: dict[str, Any] = {}
        self.scaler: Any = None
        self.averaging: Averaging | None = None
        self._kvstore = "device"

    @property
    def trainer(self) -> Any:
        """The trainer of the one net, or of the first of several."""
        return next(iter(self.trainers.values()))

    def connect(self, recipe: Recipe, net: Any) -> None:
        """Choose the exchange of devices and ranks for this net; after its first batch."""
        if len(self.context.ctxs) > 1:
            shapes = [p.shape for p in net.collect_params().values() if p.grad_req != "null"]
            self._kvstore, _ = choose_kvstore(self.context.ctxs, shapes)
        self.averaging = make_averaging(recipe, self.context, net)

    def begin(self, recipe: Recipe, nets: Mapping[str, Any], **schedule: Any) -> None:
        """New trainers, one for each of the nets; ``schedule`` as of :func:`make_trainer`."""
        schedule |= {"exchange": self.context.exchange, "kvstore": self._kvstore, "apart": self.averaging is not None}
        self.trainers.clear()
        self.trainers.update({n: make_trainer(recipe, net, **schedule) for n, net in nets.items()})
        self.scaler = None
        if recipe.dtype == "float16":
            self.scaler = compute.to_mixed_precision(next(iter(nets.values())), self.trainer, "float16")

    def scaled(self, losses: list[Any]) -> list[Any]:
        """The start of the backward pass."""
        return [self.scaler.scale(value) for value in losses] if self.scaler else losses

    def update(self, net: Any, count: int, used: int, steps: int) -> None:
        """One step of the trainer, and the exchange of parameters when it is due.

        Args:
            count: images of this rank. used: contexts with a part of them. steps: of an update.
        """
        for trainer in self.trainers.values():
            trainer.accumulate = steps
        if used < len(self.context.ctxs):
            clear_idle(net.collect_params().values(), used)
        images = count * (self.context.world if self.averaging is None else 1)  # of the gradient of an update
        if self.scaler:
            self.scaler.step(self.trainer, images)
        else:
            self.trainer.step(images)
        if self.averaging is not None:
            self.averaging.after_step()

    def rejoin(self) -> int:
        """Replace a dead learner; returns the steps that it had taken. Its optimizer's state (momentum) is lost."""
        assert isinstance(self.averaging, SharedUpdates)  # no other engine replaces a learner
        steps = self.averaging.rejoin()
        optimizer = self.trainer._optimizer
        optimizer.begin_num_update = optimizer.num_update = steps
        return steps

    def state_dict(self) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
        """Values for JSON and arrays of a checkpoint; the arrays are copies."""
        headers, arrays = {}, {}
        for place, (name, trainer) in enumerate(self.trainers.items()):
            headers[name], held = capture_states(trainer)
            arrays.update({f"{_part(place, name)}/{key}": value for key, value in held.items()})
        return {
            "optimizer": next(iter(headers.values())), "optimizers": headers,
            "scaler": self.scaler.scaler.state_dict() if self.scaler else None,
        }, arrays  # fmt: skip

    def load_state_dict(self, header: Mapping[str, Any], arrays: Mapping[str, np.ndarray], path: str) -> None:
        """Restore the result of :meth:`state_dict`."""
        headers = header.get("optimizers") or {"net": header["optimizer"]}
        if list(headers) != list(self.trainers):
            raise GluontuneError(
                f"{path}: of a job that updates {', '.join(headers)}; this one updates {', '.join(self.trainers)}"
            )
        for place, (name, trainer) in enumerate(self.trainers.items()):
            restore_states(trainer, headers[name], part_of(arrays, _part(place, name)), path)
        if self.scaler and header["scaler"]:
            self.scaler.scaler.load_state_dict(header["scaler"])


def _part(place: int, name: str) -> str:
    """Of a checkpoint's arrays."""
    return "optimizer" if place == 0 else f"optimizer.{name}"


def make_trainer(
    recipe: Recipe, net: Any, *, steps: int, steps_per_epoch: int, growth: Any = (), exchange: Any = None,
    kvstore: str | None = None, apart: bool = False,
) -> Any:  # fmt: skip
    """The trainer of a recipe, by ``gt.optim``.

    Args:
        steps, steps_per_epoch: lengths of schedule and epoch. growth: of the updates.
        exchange: sums the ranks' gradients. kvstore: of the devices of one process.
        apart: parameters are exchanged, not gradients.
    """
    servers = recipe.engine == "kvstore" and not apart
    compression = None
    if recipe.compression == "2bit":
        compression = {"type": "2bit", "threshold": recipe.compression_threshold}
        kvstore = "device"  # the one of a process that compresses, even if another measured faster
    sums: Callable[[list[Any]], None] | None = None
    if exchange is not None and not apart:
        sums = exchange.sum_gradients
        if isinstance(exchange, horovod.Exchange) and recipe.compression == "fp16":
            sums = functools.partial(exchange.sum_gradients, compression="fp16")
    return optim.setup_recipe(
        recipe, net, steps=steps, steps_per_epoch=steps_per_epoch, growth=growth,
        kvstore=None if apart else "dist_sync" if servers else kvstore,
        update_on_kvstore=False if servers else None, compression_params=compression, exchange=sums,
    )  # fmt: skip


def make_averaging(recipe: Recipe, context: Context, net: Any) -> Averaging | None:
    """The exchange of parameters of a recipe; None if gradients are exchanged."""
    every, world = recipe.exchange_every, context.world
    if recipe.engine != "async" and every == 1:
        return None
    held = [p.data(context.ctxs[0]) for p in parameters(net).values()]  # set_data writes into these

    def arrays() -> list[Any]:
        return held

    if isinstance(context.exchange, horovod.Exchange):
        return HorovodAveraging(arrays, every, world, context.exchange.hvd)
    if recipe.engine == "kvstore":
        return KvstoreAveraging(arrays, every, world)
    if context.exchange is not None:
        return SharedAveraging(arrays, every, world, context.exchange)
    averaged = [p.grad_req == "null" for p in parameters(net).values()]
    path = shared_memory(recipe.engine)
    return SharedUpdates(arrays, every, world, averaged=averaged, path=path, rank=context.rank)
