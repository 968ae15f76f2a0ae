"""A job for large batches: the recipe's small ResNet with ghost batch normalization and smoothed labels.

Its settings come as environment variables, because a job's functions take no arguments:
``GLUONTUNE_GHOST_BATCH`` (images whose statistics are taken together; 0: the whole batch),
``GLUONTUNE_BATCH`` (images in a step) and ``GLUONTUNE_SMOOTHING`` (share of the label that is spread evenly).
"""

from __future__ import annotations

import os
from typing import Any

from gluontune import optim
from gluontune.errors import UsageError
from gluontune.runtime import mxnet

__all__ = ["SmoothedCrossEntropy", "loss", "net"]

CLASSES = 10


def net() -> Any:
    """``cifar_resnet20_v1`` for 10 classes."""
    from gluontune.train import build_net

    found = build_net("cifar_resnet20_v1", CLASSES)
    ghost, batch = (int(os.environ.get(f"GLUONTUNE_{name}", "0")) for name in ("GHOST_BATCH", "BATCH"))
    if ghost:
        if batch <= 0 or batch % ghost:
            raise UsageError(f"GLUONTUNE_BATCH={batch}: give a multiple of GLUONTUNE_GHOST_BATCH={ghost}")
        optim.use_ghost_batch_norm(found, batch // ghost)
    return found


def loss() -> Any:
    """Cross entropy; with smoothed labels while training, plain for validation."""
    return SmoothedCrossEntropy(float(os.environ.get("GLUONTUNE_SMOOTHING", "0")))


class SmoothedCrossEntropy:
    """Softmax cross entropy whose target is 1 - smoothing, plus smoothing spread over all classes.

    While no gradient is recorded it is plain cross entropy, so that validation losses can be compared.

    Source: Szegedy et al., arXiv:1512.00567, section 7.

    Args:
        smoothing: 0 … 1.

    >>> mx = mxnet()
    >>> output, label = mx.nd.array([[2.0, 0.0]]), mx.nd.array([0])
    >>> smoothed = SmoothedCrossEntropy(0.2)
    >>> round(float(smoothed(output, label).asscalar()), 4)
    0.1269
    >>> with mx.autograd.record():
    ...     value = smoothed(output, label)
    >>> round(float(value.asscalar()), 4)
    0.3269
    """

    def __init__(self, smoothing: float):
        if not 0 <= smoothing < 1:
            raise UsageError(f"GLUONTUNE_SMOOTHING={smoothing}: give a number of at least 0 and below 1")
        self.smoothing = smoothing

    def __call__(self, output: Any, label: Any) -> Any:
        mx = mxnet()
        log_probabilities = mx.nd.log_softmax(output, axis=1)
        hit = -mx.nd.pick(log_probabilities, label, axis=1)
        if not self.smoothing or not mx.autograd.is_recording():
            return hit
        return (1 - self.smoothing) * hit - self.smoothing * log_probabilities.mean(axis=1)
