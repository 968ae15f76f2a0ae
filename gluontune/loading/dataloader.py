"""Gluon's DataLoader, made safe.

- Forked workers of a seeded parent draw the same random numbers; here every batch has its own seed, so results do not
  depend on the number of workers either.
- A dead worker leaves the trainer waiting; here it is an error within seconds.
- ``thread_pool=True`` reads wrong records from a shared handle; here it is refused.
"""

from __future__ import annotations

import contextlib
import os
import random
import shutil
from collections.abc import Iterator, Sequence
from multiprocessing.process import BaseProcess
from typing import Any, Callable

import numpy as np

from gluontune.core.errors import GluontuneError, UsageError
from gluontune.core.files import Closing
from gluontune.loading.base import Order
from gluontune.loading.cached import sample_bytes
from gluontune.runtime import mxnet

POLL_S = 0.5


class SeededDataset:
    """A data set indexed with ``(seed, index)``, which seeds all generators anew for each batch, in any process."""

    def __init__(self, dataset: Any):
        self.dataset = dataset

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitem__(self, item: tuple[int | None, int]) -> Any:
        seed, index = item
        if seed is not None:
            random.seed(seed)
            np.random.seed(seed)
            mxnet().random.seed(seed)
        return self.dataset[index]


class _EpochBatches:
    """The batch sampler: lists of ``(seed or None, index)`` of the current epoch."""

    def __init__(self, order: Any):
        self.order, self.epoch, self.start = order, 0, 0

    def __len__(self) -> int:
        return self.order.num_batches(self.epoch) - self.start

    def __iter__(self) -> Iterator[list[tuple[int | None, int]]]:
        order = self.order
        for number, indices in enumerate(order.batches(self.epoch)[self.start :], self.start):
            key = np.random.SeedSequence([order.seed, self.epoch, order.rank, number])
            seed = int(key.generate_state(1)[0]) & 0x7FFFFFFF  # valid for all three generators
            yield [(None if place else seed, int(i)) for place, i in enumerate(indices)]


class _Sampled:
    """The user's batch sampler in place of an :class:`Order`."""

    rank = 0

    def __init__(self, sampler: Any, batch_size: int, seed: int):
        self.sampler, self.batch_size, self.seed = sampler, batch_size, seed

    def num_batches(self, epoch: int) -> int:
        return len(self.sampler)

    def batches(self, epoch: int) -> list[list[int]]:
        return [list(batch) for batch in self.sampler]


