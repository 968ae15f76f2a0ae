"""Methods for large batches: gradient noise, a growing batch, trust ratios."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from gluontune.core.errors import UsageError


def noise_sigma(batch_size: int, base_batch_size: int) -> float:
    """Standard deviation of the noise that gives a large batch the gradient covariance of a small one.

    The covariance of the mean of M noisy gradients is (1 + sigma²)/M times that of one, so
    sigma² = batch_size / base_batch_size - 1. Hoffer, Hubara & Soudry, arXiv:1705.08741, section 4.

    Raises:
        UsageError: a batch smaller than the base batch, or below 1.

    >>> noise_sigma(1280, 128)
    3.0
    """
    if not batch_size >= base_batch_size > 0:
        raise UsageError(
            f"batch_size={batch_size!r}, base_batch_size={base_batch_size!r}: noise can only imitate a smaller batch"
        )
    return math.sqrt(batch_size / base_batch_size - 1)


def gradient_noise(loss: Any, sigma: float) -> Any:
    """Multiply each sample's loss, and so its gradient, by z ~ N(1, sigma²): the mean step is unchanged.

    Call it within ``autograd.record()``; ``mx.random.seed`` makes it repeatable. Source as :func:`noise_sigma`.

    Args:
        loss: one number for each sample, shape (batch,).
        sigma: standard deviation of the factors.

    Raises:
        UsageError: ``sigma`` is negative or not finite.

    >>> from gluontune.runtime import mxnet
    >>> gradient_noise(mxnet().nd.ones((8,)), sigma=0.1).shape
    (8,)
    """
    from gluontune.runtime import mxnet

    if not (math.isfinite(sigma) and sigma >= 0):
        raise UsageError(f"sigma={sigma!r}: give a finite number of at least 0")
    if sigma == 0:
        return loss
    # Outside of the record: no gradient of the noise.
    with mxnet().autograd.pause():
        factors = mxnet().nd.random.normal(1.0, sigma, shape=loss.shape, ctx=loss.context, dtype="float32")
    return loss * factors.astype(loss.dtype)


@dataclass(frozen=True)
class BatchGrowth:
    """Growth of the batch in place of a decay of the rate, as long as the batch fits.

    Smith, Kindermans, Ying & Le, "Don't decay the learning rate, increase the batch size" (arXiv:1711.00489): the ratio
    of rate and batch decides. Fewer, larger updates reach the same result.

    Args:
        schedule: a function ``epoch -> lr`` that falls, such as ``schedules.multifactor`` in epochs.
        batch_size: the batch at the start; batches are multiples of it, for accumulation.
        max_batch_size: the largest batch; beyond it the rate falls.

    >>> from gluontune.optim.schedules import multifactor
    >>> plan = BatchGrowth(multifactor(base_lr=0.1, steps=[30, 60], factor=0.2), 128, 1280)
    >>> [(batch, round(rate, 3)) for batch, rate in map(plan.at, (10, 31, 61))]
    [(128, 0.1), (640, 0.1), (1280, 0.04)]
    """

    schedule: Callable[[float], float]
    batch_size: int
    max_batch_size: int

    def __post_init__(self) -> None:
        if not 0 < self.batch_size <= self.max_batch_size:
            raise UsageError(
                f"batch_size={self.batch_size!r}, max_batch_size={self.max_batch_size!r}: the first must be above 0 "
                "and at most the second"
            )

    def at(self, epoch: float) -> tuple[int, float]:
        """Samples and rate of an update after ``epoch`` epochs."""
        first, now = self.schedule(0), self.schedule(epoch)
        room = self.max_batch_size // self.batch_size
        # The margin is for the rounding of products such as 0.1 * 0.2.
        times = room if now <= 0 else min(room, max(1, int(first / now + 1e-9)))
        return self.batch_size * times, now * times

    def updates(self, samples_per_epoch: int, epochs: float) -> list[tuple[int, float]]:
        """Samples and rate of each update of a run; the k-th update is item k - 1."""
        if not (samples_per_epoch > 0 and epochs > 0):
            raise UsageError(f"samples_per_epoch={samples_per_epoch!r}, epochs={epochs!r}: give numbers above 0")
        seen, plan = 0, []
        while seen < samples_per_epoch * epochs:
            batch, rate = self.at(seen / samples_per_epoch)
            plan.append((batch, rate))
            seen += batch
        return plan


def trust_ratios(trainer: Any) -> dict[str, float]:
    """|w| / (|g| + wd |w|) times the trust coefficient for each layer, from the last gradients. It waits.

    Call it after ``backward()`` and ``trainer.step()``; the rate of a layer is this times lr with LARS, and the smaller
    of this and lr with LARC.

    Args:
        trainer: one of ``lars``, ``larc`` or ``lbsgd``.

    Raises:
        UsageError: another optimizer.

    >>> import gluontune as gt
    >>> mx = gt.runtime.mxnet()
    >>> net = mx.gluon.nn.Dense(2, in_units=3)
    >>> net.initialize()
    >>> trainer = gt.optim.setup("lars", net, learning_rate=0.1, batch_size=4)
    >>> with mx.autograd.record():
    ...     loss = net(mx.nd.ones((4, 3))).sum()
    >>> loss.backward()
    >>> trainer.step(4)
    >>> all(ratio > 0 for ratio in trust_ratios(trainer).values())
    True
    """
    optimizer = trainer.optimizer
    if not hasattr(optimizer, "trust_coefficient"):
        raise UsageError(f"optimizer {type(optimizer).__name__} has no trust ratio; use lars, larc or lbsgd")
    ratios = {}
    for index, param in enumerate(trainer._params):
        if param.grad_req == "null" or not optimizer.trusts(index):
            continue
        weight = float(param.list_data()[0].as_nd_ndarray().astype("float32").norm().asscalar())
        grad = float(param.list_grad()[0].as_nd_ndarray().astype("float32").norm().asscalar()) * optimizer.rescale_grad
        below = grad + optimizer._get_wd(index) * weight + optimizer.eps
        ratios[param.name] = optimizer.trust_coefficient * weight / below if weight and below else 1.0
    return ratios
