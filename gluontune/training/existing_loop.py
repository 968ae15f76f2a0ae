"""A recipe in the user's Gluon loop: the parts that apply in a running process, and their undo."""

from __future__ import annotations

import contextlib
import logging
import os
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from gluontune import compute, datasets, loading, optim, runtime
from gluontune.compute._passes import capture, restore
from gluontune.compute.mode import topmost_hybrid
from gluontune.compute.process import started_dtype
from gluontune.core.errors import UsageError
from gluontune.job.job import give_values
from gluontune.parallel.kvstore import contexts
from gluontune.recipe import Recipe
from gluontune.runtime import mxnet

logger = logging.getLogger("gluontune")


@contextlib.contextmanager
def applied(recipe: Recipe, net: Any, *inputs: Any) -> Iterator[Any]:
    """Apply a recipe's ``rewrites`` and ``hybridize`` to the net of your own loop, and undo them afterwards.

    Trained parameters stay. Loader, optimizer, engine and runtime settings are those of your loop; ``gt.optim.setup``
    and ``gt.loading`` provide them one by one.

    Args:
        recipe: for ``rewrites``, ``hybridize`` and ``dtype``.
        net: a Gluon block, initialized.
        inputs: a batch; rewrites are tried on it.

    Yields:
        ``net``.

    Raises:
        UsageError: rewrites without a batch; a ``dtype`` that cannot be undone in a running process: float16 casts the
            parameters, bfloat16 patches MXNet's operators for the process's lifetime. A process that was started for
            bfloat16 (``gt.compute.start_process``) accepts a recipe of bfloat16.

    >>> import gluontune as gt
    >>> mx = mxnet()
    >>> net = gt.train.build_net("small_cnn", 10)
    >>> net.initialize()
    >>> x = mx.nd.ones((2, 3, 32, 32))
    >>> before = net(x)
    >>> with gt.applied(gt.Recipe(rewrites=["pool-to-mean"], hybridize="static"), net, x):
    ...     print(net(x).shape, net._active)
    (2, 10) True
    >>> bool((net(x) == before).asnumpy().all()), net._active
    (True, False)
    """
    _check_dtype(recipe)
    if recipe.rewrites and not inputs:
        raise UsageError(
            f"recipe field rewrites={list(recipe.rewrites)}: a rewrite is tried before it is kept: give a batch, "
            "gt.applied(recipe, net, x)"
        )
    before = capture(net)
    if recipe.rewrites:
        compute.apply_rewrites(net, recipe.rewrites, *inputs)
    try:
        compute.set_mode(net, recipe.hybridize)
        yield net
    finally:
        mxnet().nd.waitall()
        restore(before)
        for root in topmost_hybrid(net):
            root._clear_cached_op()


class Tuned(NamedTuple):
    """The parts that :func:`tuned` makes for your own loop.

    Args:
        loader: of training batches on the device: ``for x, y in loader`` is one epoch.
        net: with the recipe's mode and rewrites, around your block and its parameters.
        trainer: with the recipe's optimizer, rates and clipping; the loop calls ``trainer.step(len(y))``.
        val: the loader of validation batches, or None without validation data.
    """

    loader: Any
    net: Any
    trainer: Any
    val: Any


