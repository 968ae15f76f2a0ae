"""The place of computation of a rank of MXNet's engine, and MXNet's random numbers.

The state of MXNet's generators cannot be read. So with checkpoints every step of a net that may draw from them begins
with generators seeded from (seed, rank, step); a resumed run then draws like an uninterrupted one.
"""

from __future__ import annotations

import functools
import os
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Optional, Union

import numpy as np

from gluontune import compute, optim
from gluontune.core.errors import GluontuneError
from gluontune.job.batches import parts_of
from gluontune.job.checkpoint import part_of
from gluontune.optim.trainer import capture_states, restore_states
from gluontune.parallel import horovod
from gluontune.parallel.averaging import Averaging, HorovodAveraging, KvstoreAveraging, SharedUpdates
from gluontune.parallel.kvstore import choose_kvstore, clear_idle
from gluontune.parallel.shared import PATH_VARIABLE
from gluontune.parallel.summing import SharedAveraging, SharedExchange
from gluontune.recipe import Recipe
from gluontune.runtime import as_net_array, mxnet

Exchange = Optional[Union[horovod.Exchange, SharedExchange]]
_QUIET = ("mxnet.gluon.", "gluoncv.", "gluontune.")  # their blocks draw nothing, except with "drop" in the name


@dataclass(frozen=True)
class Context:
    """The place of computation of a rank.

    Args:
        mx: the library. ctxs: its contexts of this rank. rank, world: among the ranks of the run.
        exchange: sums the ranks' gradients; None for a kvstore, or for one rank.
    """

    mx: Any
    ctxs: list[Any]
    rank: int
    world: int
    exchange: Exchange

    @property
    def device(self) -> str:
        return str(self.ctxs[0].device_type)

    @staticmethod
    def state_dict() -> tuple[dict[str, Any], dict[str, np.ndarray]]:
        """The state of the random streams of Python and numpy."""
        kind, keys, position, has_gauss, cached = np.random.get_state()
        drawn = {"python": random.getstate(), "numpy": [kind, position, has_gauss, cached]}
        return {"random": drawn}, {"random/numpy": np.asarray(keys)}

    @staticmethod
    def load_state_dict(header: Mapping[str, Any], arrays: Mapping[str, np.ndarray]) -> None:
        version, internal, gauss = header["random"]["python"]
        random.setstate((version, tuple(internal), gauss))
        kind, *rest = header["random"]["numpy"]
        np.random.set_state((kind, arrays["random/numpy"], *rest))

    def array(self, values: np.ndarray, dtype: Any = None) -> Any:
        return as_net_array(self.mx.nd.array(values, dtype=values.dtype if dtype is None else dtype))

    def index(self, chosen: np.ndarray, place: int) -> Any:
        """Row numbers for ``nd.take`` on one context."""
        return self.mx.nd.array(chosen, dtype="int32", ctx=self.ctxs[place])

    def parts(self, batch: tuple[Any, ...]) -> list[tuple[Any, ...]]:
        return parts_of(batch, self.ctxs)


def meet(recipe: Recipe, rank: int, world: int) -> Exchange:
    """The exchange that sums the ranks' gradients, or None; see :class:`Context`."""
    if recipe.engine == "horovod":
        return horovod.join(rank, world, recipe.batch_size_per_device)
    if recipe.engine == "shared-memory":
        return SharedExchange(shared_memory(recipe.engine), rank, world)
    return None


def shared_memory(engine: str) -> str:
    """The path of the shared memory of this engine's ranks."""
    path = os.environ.get(PATH_VARIABLE)
    if path is None:
        raise GluontuneError(f"engine {engine!r}: no shared memory; start it with gluontune launch --engine {engine}")
    return path


def parameters(net: Any) -> dict[str, Any]:
    """The parameters by their place in the net: Gluon's names are numbered on in each process."""
    return dict(sorted(net._collect_params_with_prefix().items()))


def may_draw(net: Any) -> bool:
    """Whether a forward pass of ``net`` may draw from MXNet's generators.

    Blocks of Gluon, GluonCV and gluontune do so only for dropout; other blocks are unknown.

    >>> nn = mxnet().gluon.nn
    >>> quiet, dropping = nn.HybridSequential(), nn.HybridSequential()
    >>> quiet.add(nn.Dense(2)); dropping.add(nn.Dense(2), nn.Dropout(0.5))
    >>> may_draw(quiet), may_draw(dropping)
    (False, True)
    """
    kind = type(net)
    if not kind.__module__.startswith(_QUIET) or "drop" in kind.__name__.lower():
        return True
    return any(may_draw(child) for child in net._children.values())


def seed_step(*key: int) -> None:
    """Seed all generators for one step (about 2 ms, nearly all in MXNet)."""
    seed_all(int(np.random.SeedSequence(key).generate_state(1)[0]) & 0x7FFFFFFF)


def seed_all(number: int) -> None:
    """Seed Python's, numpy's and MXNet's generators."""
    random.seed(number)
    np.random.seed(number)
    mxnet().random.seed(number)


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
        """One step of the trainer, and the exchange of parameters when it is due; ``steps``: of an update."""
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
    arrays = [p.data(context.ctxs[0]) for p in parameters(net).values()]  # set_data writes into these
    if isinstance(context.exchange, horovod.Exchange):
        return HorovodAveraging(arrays, every, world, context.exchange.hvd)
    if recipe.engine == "kvstore":
        return KvstoreAveraging(arrays, every, world)
    if context.exchange is not None:
        return SharedAveraging(arrays, every, world, context.exchange)
    averaged = [p.grad_req == "null" for p in parameters(net).values()]
    path = shared_memory(recipe.engine)
    return SharedUpdates(arrays, every, world, averaged=averaged, path=path, rank=context.rank)
