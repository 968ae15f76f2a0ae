"""Ghost batch normalization: the statistics of small batches within a large one."""

from __future__ import annotations

from typing import Any

from gluontune.core.errors import UsageError
from gluontune.runtime import mxnet

mx: Any = mxnet()


class GhostBatchNorm(mx.gluon.nn.BatchNorm):
    """BatchNorm that cuts the batch into ``num_ghosts`` parts and normalizes each by itself.

    Hoffer, Hubara & Soudry, arXiv:1705.08741, algorithm 1: the running statistics take up one part after the other. It
    preserves the noise, and with it the accuracy, of small batches. The batch on a device must be a multiple of
    ``num_ghosts`` while training, and always once hybridized (pad or discard the last validation batch); imperative
    inference takes any batch.

    Args:
        num_ghosts: parts; batch on one device / ghost batch.
        kwargs: of ``gluon.nn.BatchNorm``.

    >>> layer = GhostBatchNorm(num_ghosts=4, in_channels=3)
    >>> layer.initialize()
    >>> with mx.autograd.record():
    ...     out = layer(mx.nd.random.normal(shape=(8, 3, 5, 5)))
    >>> out.shape
    (8, 3, 5, 5)
    """

    def __init__(self, num_ghosts: int, **kwargs: Any):
        super().__init__(**kwargs)
        if isinstance(num_ghosts, bool) or not isinstance(num_ghosts, int) or num_ghosts < 1:
            raise UsageError(f"num_ghosts={num_ghosts!r}: give a whole number of at least 1")
        self.num_ghosts = num_ghosts

    def hybrid_forward(self, F: Any, x: Any, gamma: Any, beta: Any, running_mean: Any, running_var: Any) -> Any:
        def normalize(part: Any) -> Any:
            return F.BatchNorm(part, gamma, beta, running_mean, running_var, **self._kwargs)

        imperative = F is mx.nd
        if self.num_ghosts == 1 or (imperative and not mx.autograd.is_training()):
            return normalize(x)
        if imperative and x.shape[0] % self.num_ghosts:
            raise UsageError(
                f"GhostBatchNorm: a batch of {x.shape[0]} cannot be cut into {self.num_ghosts} equal ghost batches"
            )
        return F.concat(*[normalize(part) for part in F.split(x, num_outputs=self.num_ghosts, axis=0)], dim=0)

    def __repr__(self) -> str:
        return f"{type(self).__name__}(num_ghosts={self.num_ghosts}, {super().__repr__()})"


def use_ghost_batch_norm(net: Any, num_ghosts: int) -> int:
    """Turn each BatchNorm of ``net`` into a :class:`GhostBatchNorm` with the same parameters and names.

    Args:
        net: a Gluon block.
        num_ghosts: see :class:`GhostBatchNorm`.

    Returns:
        The number of changed layers.

    Raises:
        UsageError: the net has no BatchNorm.

    >>> net = mx.gluon.nn.HybridSequential()
    >>> net.add(mx.gluon.nn.Conv2D(4, 3), mx.gluon.nn.BatchNorm(), mx.gluon.nn.Dense(2))
    >>> use_ghost_batch_norm(net, num_ghosts=4), type(net[1]).__name__
    (1, 'GhostBatchNorm')
    """
    probe = GhostBatchNorm(num_ghosts)  # refuses a bad number before anything is changed
    count = 0

    def turn(block: Any) -> None:
        nonlocal count
        if type(block) in (mx.gluon.nn.BatchNorm, GhostBatchNorm):
            # A new class alone, so that references to the layer stay valid.
            block.__class__ = GhostBatchNorm
            block.num_ghosts = probe.num_ghosts
            count += 1
        if isinstance(block, mx.gluon.HybridBlock):
            block._clear_cached_op()  # an old graph normalizes the whole batch

    net.apply(turn)
    if not count:
        raise UsageError("use_ghost_batch_norm: the net holds no gluon.nn.BatchNorm")
    return count
