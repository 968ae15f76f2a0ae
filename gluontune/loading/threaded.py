"""The threaded loader: images decoded and augmented by threads, directly into recycled uint8 batches."""

from __future__ import annotations

import sys
import threading
from collections import deque
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from gluontune.core.errors import GluontuneError, UsageError
from gluontune.core.forking import at_work
from gluontune.loading.augment import Draws
from gluontune.loading.base import Loader, sample_error
from gluontune.loading.decode import Decoder
from gluontune.runtime.arrays import take_back

MAX_BYTES = 512 << 20  # of batches made ahead, without ``prefetch``
CHUNKS = 2  # pieces of a batch a thread, so that the threads end together
PIECE = 1 << 16  # smallest piece in pixels: each holds the interpreter's lock for a tenth of a millisecond


class BatchPool:
    """Batch memory that is reused once it is released, since page faults of fresh memory cost as much as resizing.

    >>> pool = BatchPool((2, 4, 4, 3))
    >>> first = pool.take(); address = first.ctypes.data
    >>> pool.take().ctypes.data == address  # ``first`` is still held
    False
    >>> del first
    >>> address in (pool.take().ctypes.data, pool.take().ctypes.data)
    True
    """

    def __init__(self, shape: tuple[int, ...]):
        self.shape = shape
        self._arrays: list[np.ndarray] = []
        self._lock = threading.Lock()

    def take(self) -> np.ndarray:
        """An array without other references, with arbitrary content."""
        take_back()
        with self._lock:
            for k in range(len(self._arrays)):
                # Two references: the list's and getrefcount's argument. Views count through their base.
                if sys.getrefcount(self._arrays[k]) == 2:
                    return self._arrays[k]
            self._arrays.append(np.empty(self.shape, np.uint8))
            return self._arrays[-1]


def fill(split: Any, decoder: Decoder, out: np.ndarray, indices: np.ndarray, draws: Draws, first: int = 0) -> None:
    """Decode samples ``indices`` into ``out`` (n, H, W, C), as images ``first`` … of the batch of ``draws``."""
    index, payloads = -1, []
    try:
        located = split.locate(indices) if hasattr(split, "locate") else None
        if located is None:
            for index in indices.tolist():
                payloads.append(split.read(index))
            codes = decoder.many(out, payloads, draws, first)
        else:
            addresses, lengths, file = located
            codes = decoder.at(out, addresses, lengths, draws, first)
            del file  # mapped until here
        for k in np.flatnonzero(codes).tolist():
            index = int(indices[k])
            decoder.into(out[k], payloads[k] if payloads else split.read(index), draws, first + k)
    except KeyboardInterrupt:  # of the user, and no fault of the record
        raise
    except BaseException as error:  # an error in a thread must name the record
        raise sample_error(split, index, error) from error


class _Batch:
    """One unfinished batch: threads claim its chunks, and the last one marks it ready."""

    def __init__(self, indices: np.ndarray, images: np.ndarray, draws: Draws, chunks: int):
        self.indices, self.images, self.draws = indices, images, draws
        self.left = chunks
        self.ready = threading.Event()
        self.error: BaseException | None = None


class _Epoch:
    """The threads of one epoch and their work."""

    def __init__(self, loader: ThreadedLoader, epoch: int, start: int):
        self.loader, self.number = loader, epoch
        self.todo = enumerate(loader.order.batches(epoch)[start:], start)
        self.pending: deque[_Batch] = deque()
        self.chunks: deque[tuple[_Batch, int, int]] = deque()
        self.wake = threading.Condition()
        self.stopped = False
        self.error: BaseException | None = None  # of a thread, outside the work on a sample
        self.threads = [
            threading.Thread(target=self.work, name=f"gluontune-loader-{k}", daemon=True)
            for k in range(loader.num_workers)
        ]

    def start(self) -> None:
        for _ in range(self.loader.prefetch + 1):
            self.open_next()
        for thread in self.threads:
            thread.start()

    def open_next(self) -> None:
        """Queue one more batch for the threads."""
        number, indices = next(self.todo, (-1, None))
        if indices is None:
            return
        loader, size = self.loader, len(indices)
        step = loader.piece
        pieces = [(first, min(first + step, size)) for first in range(0, size, step)]
        draws = loader.draws(self.number, number, indices)
        batch = _Batch(indices, loader.pool.take(), draws, len(pieces))
        self.pending.append(batch)
        with self.wake:
            self.chunks.extend((batch, first, last) for first, last in pieces)
            self.wake.notify(len(pieces))

    def work(self) -> None:
        """A thread's work until the epoch ends; an error is stored for the consumer."""
        try:
            self._work()
        except BaseException as error:
            self.error = error

    def _work(self) -> None:
        decoder = self.loader.decoder()
        while True:
            with self.wake:
                while not self.chunks and not self.stopped:
                    self.wake.wait()
                if self.stopped:
                    return
                batch, first, last = self.chunks.popleft()
            try:
                if batch.error is None:
                    with at_work():
                        self.loader.fill(decoder, batch.images, batch.indices, batch.draws, first, last)
            except BaseException as error:
                batch.error = batch.error or error
            with self.wake:
                batch.left -= 1
                done = batch.left == 0 or batch.error is not None
            if done:
                batch.ready.set()
            del batch  # an idle thread must not keep the memory of a batch

    def next(self) -> _Batch:
        """The next batch in order, once it is complete."""
        batch = self.pending.popleft()
        while not batch.ready.wait(1.0):
            if self.stopped:
                raise UsageError(
                    f"epoch {self.number} was ended: this loader began another one, or was closed. A loader serves one "
                    "loop at a time; give each thread a loader of its own (rank and world_size share the samples out)"
                )
            if not all(thread.is_alive() for thread in self.threads):
                reason = f"{type(self.error).__name__}: {self.error}" if self.error else "no reason given"
                raise GluontuneError(f"a loader thread died ({reason}); the epoch cannot go on") from self.error
        if batch.error is not None:
            raise batch.error
        return batch

    def stop(self) -> None:
        with self.wake:
            self.stopped = True
            self.chunks.clear()
            self.wake.notify_all()
        for thread in self.threads:
            if thread.is_alive():
                thread.join(timeout=10.0)


