"""The resident loader: all images decoded once, stored as uint8, and augmented a batch at a time."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from typing import Any

import cv2
import numpy as np

from gluontune.core.errors import GluontuneError
from gluontune.core.forking import at_work
from gluontune.loading.augment import AUGMENTS, Augment, Draws
from gluontune.loading.base import Loader, check_shape
from gluontune.loading.cached import usable_memory
from gluontune.loading.decode import Decoder
from gluontune.loading.threaded import BatchPool, fill
from gluontune.runtime.cpu import Cpu

SHARE = 0.5  # of usable memory that the images may take


class ResidentLoader(Loader):
    """Decodes every image once, then makes each batch with a few vectorized numpy calls.

    Images of another size are fitted to ``image_shape`` when they are decoded, so a random-resized crop uses that size
    and not the original: use ``threaded`` for larger originals.

    Args:
        num_workers: threads of the one-time decoding; 0: one for each usable core.
        prefetch: unused: a batch is made faster than it could be passed on.
        mean, std: stored as attributes for the device; the pixels are unchanged.
        others: see :class:`gluontune.loading.base.Loader`.
        split: of a data set, or anything with ``labels``, ``__len__`` and ``read(i)``.

    Raises:
        GluontuneError: the images would take more than half of the usable memory, or one cannot be read (named).

    >>> class Split:
    ...     labels = np.arange(4)
    ...     def __len__(self): return 4
    ...     def read(self, i): return cv2.imencode(".png", np.full((8, 8, 3), i, np.uint8))[1]
    >>> loader = ResidentLoader(Split(), batch_size=4, image_shape=(8, 8, 3), augment="pad-crop-flip")
    >>> images, labels = next(loader.epoch(0))
    >>> images.shape, images[:, 4, 4, 0].tolist()
    ((4, 8, 8, 3), [0, 1, 2, 3])
    """

    name = "resident"
    yields = "uint8-nhwc"

    def __init__(
        self, split: Any, *, batch_size: int, image_shape: Sequence[int], num_workers: int = 0,
        prefetch: int | None = None, mean: Sequence[float] | None = None, std: Sequence[float] | None = None,
        **order: Any,
    ):  # fmt: skip
        super().__init__(split, batch_size=batch_size, image_shape=image_shape, **order)
        self.num_workers, self.prefetch, self.mean, self.std = int(num_workers), prefetch, mean, std
        height, width, channels = self.image_shape
        need = self.bytes_needed(len(split), self.image_shape, self.augment.name)
        if need > SHARE * usable_memory():
            raise GluontuneError(
                f"loader 'resident': {len(split)} images of {height}x{width}x{channels} take {need / 2**20:,.0f} MiB, "
                f"more than half of the {usable_memory() / 2**20:,.0f} MiB of usable memory: use loader 'threaded'"
            )
        # Columns are padded once, here; rows by the index of the copied row.
        pad = self.augment.pad
        self._store = np.empty((len(split), height, width + 2 * pad, channels), np.uint8)
        geometry = self.augment if self.augment.geometry == "center" else AUGMENTS["none"]
        decode_all(split, self._store, geometry, pad, self.num_workers or Cpu().usable_cores())
        self._pool = BatchPool((self.batch_size, *self.image_shape))

    @staticmethod
    def bytes_needed(samples: int, image_shape: Sequence[int], augment: str = "none") -> int:
        """Memory of the decoded images, bytes.

        >>> ResidentLoader.bytes_needed(50_000, (32, 32, 3))
        153600000
        """
        height, width, channels = check_shape(image_shape)
        return samples * height * (width + 2 * AUGMENTS[augment].pad) * channels

    @classmethod
    def fits(cls, split: Any, image_shape: Sequence[int], augment: str = "none") -> bool:
        """Whether the decoded split takes at most half of the usable memory."""
        return cls.bytes_needed(len(split), image_shape, augment) <= SHARE * usable_memory()

    @property
    def images(self) -> np.ndarray:
        """All decoded images, uint8 (N, H, W, C), in the order of the split (a view)."""
        pad = self.augment.pad
        return self._store[:, :, pad : pad + self.image_shape[1]]

    def close(self) -> None:
        self._store = self._store[:0]
        self._pool = BatchPool(self._pool.shape)

    def _batches(self, epoch: int, start: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        if len(self._store) == 0:
            raise GluontuneError("the loader is closed, and its images are gone: build it again")
        return self._made(epoch, start)

    def _made(self, epoch: int, start: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        for number, indices in enumerate(self.order.batches(epoch)[start:], start):
            images = self._pool.take()[: len(indices)]
            self._make(images, indices, self.draws(epoch, number, indices))
            yield images, self.labels[indices]
            del images

    def _make(self, out: np.ndarray, indices: np.ndarray, draws: Draws) -> None:
        self._gather(out, indices, draws.offsets)
        if draws.uniforms is not None:
            self._resized_crops(out, draws)
        if draws.flip is not None:
            flip_some(out, np.flatnonzero(draws.flip))
        if draws.finishes:
            for k in range(len(out)):
                draws.finish(out[k], k)

    def _gather(self, out: np.ndarray, indices: np.ndarray, offsets: np.ndarray | None) -> None:
        """Copy the images' rows into ``out``, each from its own column, by one copy of a whole row."""
        if offsets is None:
            np.take(self._store, indices, axis=0, out=out)
            return
        height, width, channels = self.image_shape
        pad, row_bytes = self.augment.pad, self._store.shape[2] * channels
        rows = reflect(np.arange(height) + offsets[:, :1] - pad, height)
        starts = (indices[:, None] * height + rows) * row_bytes + offsets[:, 1:] * channels
        items = np.dtype((np.void, width * channels))
        # Each start of a row is an item of this overlapping view.
        view: Any = np.ndarray((self._store.size - width * channels + 1,), items, self._store, strides=(1,))
        np.copyto(out.reshape(len(out), height, -1).view(items)[..., 0], view[starts])

    def _resized_crops(self, out: np.ndarray, draws: Draws) -> None:
        height, width, channels = self.image_shape
        for k in range(len(out)):
            top, left, h, w = self.augment.box(draws, k, height, width, self.image_shape)
            if (h, w) != (height, width):
                part = cv2.resize(out[k, top : top + h, left : left + w], (width, height))
                out[k] = part.reshape(height, width, channels)


