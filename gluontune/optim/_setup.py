"""``setup``: a trainer with an optimizer by name, its schedule and its exemptions; ``setup_recipe``: a recipe's."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from gluontune.core.errors import UsageError
from gluontune.optim import cards, schedules
from gluontune.optim._base import to_mxnet
from gluontune.optim.cards import OPTIMIZERS, is_exempt, rates_of, scaled_learning_rate
from gluontune.optim.trainer import TunedTrainer
from gluontune.recipe import Recipe
from gluontune.recipe.registry import resolve


def setup(
    name: str,
    net: Any,
    *,
    learning_rate: float | None = None,
    batch_size: int | None = None,
    workers: int | None = None,
    global_batch_size: int | None = None,
    base_batch_size: int | None = None,
    lr_scaling: str | None = None,
    schedule: str | Callable[[float], float] = "constant",
    schedule_params: Mapping[str, Any] | None = None,
    total_updates: int | None = None,
    epochs: float | None = None,
    steps_per_epoch: int | None = None,
    warmup_updates: int = 0,
    warmup_mode: str = "linear",
    warmup_begin_lr: float = 0.0,
    momentum: float = 0.9,
    wd: float = 0.0,
    multi_precision: bool = False,
    kvstore: Any = "device",
    update_on_kvstore: bool | None = None,
    compression_params: Mapping[str, Any] | None = None,
    clip_global_norm: float | None = None,
    accumulate: int = 1,
    exempt: Callable[[Any], bool] = is_exempt,
    exchange: Callable[[list[Any]], None] | None = None,
    **optimizer_params: Any,
) -> TunedTrainer:
    """A trainer for ``net`` with optimizer ``name``; the training loop calls only ``trainer.step()``.

    Args:
        name: a name of :func:`gt.optim.list_optimizers`.
        net: a Gluon block whose parameters are initialized (deferred is enough), or its parameters.
        learning_rate: the peak rate, for ``base_batch_size``; None takes the card's, for the card's batch.
        batch_size: samples of one ``trainer.step()`` in this process, over its contexts: the loader's.
        workers: processes whose gradients are summed; None: the kvstore's, one without a ``dist`` kvstore.
        global_batch_size: in place of these two, samples of one step over all contexts **and all workers**.
        base_batch_size: the batch of ``learning_rate``; None: the batch in use.
        lr_scaling: ``linear``, ``sqrt`` or ``none``; None: the card's. The rule's batch is the global one times
            ``accumulate``.
        schedule: a name of :data:`gt.optim.SCHEDULES`, or a function ``num_update -> lr``, which overrides
            ``learning_rate`` and scaling. ``trainer.set_learning_rate`` ends it.
        schedule_params: the schedule's own arguments, and ``unit="epochs"``; see :func:`schedules.build`.
        total_updates: length of the run in updates of the weights; or
        epochs, steps_per_epoch: the same in passes, and calls of ``step`` in each.
        warmup_updates, warmup_mode, warmup_begin_lr: the warm-up before the schedule.
        momentum: of optimizers with one (see their cards).
        wd: weight decay; biases, gammas and betas are exempt.
        multi_precision: float32 masters of float16 weights.
        kvstore: None, ``local``, ``device``, ``dist_sync``, …, or a kvstore. ``dist_sync`` sums the gradients over the
            workers, hence ``global_batch_size`` must count all of them.
        update_on_kvstore: None means no: each device, or each worker, updates its own copy, which allows clipping,
            saving of states under ``dist_sync``, and updates of many parameters in one call.
        compression_params: of ``kvstore.set_gradient_compression``.
        clip_global_norm: largest L2 norm of the averaged gradient of all parameters together.
        accumulate: calls of ``step`` that make one update. The gradients are those of the large batch; only BatchNorm
            uses the statistics of each small batch.
        exempt: whether a ``gluon.Parameter`` is exempt from decay and trust ratios; sets ``Parameter.wd_mult`` to 0,
            Gluon's mark.
        exchange: sums the gradients (NDArrays, in place) over processes without a common kvstore, such as Horovod's
            ranks; give ``workers``, their number, or a ``global_batch_size`` that counts all of them.
        optimizer_params: further ones of the optimizer; its card has names and defaults.

    Raises:
        UsageError: an unknown name, a value out of range, a contradiction, a net without parameters to train.

    >>> from gluontune.runtime import mxnet
    >>> import gluontune as gt
    >>> net = mxnet().gluon.nn.Dense(2, in_units=3)
    >>> net.initialize()
    >>> trainer = gt.optim.setup(
    ...     "nag", net, learning_rate=0.1, global_batch_size=256, base_batch_size=64,
    ...     schedule="cosine", total_updates=100, warmup_updates=10, wd=1e-4)
    >>> [round(trainer.schedule(n), 3) for n in (5, 10, 55, 100)]
    [0.2, 0.4, 0.2, 0.0]
    >>> gt.optim.setup("adam", net, batch_size=64).learning_rate  # the card's
    0.001
    """
    card = OPTIMIZERS[name]
    global_batch_size = _global_batch(global_batch_size, batch_size, workers, kvstore, exchange)
    params = _trainable(net)
    accumulate = _whole("accumulate", accumulate)
    if name == "lbsgd":
        accumulate, warmup_mode, optimizer_params = _lbsgd(accumulate, warmup_mode, optimizer_params)
    if learning_rate is None:
        learning_rate, base_batch_size = card.learning_rate, base_batch_size or card.base_batch_size
    rate = scaled_learning_rate(
        learning_rate, global_batch_size=global_batch_size * accumulate, base_batch_size=base_batch_size,
        rule=card.lr_scaling if lr_scaling is None else lr_scaling,
    )  # fmt: skip
    if schedule_params and not callable(schedule):
        schedules.SCHEDULES[schedule].check(schedule_params)
    updates, per_epoch = _length(total_updates, epochs, steps_per_epoch, accumulate)
    rates = schedules.build(
        schedule, base_lr=rate, total_updates=updates, warmup_updates=warmup_updates, warmup_mode=warmup_mode,
        warmup_begin_lr=warmup_begin_lr, **{"updates_per_epoch": per_epoch, **(schedule_params or {})},
    )  # fmt: skip
    _check_kvstore(kvstore, update_on_kvstore, compression_params, clip_global_norm)
    if card.needs_shapes and update_on_kvstore and "dist" in str(getattr(kvstore, "type", kvstore)):
        raise UsageError(
            f"{name} with update_on_kvstore=True on a parameter server: MXNet's servers keep weights without their "
            "shapes, and it treats matrices apart; leave update_on_kvstore out"
        )
    optimizer = create(
        name, params, schedule=rates, momentum=momentum, wd=wd, multi_precision=multi_precision, exempt=exempt,
        **optimizer_params,
    )  # fmt: skip
    return TunedTrainer(
        params, optimizer, schedule=rates, global_batch_size=global_batch_size, accumulate=accumulate,
        clip_global_norm=clip_global_norm, exchange=exchange, kvstore=kvstore,
        update_on_kvstore=bool(update_on_kvstore) and _has_kvstore(kvstore, params),
        compression_params=dict(compression_params) if compression_params else None,
    )  # fmt: skip


def setup_recipe(
    recipe: Recipe, net: Any, *, steps: int, steps_per_epoch: int, growth: Sequence[tuple[float, float]] = (),
    **exchange: Any,
) -> TunedTrainer:  # fmt: skip
    """A trainer of :func:`gt.optim.setup` with a recipe's optimizer.

    Args:
        recipe: its optimizer, rate, scaling, schedule, warm-up, decay, clipping and ``accumulate`` count.
        net: a Gluon block, or its parameters.
        steps: calls of ``trainer.step()`` in all: the length of the schedule. steps_per_epoch: those of one epoch.
        growth: of :func:`gt.optim.schedules.stretch`, if the updates grow; the caller then sets
            ``trainer.accumulate``.
        exchange: of ``setup``: ``kvstore``, ``update_on_kvstore``, ``compression_params``, ``exchange``.

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
    return setup(
        recipe.optimizer, net, global_batch_size=recipe.global_batch_size,
        schedule=rates_of(recipe, steps=steps, steps_per_epoch=steps_per_epoch, growth=growth),
        clip_global_norm=recipe.clip_global_norm, accumulate=recipe.accumulate, momentum=recipe.momentum, wd=recipe.wd,
        multi_precision=recipe.dtype == "float16", **exchange, **recipe.optimizer_params,
    )  # fmt: skip


