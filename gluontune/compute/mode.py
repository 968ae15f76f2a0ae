"""The three ways in which Gluon can execute a network."""

from __future__ import annotations

from typing import Any

from gluontune.errors import UnknownNameError

__all__ = ["MODES", "set_mode", "topmost_hybrid"]

MODES: dict[str, dict[str, bool]] = {
    "imperative": {"active": False},
    "hybridized": {"active": True},
    "static": {"active": True, "static_alloc": True, "static_shape": True},
}


def set_mode(net: Any, mode: str) -> Any:
    """Put ``net`` into one execution mode and return it.

    Args:
        net: a Gluon block. A plain ``Block`` is searched for its topmost ``HybridBlock`` children, which
            are then compiled one by one; what the plain block itself computes stays imperative.
        mode: ``imperative``, ``hybridized``, or ``static`` (``static_alloc`` and ``static_shape``: least
            work a step, and a new plan for each new input shape).

    Raises:
        UnknownNameError: a mode that does not exist.

    >>> from gluontune.runtime import mxnet
    >>> net = set_mode(mxnet().gluon.nn.HybridSequential(), "static")
    >>> net._active, dict(net._flags)["static_shape"]
    (True, True)
    """
    if mode not in MODES:
        raise UnknownNameError("execution mode", str(mode), MODES)
    for block in topmost_hybrid(net):
        block.hybridize(**MODES[mode])
    return net


def topmost_hybrid(block: Any) -> list[Any]:
    """The hybridizable roots under ``block``; asked one by one, so that Gluon has no reason to warn."""
    from gluontune.runtime import mxnet

    if isinstance(block, mxnet().gluon.HybridBlock):
        return [block]
    return [root for child in block._children.values() for root in topmost_hybrid(child)]
