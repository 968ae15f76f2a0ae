"""What every loader shares: the order of the samples, epochs, and the state of one in mid-epoch."""

from __future__ import annotations

import dataclasses
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol

import numpy as np

from gluontune.errors import GluontuneError, UsageError
from gluontune.loading.augment import AUGMENTS, Draws
from gluontune.loading.order import AUGMENT, FLIP, Order, generator

__all__ = ["Loader", "Split", "sample_error"]


class Split(Protocol):
    """The part of a data set that loaders read: encoded images with a class number each."""

    labels: np.ndarray  # int64 (N,)

    def __len__(self) -> int: ...

    def read(self, index: int) -> Any:
        """The encoded image of sample ``index``, bytes-like. Safe from any thread or forked process."""


def sample_error(split: Any, index: int, error: BaseException) -> GluontuneError:
    """The error that names sample ``index`` once: by the split's own name for it, or by its number."""
    name = str(split.name_of(index)) if hasattr(split, "name_of") else f"sample {index}"
    reason = str(error) or type(error).__name__
    return GluontuneError(reason if name in reason else f"{name}: {reason}")


class Loader(ABC):
    """Batches of images and labels, epoch by epoch.

    ``yields`` says what ``epoch(n)`` gives: ``uint8-nhwc``, a pair of numpy arrays, uint8 (N, H, W, C)
    and int64 (N,), to be normalized on the device; or ``float32-nchw``, a pair of NDArrays, float32
    (N, C, H, W), normalized, and their labels.

    A batch is valid for as long as you hold it; memory that you have let go of is used again.

    Args:
        split: ``len(split)``, ``split.labels`` int64 (N,), ``split.read(i)`` → the encoded image.
        batch_size: images in a batch.
        image_shape: (H, W, C) of each image; C is 3 (RGB) or 1 (grey).
        augment: a name of ``AUGMENTS``.
        shuffle, seed, last_batch, rank, world_size, partition: see :class:`gluontune.loading.Order`.

    Attributes:
        transform: called with images, labels, epoch and number of each batch that is handed out, and gives those that
            are; None: as they are. It must not change what it is given.

    Raises:
        UsageError: an argument that can never work.
    """

    name = ""
    yields = "uint8-nhwc"
    transform: Callable[[Any, Any, int, int], tuple[Any, Any]] | None = None

    def __init__(
        self,
        split: Any,
        *,
        batch_size: int,
        image_shape: Sequence[int],
        augment: str = "none",
        shuffle: bool = False,
        seed: int = 0,
        last_batch: str = "discard",
        rank: int = 0,
        world_size: int = 1,
        partition: str = "shard",
    ):
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
        self._epoch = 0  # the epoch under way, or the next
        self._done = 0  # its batches that were handed out
        self._resume_at: tuple[int, int] | None = None
        self._first_flips: np.ndarray | None = None  # bool (N,), of an alternating flip

    def __len__(self) -> int:
        """Batches of one epoch (of the next one, where ``rollover`` makes them differ)."""
        return self.order.num_batches(self._epoch)

    def epoch(self, n: int) -> Iterator[tuple[Any, Any]]:
        """The batches of epoch ``n``: the same for the same seed, whatever the threads or workers."""
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
        """Where the loader stands, as plain values: what was handed out counts as used."""
        return {"loader": self.name, "epoch": self._epoch, "batch": self._done, "order": vars(self.order).copy()}

    def restore(self, state: dict[str, Any]) -> None:
        """Go on where ``state`` was taken: ``epoch(state["epoch"])`` then begins after its last batch.

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

    def close(self) -> None:  # noqa: B027 (a loader without threads has nothing to end)
        """End threads and processes and let memory go. The loader can be closed twice."""

    def __enter__(self) -> Loader:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

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
                del batch  # the loader may use its memory again as soon as the caller lets it go
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