def tuned(
    recipe: Recipe | str | Path,
    net: Any,
    data: Any,
    *,
    val: Any = None,
    epochs: float | None = None,
    ctx: Any = None,
    ranks: Any = None,
) -> Tuned:
    """Loader, net and trainer of a recipe, for your own training loop.

    Settings that need a new process (threads, allocator) are compared with this process's; if they differ, a warning
    has the command that starts your script with them.

    Args:
        recipe: a ``Recipe``, or the path of a YAML file: the ``best.yaml`` of ``gluontune ladder``. Its ``dataset``,
            ``net`` and ``job`` are ignored.
        net: a Gluon block; initialized by Xavier's rule if necessary.
        data: the name of a data set (``cifar10``, ``folder:PATH``, ``records:PATH``), one of ``gt.datasets.open``, or
            any Gluon dataset. A Gluon dataset gets batch size and order from the recipe and keeps its transforms;
            ``resident`` caches its samples in memory, and the other loaders do not support it.
        val: a Gluon dataset for validation. Named data sets contain theirs.
        epochs: length of the schedule; None: the recipe's.
        ctx: an ``mx.Context``; None: the first GPU, or the CPU.
        ranks: of ``gt.parallel.start_ranks``, for a recipe of several processes (``shared-memory``). Without it this
            process takes the whole batch; with it the loop calls ``trainer.step(len(y) * ranks.world)``.

    Raises:
        UsageError: a file that is no recipe; a data type that needs a new process; a net that does not fit;
            other ranks than the recipe's.

    >>> import gluontune as gt
    >>> mx = gt.runtime.mxnet()
    >>> recipe = gt.Recipe(loader="resident", batch_size_per_device=50, hybridize="static", rewrites=["pool-to-mean"])
    >>> loader, net, trainer, val = gt.tuned(recipe, gt.train.build_net("small_cnn", 10), "sample", epochs=3)
    >>> loss_of = mx.gluon.loss.SoftmaxCrossEntropyLoss()
    >>> for x, y in loader:
    ...     with mx.autograd.record():
    ...         loss = loss_of(net(x), y)
    ...     loss.backward()
    ...     trainer.step(len(y))
    ...     break
    >>> x.shape, len(loader), len(val)
    ((50, 28, 28, 1), 200, 40)
    """
    recipe = recipe if isinstance(recipe, Recipe) else Recipe.from_yaml(recipe)
    _check_dtype(recipe)
    if recipe.methods:
        raise UsageError(
            f"gt.tuned: the recipe's methods ({', '.join(recipe.methods)}) are steps of gluontune's loop, "
            "gt.train.run(recipe); in your own loop use the functions of gt.methods, and a recipe with methods={}"
        )
    _warn_of_environment(recipe, 1 if ranks is None else ranks.world)
    recipe = _for_one_process(recipe).override(partition="shard") if ranks is None else _for(ranks, recipe)
    ctx = ctx or contexts("auto" if recipe.devices == "gpu" else recipe.devices)[0]
    found = datasets.open(data) if isinstance(data, str) else data
    named = isinstance(found, datasets.Dataset)
    rank, world = (0, 1) if ranks is None else (ranks.rank, ranks.world)
    if named:
        from gluontune.job.data import named_loaders  # imports OpenCV

        whole = recipe.override(train_samples=None, val_samples=None)
        loader, check, *_ = named_loaders(whole, found, rank, world, recipe.batch_size_per_device)
    else:
        loader, check = _gluon_loaders(recipe, found, val, {"rank": rank, "world_size": world})
    inputs = _sample(found, named, net, ctx)
    give_values(net, ctx)
    net(*inputs)
    if recipe.stochastic_depth:
        compute.add_stochastic_depth(net, recipe.stochastic_depth)
    if recipe.rewrites:
        compute.apply_rewrites(net, recipe.rewrites, *inputs)
    compute.set_mode(net, recipe.hybridize)
    if named and loader.yields == "uint8-nhwc":
        net = compute.with_input_stage(net, compute.InputStage(found.mean, found.std))
        compute.set_mode(net, recipe.hybridize)
    steps = max(1, round((recipe.epochs if epochs is None else epochs) * len(loader)))
    exchange = {} if ranks is None else {"exchange": ranks.exchange.sum_gradients}
    trainer = optim.setup_recipe(recipe, net, steps=steps, steps_per_epoch=len(loader), **exchange)
    if named or ctx.device_type == "gpu":
        loader = loading.DeviceLoader(loader, ctx)
        check = None if check is None else loading.DeviceLoader(check, ctx)
    return Tuned(loader, net, trainer, check)


def _for_one_process(recipe: Recipe) -> Recipe:
    if recipe.engine == "local" and recipe.num_devices == 1:
        return recipe
    logger.warning(
        "the recipe trains %d processes or devices (%s): this process takes their whole batch of %d; `gluontune train "
        "--recipe FILE` runs all of them, and so does gt.parallel.start_ranks in your script",
        recipe.num_devices, recipe.engine, recipe.global_batch_size,
    )  # fmt: skip
    alone = {"engine": "local", "num_devices": 1, "exchange_every": 1, "compression": "none"}
    return recipe.override(batch_size_per_device=recipe.global_batch_size, **alone)


