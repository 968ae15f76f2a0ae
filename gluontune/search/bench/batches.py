"""Work of contenders: a loader, whose next batch is a step; decoding alone; and the smallest work, which sleeps."""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import Any, Callable

from gluontune.records import RecordReader


class Batches:
    """Takes batch after batch and lets each go at once; the first one is taken when it is built.

    ``epoch`` returns the batches of epoch 0, 1, …; ``images`` those of a batch, with a ``shape`` of (N, ...), once they
    are there; ``boxes`` its boxes. ``end`` ends threads and workers.

    >>> import numpy as np
    >>> work = Batches(lambda n: [np.zeros((4, 2)), np.zeros((3, 2))], lambda batch: batch)
    >>> [work.step() for _ in range(3)]
    [3, 4, 3]
    """

    def __init__(
        self, epoch: Callable[[int], Iterable[Any]], images: Callable[[Any], Any], info: dict[str, Any] | None = None,
        end: Callable[[], None] | None = None, boxes: Callable[[Any], Any] | None = None,
    ):  # fmt: skip
        self._epoch, self._images, self._end, self._boxes = epoch, images, end, boxes
        self._number = 0
        self._next()
        self.info = {**(info or {}), **self.first()}

    def _next(self) -> None:
        self._batches = iter(self._epoch(self._number))
        self._number += 1

    def first(self) -> dict[str, Any]:
        batch = next(self._batches)
        images = self._images(batch)
        dtype = str(getattr(images.dtype, "__name__", images.dtype))
        found = {"batch_shape": [int(n) for n in images.shape], "dtype": dtype.replace("torch.", "")}
        return found if self._boxes is None else {**found, "boxes": [int(n) for n in self._boxes(batch).shape]}

    def step(self) -> int:
        """Take one batch; returns the number of its images."""
        batch = next(self._batches, None)
        if batch is None:
            self._next()
            batch = next(self._batches)
        return int(self._images(batch).shape[0])

    def close(self) -> None:
        if self._end is not None:
            self._end()
            self._end = None


class DecodeLimit:
    """Decoding alone, of payloads in memory: a step is one call of ``decode``, which returns their number."""

    def __init__(self, path: str, workers: int, decode: Callable[[list[bytes]], int]):
        with RecordReader(path) as reader:
            self.payloads = [bytes(reader.payload(i)) for i in range(min(len(reader), 512))]
        self.decode = decode
        self.info = {"payloads": len(self.payloads), "workers": workers}

    def step(self) -> int:
        return self.decode(self.payloads)


class Sleeper:
    """Each step takes ``sleep_s`` seconds and counts ``units``: for the documentation and the tests of contests."""

    def __init__(self, units: int, sleep_s: float):
        self.units, self.sleep_s = units, sleep_s
        self.info: dict[str, Any] = {"sleep_s": sleep_s}
        self.steps = 0

    def step(self) -> int:
        time.sleep(self.sleep_s)
        self.steps += 1
        return self.units

    def count(self) -> int:
        """Steps so far."""
        return self.steps