def create(
    name: str,
    params: list[Any],
    *,
    schedule: Callable[[int], float],
    momentum: float = 0.9,
    wd: float = 0.0,
    multi_precision: bool = False,
    exempt: Callable[[Any], bool] = is_exempt,
    **optimizer_params: Any,
) -> Any:
    """The ``mx.optimizer.Optimizer`` alone, for other loops or trainers (such as Horovod's).

    Args:
        params: the ``gluon.Parameter`` list in the trainer's order; exempt ones get ``wd_mult`` 0, unless the net sets
            another.
        schedule: a function ``num_update -> lr``.
        name, momentum, wd, multi_precision, exempt, optimizer_params: as :func:`setup`'s.

    Raises:
        UnknownNameError: no such optimizer. UsageError: an unknown parameter of it.
    """
    card = OPTIMIZERS[name]
    card.check(optimizer_params)
    if not (isinstance(wd, (int, float)) and math.isfinite(wd) and wd >= 0):
        raise UsageError(f"wd={wd!r}: give a finite number of at least 0")
    if card.momentum and not (isinstance(momentum, (int, float)) and 0 <= momentum < 1):
        raise UsageError(f"momentum={momentum!r}: give a number of at least 0 and below 1")
    low = [param.name for param in params if np.dtype(param.dtype) == np.float16]
    if low and card.needs_masters and not multi_precision:
        raise UsageError(f"optimizer {name!r} with float16 parameter {low[0]!r}: set multi_precision=True")
    for param in params:
        if exempt(param) and param.wd_mult == 1.0:  # keeps the net's own
            param.wd_mult = 0.0
    adapter = to_mxnet(schedule)
    options = {**card.defaults, **optimizer_params}
    if options.get("clip_gradient") == 0:  # no clipping to all others; MXNet's AdaGrad would train nothing
        options["clip_gradient"] = None
    if card.momentum:
        options["momentum"] = momentum
    optimizer = resolve(card.path)(
        # The constructors' default rates would overwrite the scheduler's base_lr, a multiplier here.
        learning_rate=adapter.base_lr, lr_scheduler=adapter, wd=wd, multi_precision=multi_precision,
        param_idx2name={i: param.name for i, param in enumerate(params)}, param_dict=dict(enumerate(params)), **options,
    )  # fmt: skip
    # A server has no parameters: the names and this table decide.
    optimizer.set_wd_mult({param.name: param.wd_mult for param in params})
    optimizer.set_lr_mult({param.name: param.lr_mult for param in params})
    optimizer.exempt_indices = frozenset(i for i, param in enumerate(params) if exempt(param))
    return optimizer


