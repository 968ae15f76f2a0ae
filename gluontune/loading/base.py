"""The base of all loaders: the samples of each batch, epochs, and the state in mid-epoch."""

from __future__ import annotations

import dataclasses
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from gluontune.core.errors import GluontuneError, UsageError
from gluontune.core.files import Closing
from gluontune.loading.augment import AUGMENTS, Draws
from gluontune.recipe.rules import CHOICES


def sample_error(split: Any, index: int, error: BaseException) -> GluontuneError:
    """The error that names sample ``index`` once: by the split's name for it, or by its number."""
    name = str(split.name_of(index)) if hasattr(split, "name_of") else f"sample {index}"
    reason = str(error) or type(error).__name__
    return GluontuneError(reason if name in reason else f"{name}: {reason}")


class Loader(Closing, ABC):
    """Batches of images and labels, epoch by epoch.

    ``yields`` is the type of ``epoch(n)``'s items: ``uint8-nhwc``, a pair of numpy arrays, uint8 (N, H, W, C) and int64
    (N,), to be normalized on the device; or ``float32-nchw``, a pair of NDArrays, float32 (N, C, H, W), normalized, and
    their labels.

    A batch is valid while you hold it; released memory is used again.

    Args:
        split: ``len(split)``, ``split.labels`` int64 (N,), ``split.read(i)`` → the encoded image.
        batch_size: images in a batch.
        image_shape: (H, W, C) of each image; C is 3 (RGB) or 1 (grey).
        augment: a name of ``AUGMENTS``.
        shuffle, seed, last_batch, rank, world_size, partition: see :class:`gluontune.loading.Order`.

    Attributes:
        transform: called with images, labels, epoch and number of each batch, and returns the images and labels to
            yield; None: no change. It must not modify its arguments.

    Raises:
        UsageError: an argument that can never work.
    """

    name = ""
    yields = "uint8-nhwc"
    transform: Callable[[Any, Any, int, int], tuple[Any, Any]] | None = None

    def __init__(
        self, split: Any, *, batch_size: int, image_shape: Sequence[int], augment: str = "none",
        shuffle: bool = False, seed: int = 0, last_batch: str = "discard", rank: int = 0, world_size: int = 1,
        partition: str = "shard",
    ):  # fmt: skip
        self.split = split
        self.batch_size = int(batch_size)
        self.image_shape = check_shape(image_shape)
        self.augment = AUGMENTS[augment]
        self.seed = int(seed)
        self.order = Order(
            len(split), self.batch_size, bool(shuffle), self.seed, last_batch, int(rank), int(world_size), partition
        )
        self.labels = np.asarray(split.labels, dtype=np.int64)
        if self.labels.shape != (len(split),):
            raise UsageError(f"the split has {len(split)} samples but labels of shape {self.labels.shape}")
        self._epoch = 0  # the current epoch, or the next
        self._done = 0  # its yielded batches
        self._resume_at: tuple[int, int] | None = None
        self._first_flips: np.ndarray | None = None  # bool (N,), of an alternating flip

    def __len__(self) -> int:
        """Batches of one epoch (of the next one, if ``rollover`` makes them differ)."""
        return self.order.num_batches(self._epoch)

    def epoch(self, n: int) -> Iterator[tuple[Any, Any]]:
        """The batches of epoch ``n``: the same for the same seed and any number of threads or workers."""
        if n < 0:
            raise UsageError(f"epoch={n}: epochs are numbered from 0")
        start = 0
        if self._resume_at is not None:
            start = self._resume_at[1] if self._resume_at[0] == n else 0
            self._resume_at = None
        self._epoch, self._done = n, start
        return self._counted(n, start, self._batches(n, start))

    def __iter__(self) -> Iterator[tuple[Any, Any]]:
        """Epoch after epoch, one for each ``for`` loop, as Gluon's DataLoader does."""
        return self.epoch(self._epoch)

    def state(self) -> dict[str, Any]:
        """The position of the loader, as plain values: yielded batches count as used."""
        return {"loader": self.name, "epoch": self._epoch, "batch": self._done, "order": vars(self.order).copy()}

    def restore(self, state: dict[str, Any]) -> None:
        """Continue from ``state``: ``epoch(state["epoch"])`` then begins after its last batch.

        Raises:
            UsageError: the state is of another data set, batch size, seed or sharding.
        """
        saved = {"partition": "shard", **state.get("order", {})}
        for field, mine in vars(self.order).items():
            theirs = saved.get(field)
            if theirs != mine:
                raise UsageError(f"the loader's state has {field}={theirs!r}, this loader {field}={mine!r}")
        self._epoch, self._done = int(state["epoch"]), int(state["batch"])
        self._resume_at = (self._epoch, self._done)

    def close(self) -> None:
        """End threads and processes and release memory. It may be called twice."""

    def draws(self, epoch: int, batch: int, indices: np.ndarray) -> Draws:
        """The augmentation's random numbers of one batch of the samples ``indices``."""
        if not self.augment.random:
            return Draws()
        drawn = self.augment.draw(generator(self.seed, epoch, AUGMENT, self.order.rank, batch), len(indices))
        if not self.augment.alternate:
            return drawn
        if self._first_flips is None:
            self._first_flips = generator(self.seed, 0, FLIP).random(len(self.split)) < 0.5
        return dataclasses.replace(drawn, flip=self._first_flips[indices] ^ bool(epoch % 2))

    @abstractmethod
    def _batches(self, epoch: int, start: int) -> Iterator[tuple[Any, Any]]:
        """The batches of ``epoch`` from number ``start`` on."""

    def _counted(self, n: int, start: int, batches: Iterator[tuple[Any, Any]]) -> Iterator[tuple[Any, Any]]:
        try:
            for number, batch in enumerate(batches, start):
                if self._epoch == n:
                    self._done += 1
                if self.transform is not None:
                    batch = self.transform(*batch, n, number)
                yield batch
                del batch  # the loader reuses its memory once the caller releases it
            if self._epoch == n:
                self._epoch, self._done = n + 1, 0
        finally:
            close = getattr(batches, "close", None)
            if close is not None:
                close()