def reflect(rows: np.ndarray, size: int) -> np.ndarray:
    """Row numbers outside 0 … size - 1 mirrored at the edge row (``BORDER_REFLECT_101``)."""
    if size == 1:
        return np.zeros_like(rows)
    rows = np.abs(rows)
    period = 2 * (size - 1)
    if rows.max(initial=0) >= period:
        rows = rows % period
    return np.where(rows < size, rows, period - rows)


def flip_some(images: np.ndarray, chosen: np.ndarray) -> None:
    """Mirror the chosen images of uint8 (N, H, W, C) in place, by one call of OpenCV."""
    if len(chosen):
        _, height, width, channels = images.shape
        tall = images[chosen].reshape(-1, width, channels)
        images[chosen] = cv2.flip(tall, 1).reshape(len(chosen), height, width, channels)


def decode_all(split: Any, store: np.ndarray, geometry: Augment, pad: int, threads: int) -> None:
    """Decode every sample into ``store`` (N, H, W + 2·pad, C); ``pad`` columns are reflected on each side."""
    shape = (store.shape[1], store.shape[2] - 2 * pad, store.shape[3])
    errors: dict[int, BaseException] = {}
    chunks = iter(range(0, len(split), 64))
    lock = threading.Lock()

    def work() -> None:
        decoder, none = Decoder(shape, geometry), Draws()
        scratch = np.empty((64, *shape), np.uint8)
        columns = reflect(np.arange(-pad, shape[1] + pad), shape[1])
        while not errors:
            with lock:
                first = next(chunks, None)
            if first is None:
                return
            indices = np.arange(first, min(first + 64, len(split)))
            try:
                with at_work():
                    fill(split, decoder, scratch[: len(indices)], indices, none)
            except BaseException as error:
                errors[first] = error
                return
            np.take(scratch[: len(indices)], columns, axis=2, out=store[first : first + len(indices)], mode="clip")

    workers = [threading.Thread(target=work, daemon=True) for _ in range(max(1, threads))]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    if errors:
        raise errors[min(errors)]