def _lbsgd(accumulate: int, warmup_mode: str, given: Mapping[str, Any]) -> tuple[int, str, dict[str, Any]]:
    """Move LBSGD's accumulation to the trainer and its warm-up to the schedule."""
    options = dict(given)
    gathered = _whole("batch_scale", options.pop("batch_scale", 1))
    if gathered > 1 and accumulate > 1:
        raise UsageError(f"accumulate={accumulate} and batch_scale={gathered} are the same thing; give one of them")
    return max(gathered, accumulate), cards.warmup_mode(options, warmup_mode), options


def _trainable(net: Any) -> list[Any]:
    """The parameters in the order of ``gluon.Trainer``."""
    collected = net.collect_params() if hasattr(net, "collect_params") else net
    if hasattr(collected, "keys"):
        params = [collected[key] for key in sorted(collected.keys())]
    else:
        params = list(collected)
    if all(param.grad_req == "null" for param in params):
        raise UsageError("net: it has no parameter with a gradient (grad_req is 'null' everywhere): nothing to train")
    for param in params:
        if param._data is None and not param._deferred_init:
            raise UsageError(f"net: parameter {param.name!r} is not initialized; call net.initialize() first")
    return params


def _global_batch(whole: int | None, each: int | None, workers: int | None, kvstore: Any, exchange: Any) -> int:
    """Samples of one step over all workers, from the caller's arguments."""
    if (whole is None) == (each is None):
        given = "neither is given" if whole is None else f"both are given ({whole} and {each})"
        raise UsageError(
            f"batch_size (of this process) or global_batch_size (of all workers): {given}; give one of them"
        )
    if whole is not None:
        if workers is not None:
            raise UsageError(
                f"workers={workers} and global_batch_size={whole}: the latter counts all workers already; give "
                "batch_size, or leave workers out"
            )
        return whole
    if workers is None:
        workers = 1
        if "dist" in str(getattr(kvstore, "type", kvstore)):  # by the launcher if only its type is given
            workers = int(getattr(kvstore, "num_workers", 0) or os.environ.get("DMLC_NUM_WORKER", 1))
        if exchange is not None:
            raise UsageError("exchange sums over processes that only the caller knows: give workers, their number")
    return _whole("batch_size", each) * _whole("workers", workers)


def _whole(name: str, value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise UsageError(f"{name}={value!r}: give a whole number of at least 1")
    return value


def _length(
    total: int | None, epochs: float | None, steps_per_epoch: int | None, accumulate: int
) -> tuple[int | None, float | None]:
    """Updates of the run and of an epoch; None if unknown."""
    per_epoch = None if steps_per_epoch is None else _whole("steps_per_epoch", steps_per_epoch) / accumulate
    if total is not None and epochs is not None:
        raise UsageError(f"total_updates={total} and epochs={epochs:g} both say how long the run is; give one of them")
    if epochs is None:
        return total, per_epoch
    if per_epoch is None:
        raise UsageError(f"epochs={epochs:g}: give steps_per_epoch too (calls of trainer.step in one epoch)")
    if not (math.isfinite(epochs) and epochs > 0):
        raise UsageError(f"epochs={epochs!r}: give a number above 0")
    return max(1, math.ceil(epochs * per_epoch)), per_epoch


def _check_kvstore(kvstore: Any, on_kvstore: bool | None, compression: Any, clip: float | None) -> None:
    if clip is not None and not (isinstance(clip, (int, float)) and math.isfinite(clip) and clip > 0):
        raise UsageError(f"clip_global_norm={clip!r}: give a finite number above 0, or None")
    if clip is not None and on_kvstore:
        raise UsageError(
            "clip_global_norm and update_on_kvstore=True contradict each other: the kvstore sees one parameter "
            "at a time; leave update_on_kvstore out"
        )
    if compression and kvstore in (None, "local"):
        raise UsageError(f"compression_params needs kvstore 'device' or 'dist_sync', not {kvstore!r}")


def _has_kvstore(kvstore: Any, params: list[Any]) -> bool:
    """Whether ``gluon.Trainer`` will create one: for a single local context it does not."""
    return not (
        kvstore is None or (isinstance(kvstore, str) and "dist" not in kvstore and len(params[0].list_ctx()) == 1)
    )
