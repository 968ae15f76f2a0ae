"""Stochastic depth for residual nets: in training, a block's branch is left out at random."""

from __future__ import annotations

from typing import Any

from gluontune.errors import UsageError
from gluontune.runtime import mxnet

__all__ = ["add_stochastic_depth", "all_blocks", "residual_blocks"]


def add_stochastic_depth(net: Any, rate: float) -> list[float]:
    """Leave out residual branches at random in training; all take part in inference.

    Each image of a batch drops its own branches, and what is kept is scaled by 1 ÷ (1 - rate), so that inference
    needs no change. The rate rises in a straight line from the first block to ``rate`` at the last, as in the
    paper. The paper leaves a branch out for a whole batch and so saves its computation; here only the
    regularization is had, because a symbolic graph computes every branch.

    Args:
        net: a net whose residual blocks have a ``body`` and a ``downsample`` (ResNet v1, ResNeXt and SE-ResNet of
            the zoos); it is changed. Parameters and their names stay.
        rate: of the last block, above 0 and below 1.

    Returns:
        the rate of each block, in order.

    Raises:
        UsageError: a rate out of range, or a net without such blocks.

    Source: Huang et al., *Deep Networks with Stochastic Depth*, 2016 (linear decay, section 3); Larsson et al.,
    *FractalNet*, 2016 (per sample).

    >>> net = mxnet().gluon.model_zoo.vision.resnet18_v1(classes=10)
    >>> add_stochastic_depth(net, 0.4)
    [0.05, 0.1, 0.15, 0.2, 0.25, 0.3, 0.35, 0.4]
    """
    nn = mxnet().gluon.nn
    if not 0 < rate < 1:
        raise UsageError(f"stochastic_depth={rate!r}: give a rate above 0 and below 1, such as 0.2")
    blocks = residual_blocks(net)
    if not blocks:
        raise UsageError(
            f"stochastic_depth={rate:g}: {type(net).__name__} has no residual block with a body and a downsample "
            "(ResNet v1, ResNeXt and SE-ResNet have); leave it at 0"
        )
    rates = [round(rate * (place + 1) / len(blocks), 6) for place in range(len(blocks))]
    for block, each in zip(blocks, rates):
        block.body.add(nn.Dropout(each, axes=(1, 2, 3)))
    return rates


def residual_blocks(net: Any) -> list[Any]:
    """The blocks of a net that have a ``body`` and a ``downsample``, in order."""
    body = mxnet().gluon.nn.HybridSequential
    return [b for b in all_blocks(net) if isinstance(getattr(b, "body", None), body) and hasattr(b, "downsample")]


def all_blocks(block: Any) -> list[Any]:
    """A block and all below it, in the order of their making."""
    found = [block]
    for child in block._children.values():
        found += all_blocks(child)
    return found
