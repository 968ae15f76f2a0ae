"""How the rate follows the batch: the linear and the square-root rule."""

from __future__ import annotations

import math

from gluontune.core.errors import UsageError
from gluontune.recipe.rules import LR_SCALING

__all__ = ["scaled_learning_rate"]


def scaled_learning_rate(
    learning_rate: float, *, global_batch_size: int, base_batch_size: int | None = None, rule: str = "linear"
) -> float:
    """The rate for ``global_batch_size``, from one that was chosen for ``base_batch_size``.

    ``linear`` is the rule of Goyal et al. (arXiv:1706.02677), ``sqrt`` that of Krizhevsky
    (arXiv:1404.5997), which keeps the variance of the step. Adaptive optimizers want ``sqrt``.

    Args:
        learning_rate: above 0.
        global_batch_size: samples in one update, over all devices and workers.
        base_batch_size: samples that ``learning_rate`` was chosen for; None: this very batch.
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