class SafeDataLoader(Closing):
    """A ``gluon.data.DataLoader`` with one persistent pool, seeds for each batch, and supervised workers.

    It is iterated like the original; each ``for`` is a new epoch, ``epoch(n)`` names one.

    Args:
        dataset: any Gluon data set. With workers it must be picklable or fork-safe, as for Gluon.
        order: the samples of each batch.
        num_workers: forked processes; 0 loads in the training thread.
        prefetch: batches made ahead; None: twice the workers, as in Gluon.
        pin_memory: copy batches to page-locked memory (GPU only).
        batchify_fn: as in Gluon.
        timeout: limit for one batch, seconds.

    Raises:
        GluontuneError: /dev/shm is too small for the workers' batches; or, while iterating, a worker died.
    """

    def __init__(
        self, dataset: Any, order: Any, *, num_workers: int = 0, prefetch: int | None = None,
        pin_memory: bool = False, batchify_fn: Callable[..., Any] | None = None, timeout: int = 120,
    ):  # fmt: skip
        if num_workers < 0 or (prefetch is not None and prefetch < 0):
            raise UsageError(f"num_workers={num_workers}, prefetch={prefetch}: give whole numbers of at least 0")
        self._batches = _EpochBatches(order)
        self._next_epoch = 0
        ahead = prefetch if prefetch is not None else 2 * num_workers
        if num_workers:
            ahead = max(1, ahead)
            check_shared_memory(dataset, order.batch_size, ahead + num_workers)
        from_gluon = mxnet().gluon.data.dataloader.DataLoader  # even if gluon.data has ours
        self._loader = from_gluon(
            SeededDataset(dataset), batch_sampler=self._batches, batchify_fn=batchify_fn, num_workers=num_workers,
            pin_memory=pin_memory, prefetch=ahead, timeout=timeout,
        )  # fmt: skip
        pool = self._loader._worker_pool
        self._workers = list(pool._pool) if pool is not None else []
        self._timeout = timeout
        self._owner = os.getpid()

    def __len__(self) -> int:
        return len(self._batches)

    def __iter__(self) -> Iterator[Any]:
        return self.epoch(self._next_epoch)

    def epoch(self, n: int, start: int = 0) -> Iterator[Any]:
        """The batches of epoch ``n``, from number ``start`` on."""
        if self._loader is None:
            raise GluontuneError("the loader is closed")
        self._next_epoch = n + 1
        self._batches.epoch, self._batches.start = n, start
        batches = self._loader._prefetch_iter()
        return self._watched(batches) if self._workers else batches

    def _watched(self, batches: Any) -> Iterator[Any]:
        while True:
            pending = batches._data_buffer.get(batches._rcvd_idx)
            waited = 0.0
            while pending is not None and not pending.ready():
                pending.wait(POLL_S)
                waited += POLL_S
                dead = next((worker for worker in self._workers if worker.exitcode is not None), None)
                if dead is not None:
                    self.close()
                    raise GluontuneError(
                        f"a loader worker (process {dead.pid}) died with exit code {dead.exitcode}: "
                        "too little memory? Use fewer num_workers, or loader 'threaded'"
                    )
                if waited >= self._timeout:
                    self.close()
                    raise GluontuneError(
                        f"the loader's workers made no batch in {self._timeout} s: a slow disk, or too few of them"
                    )
            try:
                batch = next(batches)
            except StopIteration:
                return
            yield batch

    def close(self) -> None:
        """End the workers. It may be called twice."""
        if self._loader is not None and self._loader._worker_pool is not None:
            end_pool(self._loader._worker_pool, self._workers)
        self._workers, self._loader = [], None

    def __del__(self) -> None:
        # Gluon's end of a pool can wait for ever for a lock. (A forked worker has a copy of its parent's loader.)
        if getattr(self, "_workers", None) and self._owner == os.getpid():
            self.close()


def safe_dataloader(
    dataset: Any,
    batch_size: int | None = None,
    shuffle: bool | None = None,
    sampler: Any = None,
    last_batch: str | None = None,
    batch_sampler: Any = None,
    batchify_fn: Callable[..., Any] | None = None,
    num_workers: int = 0,
    pin_memory: bool = False,
    pin_device_id: int = 0,
    prefetch: int | None = None,
    thread_pool: bool = False,
    timeout: int = 120,
    try_nopython: bool | None = None,
    auto_reload: bool = False,
    *,
    seed: int = 0,
    rank: int = 0,
    world_size: int = 1,
    partition: str = "shard",
) -> SafeDataLoader:
    """A drop-in for ``gluon.data.DataLoader(dataset, batch_size, …)`` without its traps.

    Args:
        dataset: any Gluon data set (``ImageFolderDataset(...).transform_first(...)``, …).
        batch_size, shuffle, sampler, last_batch, batch_sampler: as in Gluon, with its contradictions refused. A
            sampler's order is kept; it must return the same number of samples each time.
        batchify_fn, num_workers, pin_memory, prefetch, timeout: as in Gluon.
        pin_device_id, try_nopython, auto_reload: ignored: pages are locked for device 0, and batches of the next epoch
            are made when it begins.
        seed: of the shuffling and of each batch's random numbers (Python's, numpy's and MXNet's).
        rank, world_size, partition: this process's share of the samples; all have equally many batches.
        thread_pool: refused.

    Raises:
        UsageError: arguments that contradict each other, or ``thread_pool``.

    >>> data = mxnet().gluon.data.SimpleDataset(list(range(6)))
    >>> [batch.asnumpy().tolist() for batch in safe_dataloader(data, 4)]
    [[0, 1, 2, 3], [4, 5]]
    """
    if thread_pool:
        raise UsageError(
            "thread_pool=True: threads that share one record file handle return wrong records without an error "
            "(MXNet 1.9 seeks on it); use num_workers, or gt.loading.ThreadedLoader"
        )
    _check_samplers(batch_size, shuffle, last_batch, world_size, sampler, batch_sampler)
    order: Any
    if sampler is not None or batch_sampler is not None:
        if batch_sampler is None:
            assert batch_size is not None, "checked"
            batch_sampler = mxnet().gluon.data.BatchSampler(sampler, batch_size, last_batch or "keep")
        size = int(batch_size or getattr(batch_sampler, "_batch_size", 1) or 1)
        order = _Sampled(batch_sampler, size, seed)
    else:
        assert batch_size is not None, "checked"
        order = Order(len(dataset), batch_size, bool(shuffle), seed, last_batch or "keep", rank, world_size, partition)
    return SafeDataLoader(
        dataset, order, num_workers=num_workers, prefetch=prefetch, pin_memory=pin_memory, batchify_fn=batchify_fn,
        timeout=timeout,
    )  # fmt: skip