def _for(ranks: Any, recipe: Recipe) -> Recipe:
    if recipe.engine != "shared-memory" or recipe.num_devices != ranks.world or recipe.exchange_every > 1:
        raise UsageError(
            f"gt.tuned: {ranks.world} ranks, and the recipe has engine={recipe.engine!r}, num_devices="
            f"{recipe.num_devices}, exchange_every={recipe.exchange_every}: ranks are for engine='shared-memory', as "
            "many as its num_devices, with exchange_every=1"
        )
    return recipe


def _gluon_loaders(recipe: Recipe, data: Any, val: Any, share: dict[str, Any]) -> tuple[Any, Any]:
    if not hasattr(data, "__getitem__") or not hasattr(data, "__len__"):
        raise UsageError(f"gt.tuned: data is a {type(data).__name__}: give the name of a data set or a Gluon dataset")
    workers = recipe.num_workers
    if recipe.loader == "resident":
        data, workers = loading.keep_in_memory(data), 0
        val = None if val is None else loading.keep_in_memory(val)
    elif recipe.loader != "gluon":
        logger.warning(
            "the recipe's loader %r reads data sets of gt.datasets only: this Gluon dataset is read by Gluon's loader, "
            "without workers; `gluontune pack` makes records of images, and 'records:PATH' is their name",
            recipe.loader,
        )
        workers = 0
    batch_size = recipe.batch_size_per_device
    share = {**share, "partition": recipe.partition, "seed": recipe.seed}
    train = loading.safe_dataloader(
        data, batch_size, shuffle=True, last_batch=recipe.last_batch, num_workers=workers, **share
    )
    check = None if val is None else loading.safe_dataloader(val, batch_size, num_workers=workers)
    return train, check


def _sample(data: Any, named: bool, net: Any, ctx: Any) -> tuple[Any, ...]:
    """The net's inputs for two samples."""
    mx = mxnet()
    if named:
        height, width, channels = data.image_shape or (224, 224, 3)
        inputs = (mx.nd.zeros((2, channels, height, width), ctx=ctx),)
    else:
        batch = mx.gluon.data.dataloader.default_batchify_fn([data[0]] * 2)
        if not isinstance(batch, (list, tuple)) or len(batch) < 2:
            raise UsageError("gt.tuned: a sample of data is one array: give a data set of (input, label)")
        inputs = tuple(each.as_in_context(ctx) for each in batch[:-1])
    return tuple(runtime.as_net_array(inputs, net))


def _warn_of_environment(recipe: Recipe, processes: int) -> None:
    """Warn if this process was started with other settings than the recipe's."""
    wanted = runtime.applied(runtime.child_env(recipe.runtime, recipe.env, processes=processes))
    lacking = {name: value for name, value in wanted.items() if os.environ.get(name) != value}
    if lacking:
        given = " ".join(f"{name}={shlex.quote(value)}" for name, value in sorted(lacking.items()))
        script = shlex.quote(sys.argv[0]) if sys.argv and sys.argv[0].endswith(".py") else "SCRIPT.py"
        logger.warning(
            "this process was started without settings of the recipe that MXNet reads at its start: env %s python %s",
            given, script,
        )  # fmt: skip


def _check_dtype(recipe: Recipe) -> None:
    if recipe.dtype == "float32" or (recipe.dtype == "bfloat16" and started_dtype() == "bfloat16"):
        return
    ways = {
        "float16": "it casts the parameters and rounds them: use "
        "gt.compute.to_mixed_precision(net, trainer, 'float16')",
        "bfloat16": "it patches MXNet's operators for the whole process: call gt.compute.start_process('bfloat16', "
        "'cpu') at the start of the script, or train with gt.train.run(recipe), which has a process of its own",
    }
    raise UsageError(f"recipe field dtype={recipe.dtype!r} cannot be undone in a running process: {ways[recipe.dtype]}")
