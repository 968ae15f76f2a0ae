"""A loader as a contender's work: the next batch is a step, epoch after epoch."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Callable

__all__ = ["Batches"]


class Batches:
    """Takes batch after batch and lets each go at once; the first one is taken when it is built.

    Args:
        epoch: called with 0, 1, … gives the batches of that epoch.
        images: what of a batch are the images, anything with a ``shape`` of (N, ...); called once the
            batch is there, so it is also where to wait for one that is made asynchronously.
        info: for the report.
        end: called once, to end threads and workers.
        boxes: what of a batch are the boxes, where it has any.

    >>> import numpy as np
    >>> work = Batches(lambda n: [np.zeros((4, 2)), np.zeros((3, 2))], lambda batch: batch)
    >>> [work.step() for _ in range(3)]
    [3, 4, 3]
    """

    def __init__(
        self,
        epoch: Callable[[int], Iterable[Any]],
        images: Callable[[Any], Any],
        info: dict[str, Any] | None = None,
        end: Callable[[], None] | None = None,
        boxes: Callable[[Any], Any] | None = None,
    ):
        self._epoch, self._images, self._end, self._boxes = epoch, images, end, boxes
        self._number = 0
        self._next()
        self.info = {**(info or {}), **self.first()}

    def _next(self) -> None:
        self._batches = iter(self._epoch(self._number))
        self._number += 1

    def first(self) -> dict[str, Any]:
        """Shape and number format of a batch."""
        batch = next(self._batches)
        images = self._images(batch)
        found = {"batch_shape": [int(n) for n in images.shape], "dtype": _dtype_name(images.dtype)}
        return found if self._boxes is None else {**found, "boxes": [int(n) for n in self._boxes(batch).shape]}

    def step(self) -> int:
        """Take one batch; the number of its images."""
        batch = next(self._batches, None)
        if batch is None:
            self._next()
            batch = next(self._batches)
        return int(self._images(batch).shape[0])

    def close(self) -> None:
        """End threads and workers."""
        if self._end is not None:
            self._end()
            self._end = None


def _dtype_name(dtype: Any) -> str:
    return str(getattr(dtype, "__name__", dtype)).replace("torch.", "")
