"""The position of a training, and the batches from there on."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

from gluontune.core.arrays import flat
from gluontune.core.errors import GluontuneError
from gluontune.job.data import Feed


class Progress:
    """The position of a training.

    Attributes:
        epoch: of the next batch. steps: since the seeded start, with those before a checkpoint.
        repeated: a batch for every step in place of the loader's, or None.
    """

    def __init__(self, feed: Feed, begin_epoch: Callable[[], None]):
        self.feed, self.begin_epoch = feed, begin_epoch
        self.epoch = self.steps = 0
        self.repeated: tuple[Any, ...] | None = None
        self._batches: Iterator[Any] | None = None

    def move(self, epoch: int, steps: int) -> None:
        """Move to another position; the current epoch is closed."""
        self.close()
        self.epoch, self.steps = epoch, steps

    def next_batch(self) -> tuple[Any, ...]:
        """The next batch, across the end of an epoch."""
        if self.repeated is not None:
            return self.repeated
        for _ in range(2):
            if self._batches is None:
                self._batches = iter(self.feed.train.epoch(self.epoch))
            batch: tuple[Any, ...] | None = next(self._batches, None)
            if batch is not None:
                return batch
            self._batches = None
            self.epoch += 1
            self.begin_epoch()
        raise GluontuneError("the training data gave no batch in a whole epoch")

    def loading_alone(self, seconds: float) -> dict[str, float]:
        """The loader without the net: ``{"samples_per_sec", "cpu_ms_per_sample"}``; its epoch goes on.

        Args:
            seconds: loading time, after a quarter of it for the batches loaded ahead.
        """

        def load() -> int:
            batch = flat(self.next_batch())
            for array in batch:
                if hasattr(array, "wait_to_read"):
                    array.wait_to_read()
            return int(batch[0].shape[0])

        repeat(load, seconds / 4)
        samples, took, cpu = repeat(load, seconds)
        return {"samples_per_sec": samples / took, "cpu_ms_per_sample": 1e3 * cpu / samples}

    def close(self) -> None:
        """Close the current epoch."""
        close = getattr(self._batches, "close", None)
        if close is not None:
            close()
        self._batches = None


def repeat(work: Callable[[], int], seconds: float) -> tuple[int, float, float]:
    """Repeat ``work``: ``(units, seconds, CPU seconds of this process)``."""
    start, cpu, units = time.perf_counter(), time.process_time(), 0
    while time.perf_counter() - start < seconds:
        units += work()
    return units, time.perf_counter() - start, time.process_time() - cpu