def check_shape(image_shape: Sequence[int]) -> tuple[int, int, int]:
    """``image_shape`` as (H, W, C), or a UsageError."""
    try:
        height, width, channels = (int(v) for v in image_shape)
    except (TypeError, ValueError):
        raise UsageError(f"image_shape={image_shape!r}: give (height, width, channels)") from None
    if height < 1 or width < 1 or channels not in (1, 3):
        raise UsageError(f"image_shape={tuple(image_shape)}: sides of at least 1 and 1 or 3 channels")
    return height, width, channels


LAST_BATCH, PARTITION = CHOICES["last_batch"], CHOICES["partition"]

# Purposes of random streams; two purposes never share a stream.
SHUFFLE, AUGMENT, METHOD, FLIP = 0, 1, 2, 3


def generator(*key: int) -> np.random.Generator:
    """The random numbers of one purpose: equal for equal keys, on any machine and thread."""
    return np.random.default_rng(list(key))


@dataclass(frozen=True)
class Order:
    """The batches of every epoch of one rank.

    Args:
        samples: number of samples of the whole data set.
        batch_size: samples in a batch.
        shuffle: a new permutation each epoch, the same on every rank; else the order of the data set.
        seed: of the permutations.
        last_batch: ``discard`` drops the incomplete batch, ``keep`` yields it, ``rollover`` prepends it to the next
            epoch.
        rank, world_size: this rank takes every ``world_size``-th sample from ``rank`` on. All ranks have equally many
            batches: ``keep`` repeats at most ``world_size - 1`` samples from the front, the others drop at most as
            many (others in each epoch, if shuffled).
        partition: ``shard`` as above: one shuffle of all in each epoch, dealt out. ``whole``: each rank takes as many
            samples from its own shuffle of the whole data set, so that some are drawn twice in an epoch and others
            not. (The two options of the deck "Fundamentals of deep learning for multi-GPUs".)

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
        """Batches of epoch ``epoch``; constant except with ``rollover``."""
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
            # Concatenated epochs are one stream; this epoch's batches may begin in an earlier one.
            begin = first // self.per_rank
            stream = np.concatenate([self.indices(e) for e in range(begin, epoch + 1)])
            indices = stream[first - begin * self.per_rank : last - begin * self.per_rank]
        else:
            indices = self.indices(epoch)[: self.num_batches(epoch) * size]
        return [indices[i : i + size] for i in range(0, len(indices), size)]

    def _span(self, epoch: int) -> tuple[int, int]:
        """Start and end of ``epoch``'s whole batches in the stream of all epochs."""
        size = self.batch_size
        return epoch * self.per_rank // size * size, (epoch + 1) * self.per_rank // size * size
