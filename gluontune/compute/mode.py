"""Gluon's three execution modes of a network."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gluontune.compute.tracing import ByMode
from gluontune.core.errors import UnknownNameError

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
    from gluontune.runtime import mxnet

    if isinstance(block, mxnet().gluon.HybridBlock):
        return [block]
    return [root for child in block._children.values() for root in topmost_hybrid(child)]
