"""Samples that are the same each time (``purity.py``), kept as rows: a batch is then one look-up, not a Python loop.

Indices come from the loader's own sampler, drawn when the loader would: order and random numbers are the script's.
"""

from __future__ import annotations

import collections
import itertools
import multiprocessing
import signal
import threading
import time
from collections.abc import Iterator
from typing import Any

import numpy as np

from gluontune.capture.helpers.base import patched
from gluontune.capture.helpers.bulk import why_not_pure
from gluontune.capture.helpers.keeping import Giving, Keeping, Noted, Rows
from gluontune.core.forking import at_work

_LEARNED = 3  # batches of each loader that it makes itself, to be compared with rows and timed
_FED_STEPS = 4  # in a row, with a kept batch each, after which slices of steps show what that brings


class Samples(Keeping):
    """Gives batches of rows that are kept of pure samples."""

    name = "kept samples"
    trusted = "rows"

    def __init__(self) -> None:
        super().__init__()
        self._batches, self._fed, self._fed_steps, self._guarded = 0, False, 0, False
        self.giving: Giving | None = None  # where another engine than MXNet has the values of batches

    def facts(self) -> dict[str, Any]:
        return {"kept_batches": self._batches}

    def install(self, mx: Any) -> None:
        self._mx, self._loader = mx, mx.gluon.data.dataloader.DataLoader
        patched(self._loader, "__init__", self._around_init)
        patched(self._loader, "_prefetch_iter", self._around_iteration)

    def _around_init(self, original: Any, loader: Any, dataset: Any, *args: Any, **kwargs: Any) -> None:
        workers = kwargs.get("num_workers", 0)
        late = type(loader) is self._loader and isinstance(workers, int) and workers > 0 and not self.broken
        late = late and len(args) <= 6 and not kwargs.get("thread_pool") and not kwargs.get("auto_reload")
        late = late and kwargs.get("batchify_fn") is None and self._is_pure(dataset)
        if kwargs.get("thread_pool"):
            self._guard_records()
        if not late:
            original(loader, dataset, *args, **kwargs)
            return
        original(loader, dataset, *args, **{**kwargs, "num_workers": 0, "auto_reload": False})
        loader._batchify_fn = self._mx.gluon.data.dataloader.default_mp_batchify_fn
        loader._num_workers = workers
        prefetch = kwargs.get("prefetch")
        loader._prefetch = max(0, int(prefetch) if prefetch is not None else 2 * workers)

    def _is_pure(self, dataset: Any) -> bool:
        try:
            return not why_not_pure(self._mx, dataset)
        except Exception as error:
            self.gave_up(error)
            return False

    def _guard_records(self) -> None:
        """Let threads read records one after the other: they share a file's position, and read each other's records."""
        if self._guarded:
            return
        self._guarded, lock = True, threading.RLock()

        def one_by_one(original: Any, *args: Any) -> Any:
            with at_work(), lock:
                return original(*args)

        patched(self._mx.recordio.MXIndexedRecordIO, "read_idx", one_by_one)
        self.note("threads that read records of one file take turns: they would get each other's")

    def _around_iteration(self, original: Any, loader: Any) -> Any:
        if not self.broken:
            try:
                if (found := self._iteration(loader)) is not None:
                    return found
            except Exception as error:
                self.gave_up(error)
        self._start_pool(loader)
        rows = vars(loader).get("_gluontune_rows")
        if self.broken or rows is None or rows.refused:
            return original(loader)
        sampler = loader._batch_sampler
        loader._batch_sampler = noted = Noted(sampler)
        try:
            return _from_workers(self, rows, noted.drawn, original(loader))
        finally:
            loader._batch_sampler = sampler

    def _start_pool(self, loader: Any) -> None:
        """The workers that MXNet starts with the loader, and we only where they are needed."""
        if loader._num_workers == 0 or loader._worker_pool is not None:
            return
        module = self._mx.gluon.data.dataloader
        before = signal.signal(signal.SIGINT, signal.SIG_IGN)
        try:
            loader._worker_pool = multiprocessing.Pool(
                loader._num_workers,
                initializer=module._worker_initializer,
                initargs=[loader._dataset, module.is_np_shape(), module.is_np_array()],
            )
        finally:
            signal.signal(signal.SIGINT, before)

    def after_step(self, step: int, seconds: float) -> None:
        self._fed_steps, self._fed = (self._fed_steps + 1 if self._fed else 0), False
        if self._fed_steps == _FED_STEPS:
            self.states = [self.trusted]

    def _iteration(self, loader: Any) -> Iterator[Any] | None:
        """An epoch's batches where rows are kept, or can be; None: the loader's own."""
        rows = vars(loader).get("_gluontune_rows")
        if rows is None:
            rows = vars(loader)["_gluontune_rows"] = self.rows_of(loader)
        if rows.refused or (rows.known is not None and not self.still_true(loader, rows)):
            return None
        if loader._num_workers > 0:
            if not rows.whole:
                return None
            if loader._worker_pool is not None and type(loader) is self._loader:
                loader._worker_pool.terminate()
                loader._worker_pool = None
        ahead, indices = loader._prefetch if loader._num_workers > 0 else 0, iter(loader._batch_sampler)
        return _batches(self, loader, rows, indices, collections.deque(itertools.islice(indices, ahead)))

    @property
    def took_over(self) -> bool:
        return self._batches > 0  # a loader's workers leave their cores to the others

    def batch(self, loader: Any, rows: Rows, indices: Any) -> Any:
        places = np.asarray(indices)
        began = time.thread_time()  # of this thread alone: other programs' turns are not counted
        kept = rows.learned >= _LEARNED and rows.known is not None and rows.known[places].all()
        workers = loader._num_workers
        self._fed |= kept and not workers  # of workers that have ended there are no slices as they were
        if kept and (self.state or workers):
            made = rows.batch(self._mx, places, self.giving)
            if workers:
                self.seconds_saved += rows.as_is_seconds(len(places), workers) - (time.thread_time() - began)
            self._batches += 1
            return made
        made = loader._batchify_fn([loader._dataset[k] for k in indices])
        if not kept:
            rows.as_is_s = min(rows.as_is_s, (time.thread_time() - began) / max(1, len(places)))
            self.learn(rows, places, made)
        return made


def _batches(helper: Samples, loader: Any, rows: Rows, indices: Any, waiting: Any) -> Iterator[Any]:
    """Batches in the loader's order. waiting: indices that were drawn ahead, as the loader with workers draws them."""
    while True:
        waiting.extend(itertools.islice(indices, 1))
        if not waiting:
            return
        yield helper.batch(loader, rows, waiting.popleft())


def _from_workers(helper: Samples, rows: Rows, drawn: Any, batches: Any) -> Iterator[Any]:
    """The batches of the loader's own workers, kept as they come."""
    while True:
        began = time.perf_counter()
        made = next(batches, None)
        if made is None:
            return
        rows.waits_s.append(time.perf_counter() - began)
        helper.learn(rows, np.asarray(drawn.popleft()), made)
        yield made
