"""A recipe around a plain Gluon loop: what of it can be applied inside a running process, and undone."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

from gluontune import compute
from gluontune.compute.mode import topmost_hybrid
from gluontune.compute.process import started_dtype
from gluontune.errors import UsageError
from gluontune.recipe import Recipe
from gluontune.runtime import mxnet

__all__ = ["applied"]


@contextlib.contextmanager
def applied(recipe: Recipe, net: Any, *inputs: Any) -> Iterator[Any]:
    """Run a loop of your own with a recipe's ``rewrites`` and ``hybridize``; afterwards the net is as it was.

    Parameters are left alone: what the loop has learned stays. Loader, optimizer, engine and runtime settings are
    those of your own loop; ``gt.optim.setup`` and ``gt.loading`` have them one by one.

    Args:
        recipe: its ``rewrites``, ``hybridize`` and ``dtype`` count.
        net: a Gluon block, initialized.
        inputs: a batch; rewrites are tried on it.

    Yields:
        ``net``.

    Raises:
        UsageError: rewrites without a batch; a ``dtype`` that a running process cannot take back: float16 casts the
            parameters, bfloat16 patches MXNet's operators for as long as the process lives. In a process that was
            started for bfloat16 (``gt.compute.start_process``) a recipe of bfloat16 is taken: nothing is left to do.

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
    blocks = _all_hybrid(net)
    before = [(block, block._active, list(block._flags)) for block in blocks]
    done = compute.apply_rewrites(net, recipe.rewrites, *inputs) if recipe.rewrites else None
    try:
        compute.set_mode(net, recipe.hybridize)
        yield net
    finally:
        mxnet().nd.waitall()
        if done is not None:
            done.undo()
        for block, active, flags in before:
            block._active, block._flags = active, flags
            block._clear_cached_op()
        for root in topmost_hybrid(net):
            root._clear_cached_op()


def _check_dtype(recipe: Recipe) -> None:
    if recipe.dtype == "float32" or (recipe.dtype == "bfloat16" and started_dtype() == "bfloat16"):
        return
    ways = {
        "float16": "it casts the parameters and rounds them: use "
        "gt.compute.to_mixed_precision(net, trainer, 'float16')",
        "bfloat16": "it patches MXNet's operators for the whole process: call gt.compute.start_process('bfloat16', "
        "'cpu') at the start of the script, or train with gt.train.run(recipe), which has a process of its own",
    }
    raise UsageError(
        f"recipe field dtype={recipe.dtype!r} cannot be undone in a running process: {ways[recipe.dtype]}"
    )


def _all_hybrid(block: Any) -> list[Any]:
    """Every HybridBlock of a net: hybridizing reaches the children, too."""
    own = [block] if isinstance(block, mxnet().gluon.HybridBlock) else []
    return own + [found for child in block._children.values() for found in _all_hybrid(child)]
