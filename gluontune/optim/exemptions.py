"""Which parameters are exempt from weight decay and from trust ratios.

MXNet decides by name, but ``gluon.Trainer`` gives the optimizer no names: its LARS then scales biases
and gammas like weights, and decay reaches all of them. Here the decision is made from the parameters
and written where each path looks: ``Parameter.wd_mult`` (local updates) and the optimizer's ``idx2name``
and ``wd_mult`` (updates on a server, where the parameters themselves never arrive).
"""

from __future__ import annotations

from typing import Any

__all__ = ["EXEMPT_SUFFIXES", "exempt_name", "is_exempt"]

EXEMPT_SUFFIXES = ("bias", "gamma", "beta")


def exempt_name(name: str) -> bool:
    """Whether Gluon calls a bias, a gamma or a beta so.

    >>> exempt_name("resnetv10_batchnorm0_gamma"), exempt_name("lstm0_l0_i2h_bias"), exempt_name("dense0_weight")
    (True, True, False)
    """
    return name.endswith(EXEMPT_SUFFIXES)


def is_exempt(param: Any) -> bool:
    """Whether a ``gluon.Parameter`` is a bias, gamma or beta, or any other vector or scalar.

    Decay pulls scales and offsets away from what normalization needs, and the trust ratio of a vector
    that starts at zero means nothing (Goyal et al., arXiv:1706.02677; You et al., arXiv:1708.03888).

    Args:
        param: its name and shape decide.

    >>> from gluontune.runtime import mxnet
    >>> net = mxnet().gluon.nn.Dense(4, in_units=3)
    >>> [is_exempt(p) for p in (net.weight, net.bias)]
    [False, True]
    """
    return exempt_name(param.name) or (param.shape is not None and len(param.shape) <= 1)