def _check_samplers(
    batch_size: Any, shuffle: Any, last_batch: Any, world_size: int, sampler: Any, batch_sampler: Any
) -> None:
    """Refuse Gluon's contradictions, and samplers of several processes, which only they can divide."""
    if batch_sampler is not None and (batch_size or shuffle or sampler is not None or last_batch):
        raise UsageError("batch_sampler: it says all; leave out batch_size, shuffle, sampler and last_batch")
    if batch_sampler is None and batch_size is None:
        raise UsageError("batch_size: give it, or a batch_sampler")
    if sampler is not None and shuffle:
        raise UsageError("sampler and shuffle=True contradict each other: the sampler says the order")
    if world_size > 1 and (sampler is not None or batch_sampler is not None):
        raise UsageError(f"world_size={world_size}: a sampler of your own must itself give each process its share")


def check_shared_memory(dataset: Any, batch_size: int, batches: int, path: str = "/dev/shm") -> None:
    """Raise if the batches in flight would overflow shared memory, which kills workers silently."""
    try:
        free = shutil.disk_usage(path).free
    except OSError:
        return
    need = sample_bytes(dataset) * batch_size * batches
    if need > free:
        raise GluontuneError(
            f"{path} has {free / 2**20:,.0f} MiB free, but {batches} batches of {batch_size} in flight take "
            f"{need / 2**20:,.0f} MiB: use fewer num_workers or prefetch, enlarge it (docker --shm-size), "
            "or use loader 'threaded'"
        )


def end_pool(pool: Any, workers: Sequence[BaseProcess]) -> None:
    """End a pool without waiting for a lock of a dead worker.

    ``Pool.terminate`` takes the lock of the task queue, which a worker killed while waiting for a task holds for ever.
    So the processes are ended first, and the pool's finalizer, which would hang at the exit of the interpreter, is
    cancelled.
    """
    pool._terminate.cancel()
    for thread in (pool._worker_handler, pool._task_handler, pool._result_handler):
        thread._state = "TERMINATE"
    pool._state = "TERMINATE"
    pool._change_notifier.put(None)
    pool._taskqueue.put(None)
    pool._worker_handler.join(timeout=2.0)  # it must not start new workers meanwhile
    for process in {*workers, *pool._pool}:
        with contextlib.suppress(ValueError, OSError):
            process.terminate()
    for process in {*workers, *pool._pool}:
        process.join(timeout=2.0)
        if process.exitcode is None:
            process.kill()
            process.join(timeout=2.0)
    with contextlib.suppress(OSError):
        pool._outqueue._writer.send(None)  # without the lock, which no process holds now