class ThreadedLoader(Loader):
    """Decodes and augments on threads, outside the interpreter's lock, into recycled uint8 batches.

    Normalization, layout and cast belong on the device, inside the hybridized graph; the host then moves a quarter of
    the bytes of float32.

    Args:
        num_workers: threads; 0 loads in the calling thread.
        prefetch: batches made ahead of the current one. None: 2, or more if batches of small images occupy fewer
            threads; fewer if they would take more than 512 MiB. With ``num_workers=0`` nothing is made ahead.
        scaled: allow scaled JPEG decoding if the crop is larger than the image (see ``decode``).
        mean, std: stored as attributes for the device; the pixels are unchanged.
        others: see :class:`gluontune.loading.base.Loader`.
        split: of a data set, or anything with ``labels``, ``__len__`` and ``read(i)``.

    Raises:
        GluontuneError: (while iterating) a sample cannot be read or decoded; names it.
        UsageError: (while iterating) another epoch of this loader was started: it serves one loop at a time.

    >>> import cv2
    >>> class Split:
    ...     labels = np.arange(4)
    ...     def __len__(self): return 4
    ...     def read(self, i): return cv2.imencode(".png", np.full((8, 8, 3), i, np.uint8))[1]
    >>> with ThreadedLoader(Split(), batch_size=2, image_shape=(8, 8, 3), num_workers=2) as loader:
    ...     [(images[:, 0, 0, 0].tolist(), labels.tolist()) for images, labels in loader.epoch(0)]
    [([0, 1], [0, 1]), ([2, 3], [2, 3])]
    """

    name = "threaded"
    yields = "uint8-nhwc"

    def __init__(
        self, split: Any, *, batch_size: int, image_shape: Sequence[int], num_workers: int = 0,
        prefetch: int | None = None, scaled: bool = True, mean: Sequence[float] | None = None,
        std: Sequence[float] | None = None, **order: Any,
    ):  # fmt: skip
        super().__init__(split, batch_size=batch_size, image_shape=image_shape, **order)
        if num_workers < 0 or (prefetch is not None and prefetch < 0):
            raise UsageError(f"num_workers={num_workers}, prefetch={prefetch}: give whole numbers of at least 0")
        self.num_workers, self.scaled, self.mean, self.std = int(num_workers), scaled, mean, std
        batch_bytes = self.batch_size * int(np.prod(self.image_shape))
        pixels = self.image_shape[0] * self.image_shape[1]
        least = min(self.batch_size, max(1, PIECE // pixels))
        self.piece = max(least, -(-self.batch_size // (max(1, self.num_workers) * CHUNKS)))  # images
        pieces = -(-self.batch_size // self.piece)
        ahead = max(2, -(-self.num_workers // pieces))  # every thread has a piece
        self.prefetch = prefetch if prefetch is not None else max(1, min(ahead, MAX_BYTES // batch_bytes))
        self.pool = BatchPool((self.batch_size, *self.image_shape))
        self._running: _Epoch | None = None
        self._turn = threading.Lock()

    def decoder(self) -> Decoder:
        """A decoder for one thread."""
        return Decoder(self.image_shape, self.augment, self.scaled)

    def fill(
        self, decoder: Decoder, images: np.ndarray, indices: np.ndarray, draws: Draws, first: int, last: int
    ) -> None:
        """Decode samples ``indices[first:last]`` into ``images[first:last]``."""
        fill(self.split, decoder, images[first:last], indices[first:last], draws, first)

    def targets(self, indices: np.ndarray, draws: Draws) -> Any:
        """The labels beside the images of the samples ``indices``."""
        return self.labels[indices]

    def _batches(self, epoch: int, start: int) -> Iterator[tuple[np.ndarray, Any]]:
        self._stop()
        return self._threaded(epoch, start) if self.num_workers else self._inline(epoch, start)

    def _inline(self, epoch: int, start: int) -> Iterator[tuple[np.ndarray, Any]]:
        decoder = self.decoder()
        for number, indices in enumerate(self.order.batches(epoch)[start:], start):
            images, draws = self.pool.take(), self.draws(epoch, number, indices)
            self.fill(decoder, images, indices, draws, 0, len(indices))
            yield images[: len(indices)], self.targets(indices, draws)
            del images

    def _threaded(self, epoch: int, start: int) -> Iterator[tuple[np.ndarray, Any]]:
        run = _Epoch(self, epoch, start)
        self._stop(run)
        run.start()
        try:
            while run.pending:
                batch = run.next()
                images, targets = batch.images[: len(batch.indices)], self.targets(batch.indices, batch.draws)
                del batch
                run.open_next()
                yield images, targets
                del images, targets
        finally:
            run.stop()

    def _stop(self, instead: _Epoch | None = None) -> None:
        with self._turn:  # two threads that start at once: one of them is stopped
            before, self._running = self._running, instead
        if before is not None:
            before.stop()

    def close(self) -> None:
        self._stop()
        self.pool = BatchPool(self.pool.shape)
