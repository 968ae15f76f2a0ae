"""The parameters exempt from weight decay and trust ratios, and the scaling of the rate with the batch.

MXNet decides by name, but ``gluon.Trainer`` gives the optimizer no names: its LARS then scales biases and gammas like
weights, and decay applies to all of them. Here the parameters decide, and the result is written for each path:
``Parameter.wd_mult`` (local updates) and the optimizer's ``idx2name`` and ``wd_mult`` (updates on a server, which gets
no parameters).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from gluontune.core.errors import UsageError
from gluontune.recipe.rules import LR_SCALING

EXEMPT_SUFFIXES = ("bias", "gamma", "beta")


def exempt_name(name: str) -> bool:
    """Whether a name is Gluon's for a bias, gamma or beta.

    >>> exempt_name("resnetv10_batchnorm0_gamma"), exempt_name("lstm0_l0_i2h_bias"), exempt_name("dense0_weight")
    (True, True, False)
    """
    return name.endswith(EXEMPT_SUFFIXES)


def is_exempt(param: Any) -> bool:
    """Whether a ``gluon.Parameter`` is a bias, gamma or beta, or any other vector or scalar.

    Decay moves scales and offsets away from their normalization, and the trust ratio of a vector that starts at zero
    is meaningless (Goyal et al., arXiv:1706.02677; You et al., arXiv:1708.03888).

    Args:
        param: decided by its name and shape.

    >>> from gluontune.runtime import mxnet
    >>> net = mxnet().gluon.nn.Dense(4, in_units=3)
    >>> [is_exempt(p) for p in (net.weight, net.bias)]
    [False, True]
    """
    return exempt_name(param.name) or (param.shape is not None and len(param.shape) <= 1)


def scaled_learning_rate(
    learning_rate: float, *, global_batch_size: int, base_batch_size: int | None = None, rule: str = "linear"
) -> float:
    """The rate for ``global_batch_size``, from a rate for ``base_batch_size``.

    ``linear`` is the rule of Goyal et al. (arXiv:1706.02677), ``sqrt`` that of Krizhevsky (arXiv:1404.5997), which
    preserves the variance of the step. ``sqrt`` fits adaptive optimizers.

    Args:
        learning_rate: above 0.
        global_batch_size: samples in one update, over all devices and workers.
        base_batch_size: the batch of ``learning_rate``; None: this batch.
        rule: ``linear``, ``sqrt`` or ``none``.

    Raises:
        UsageError: a rate or batch that is not above 0, or another rule.

    >>> scaled_learning_rate(0.1, global_batch_size=1024, base_batch_size=256)
    0.4
    >>> scaled_learning_rate(0.1, global_batch_size=1024, base_batch_size=256, rule="sqrt")
    0.2
    """
    if rule not in LR_SCALING:
        raise UsageError(f"lr_scaling={rule!r}: choose one of {', '.join(LR_SCALING)}")
    if not (isinstance(learning_rate, (int, float)) and math.isfinite(learning_rate) and learning_rate >= 0):
        raise UsageError(f"learning_rate={learning_rate!r}: give a finite number of at least 0")
    for name, size in (("global_batch_size", global_batch_size), ("base_batch_size", base_batch_size)):
        if size is not None and not size > 0:
            raise UsageError(f"{name}={size!r}: give a number of samples above 0")
    return learning_rate * LR_SCALING[rule](global_batch_size / (base_batch_size or global_batch_size))


def warmup_mode(options: Mapping[str, Any], usual: str = "linear") -> str:
    """The course of the warm-up before a schedule: that of lbsgd's ``warmup_strategy``, where it has one.

    >>> warmup_mode({"warmup_strategy": "power2"}), warmup_mode({"warmup_strategy": "lars"}), warmup_mode({})
    ('power2', 'linear', 'linear')
    """
    strategy = str(options.get("warmup_strategy", ""))
    return strategy if strategy in ("power2", "sqrt") else usual
