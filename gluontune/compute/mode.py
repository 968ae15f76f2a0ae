"""How a net runs: Gluon's three execution modes, and stochastic depth in training."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gluontune.compute._traversal import walk
from gluontune.compute.tracing import ByMode
from gluontune.core.errors import UnknownNameError, UsageError
from gluontune.runtime import mxnet

MODES: dict[str, dict[str, bool]] = {
    "imperative": {"active": False},
    "hybridized": {"active": True},
    "static": {"active": True, "static_alloc": True, "static_shape": True},
}


def set_mode(net: Any, mode: str) -> Any:
    """Put ``net`` into one execution mode and return it.

    Args:
        net: a Gluon block. In a plain ``Block``, the topmost ``HybridBlock`` children are compiled one by one; its own
            code stays imperative.
        mode: ``imperative``, ``hybridized``, or ``static`` (``static_alloc`` and ``static_shape``: least
            work a step, and a new plan for each new input shape; of several children ``static_alloc`` alone).

    Raises:
        UnknownNameError: a mode that does not exist.

    >>> from gluontune.runtime import mxnet
    >>> net = set_mode(mxnet().gluon.nn.HybridSequential(), "static")
    >>> net._active, dict(net._flags)["static_shape"]
    (True, True)
    """
    if mode not in MODES:
        raise UnknownNameError("execution mode", str(mode), MODES)
    compile_roots(net, MODES[mode])
    return net


def compile_roots(net: Any, settings: Mapping[str, Any]) -> None:
    """``hybridize`` each topmost ``HybridBlock`` of ``net`` with these arguments, with a graph for each mode.

    Several roots run without ``static_shape``: with it MXNet 1.9 silently computes wrong gradients if a chain of
    compiled blocks is called three times in a step, as the discriminator of a GAN is (a plain ``Sequential`` is such a
    chain). One root is right, and so is ``static_alloc``.
    """
    roots = topmost_hybrid(net)
    if len(roots) > 1:
        settings = {name: value for name, value in settings.items() if name != "static_shape"}
    for block in roots:
        block.hybridize(**settings)
        vars(block)["_call_cached_op"] = ByMode(block)


def topmost_hybrid(block: Any) -> list[Any]:
    """The hybridizable roots under ``block``; hybridizing these one by one avoids Gluon's warning."""
    if isinstance(block, mxnet().gluon.HybridBlock):
        return [block]
    return [root for child in block._children.values() for root in topmost_hybrid(child)]


def add_stochastic_depth(net: Any, rate: float) -> list[float]:
    """Leave out residual branches at random in training; all take part in inference.

    Each image of a batch drops its own branches, and the rest is scaled by 1 ÷ (1 - rate), so that inference needs no
    change. The rate rises linearly from the first block to ``rate`` at the last, as in the paper. The paper leaves a
    branch out for a whole batch, which saves its computation; a symbolic graph computes every branch, so that only
    the regularization remains.

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
    """The blocks of a net with a ``body`` and a ``downsample``, in order."""
    body = mxnet().gluon.nn.HybridSequential
    return [b for _, b in walk(net) if isinstance(getattr(b, "body", None), body) and hasattr(b, "downsample")]
