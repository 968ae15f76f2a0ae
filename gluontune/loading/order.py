"""Which samples make which batch: shuffling, sharding and the incomplete batch, as pure functions."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from gluontune.errors import UsageError
from gluontune.rules import CHOICES

__all__ = ["LAST_BATCH", "PARTITION", "Order", "generator"]

LAST_BATCH, PARTITION = CHOICES["last_batch"], CHOICES["partition"]

# What a stream of random numbers is for; two purposes never share a stream.
SHUFFLE, AUGMENT, METHOD, FLIP = 0, 1, 2, 3


def generator(*key: int) -> np.random.Generator:
    """The random numbers of one purpose: equal keys give equal numbers, on any machine and thread.

    >>> int(generator(0, 7).integers(1000)) == int(generator(0, 7).integers(1000))
    True
    """
    return np.random.default_rng(list(key))


@dataclass(frozen=True)
class Order:
    """The batches of every epoch of one rank.

    Args:
        samples: number of samples of the whole data set.
        batch_size: samples in a batch.
        shuffle: a new permutation each epoch, the same on every rank; else the order of the data set.
        seed: of the permutations.
        last_batch: ``discard`` drops the incomplete batch, ``keep`` yields it, ``rollover`` puts it in
            front of the next epoch.
        rank, world_size: this rank takes every ``world_size``-th sample from ``rank`` on. All ranks have
            equally many batches: ``keep`` repeats at most ``world_size - 1`` samples from the front,
            the others leave at most as many out (others in each epoch, if shuffled).
        partition: ``shard`` as above: one shuffle of all, dealt out, anew in each epoch. ``whole``: each rank takes
            as many samples from a shuffle of its own over the whole data set, so that some are drawn twice in an
            epoch and others not. (The two options of the deck "Fundamentals of deep learning for multi-GPUs".)

    >>> [b.tolist() for b in Order(5, 2, last_batch="keep").batches(0)]
    [[0, 1], [2, 3], [4]]
    >>> order = Order(5, 2, last_batch="rollover")
    >>> [b.tolist() for b in order.batches(0)], [b.tolist() for b in order.batches(1)]
    ([[0, 1], [2, 3]], [[4, 0], [1, 2], [3, 4]])
    >>> [Order(5, 2, last_batch="keep", rank=r, world_size=2).batches(0)[-1].tolist() for r in (0, 1)]
    [[4], [0]]
    """

    samples: int
    batch_size: int
    shuffle: bool = False
    seed: int = 0
    last_batch: str = "discard"
    rank: int = 0
    world_size: int = 1
    partition: str = "shard"

    def __post_init__(self) -> None:
        if self.batch_size < 1:
            raise UsageError(f"batch_size={self.batch_size}: give a whole number of at least 1")
        if self.seed < 0:
            raise UsageError(f"seed={self.seed}: give a whole number of at least 0")
        if self.last_batch not in LAST_BATCH:
            raise UsageError(f"last_batch={self.last_batch!r}: choose one of {', '.join(LAST_BATCH)}")
        if self.partition not in PARTITION:
            raise UsageError(f"partition={self.partition!r}: choose one of {', '.join(PARTITION)}")
        if not 0 <= self.rank < self.world_size:
            raise UsageError(f"rank={self.rank}: with world_size={self.world_size} it must be 0 … world_size - 1")
        if self.samples < 1:
            raise UsageError("the data set is empty: a loader needs at least one sample")
        if self.per_rank < 1:
            raise UsageError(f"world_size={self.world_size} is more than the {self.samples} samples there are")
        if self.last_batch == "discard" and self.per_rank < self.batch_size:
            raise UsageError(
                f"batch_size={self.batch_size} is more than the {self.per_rank} samples of a rank: "
                "use a smaller batch or last_batch='keep'"
            )

    @property
    def per_rank(self) -> int:
        """Samples of this rank in one epoch."""
        if self.last_batch == "keep":
            return -(-self.samples // self.world_size)
        return self.samples // self.world_size

    def indices(self, epoch: int) -> np.ndarray:
        """The samples of this rank in epoch ``epoch``, int64 (per_rank,), in order."""
        if self.partition == "whole" and self.world_size > 1:
            if not self.shuffle:
                raise UsageError("partition='whole' draws at random: it goes with shuffle=True")
            own = generator(self.seed, epoch, SHUFFLE, self.rank).permutation(self.samples)
            return own[: self.per_rank].astype(np.int64, copy=False)
        if self.shuffle:
            order = generator(self.seed, epoch, SHUFFLE).permutation(self.samples)
        else:
            order = np.arange(self.samples)
        wanted = self.per_rank * self.world_size
        if wanted > self.samples:
            order = np.concatenate([order, np.resize(order, wanted - self.samples)])
        return order[:wanted][self.rank :: self.world_size].astype(np.int64, copy=False)

    def num_batches(self, epoch: int = 0) -> int:
        """Batches of epoch ``epoch``; only ``rollover`` makes it differ from epoch to epoch."""
        if self.last_batch == "keep":
            return -(-self.per_rank // self.batch_size)
        if self.last_batch == "discard":
            return self.per_rank // self.batch_size
        first, last = self._span(epoch)
        return (last - first) // self.batch_size

    def batches(self, epoch: int) -> list[np.ndarray]:
        """The sample indices of each batch of epoch ``epoch``."""
        size = self.batch_size
        if self.last_batch == "rollover":
            first, last = self._span(epoch)
            # Epochs put end to end are one stream; this epoch's batches may begin in an earlier one.
            begin = first // self.per_rank
            stream = np.concatenate([self.indices(e) for e in range(begin, epoch + 1)])
            indices = stream[first - begin * self.per_rank : last - begin * self.per_rank]
        else:
            indices = self.indices(epoch)[: self.num_batches(epoch) * size]
        return [indices[i : i + size] for i in range(0, len(indices), size)]

    def _span(self, epoch: int) -> tuple[int, int]:
        """Where the whole batches of ``epoch`` begin and end in the stream of all epochs."""
        size = self.batch_size
        return epoch * self.per_rank // size * size, (epoch + 1) * self.per_rank // size * size
