"""Samples that are the same each time, kept in memory as rows: a batch is then one look-up instead of a Python loop.

A Gluon ``DataLoader`` computes each sample anew in each epoch, one by one, in Python. Where dataset and transforms are
pure (``purity.py``), rows are kept and a batch is gathered from them. Indices come from the loader's own sampler, drawn
when the loader would draw them: order and random numbers are those of the script. Random transforms are never kept.
"""

from __future__ import annotations

import collections
import multiprocessing
import os
import random
import signal
import threading
import time
import weakref
from collections.abc import Iterator
from typing import Any

import numpy as np
import psutil

from gluontune.capture.helpers.base import Helper, patched
from gluontune.capture.helpers.bulk import Bulk, why_not_pure
from gluontune.capture.helpers.rows import Giving, Noted, Rows, as_fields, same_samples

_MEMORY_SHARE = 0.25  # of what is available, for the rows of all loaders together
_SPOT_CHECKS = 2  # samples computed anew at the begin of each epoch
_LEARNED = 3  # batches of each loader that it makes itself, to be compared with rows and timed
_CHECKED_ROWS = 8  # of the first batch, and of each chunk that was computed at once
_FED_STEPS = 4  # in a row, with a kept batch each, after which slices of steps show what that brings


class Samples(Helper):
    """Keeps rows for each dataset of pure samples.

    Attributes:
        giving: makes a batch's arrays where another engine than MXNet has the values, or None.
    """

    name = "kept samples"
    does = "samples that are the same in each epoch are computed once"
    trusted = "rows"

    def __init__(self) -> None:
        super().__init__()
        self._left = psutil.virtual_memory().available * _MEMORY_SHARE
        self._random = random.Random(0)  # our own: the script's streams are not touched
        self._batches, self._fed, self._fed_steps = 0, False, 0
        self._guarded = False
        self._known: dict[Any, Rows] = {}  # by their dataset's id, and how batches are made of it
        self.giving: Giving | None = None

    def facts(self) -> dict[str, Any]:
        """How many batches came from rows."""
        return {"kept_batches": self._batches}

    def install(self, mx: Any) -> None:
        self._mx = mx
        module = mx.gluon.data.dataloader
        self._loader = module.DataLoader
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
        os.register_at_fork(before=lock.acquire, after_in_parent=lock.release, after_in_child=lock.release)

        def one_by_one(original: Any, *args: Any) -> Any:
            with lock:
                return original(*args)

        patched(self._mx.recordio.MXIndexedRecordIO, "read_idx", one_by_one)
        self.note("threads that read records of one file take turns: they would get each other's")

    def _around_iteration(self, original: Any, loader: Any) -> Any:
        if not self.broken:
            try:
                found = self._iteration(loader)
                if found is not None:
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

    # -- one epoch

    def _iteration(self, loader: Any) -> Iterator[Any] | None:
        """An epoch's batches where rows are kept, or can be; None: the loader's own."""
        rows = vars(loader).get("_gluontune_rows")
        if rows is None:
            rows = vars(loader)["_gluontune_rows"] = self._rows_of(loader)
        if rows.refused:
            return None
        if rows.known is not None and not self._still_true(loader, rows):
            return None
        module = self._mx.gluon.data.dataloader
        if loader._num_workers > 0:
            if not rows.whole:
                return None
            if loader._worker_pool is not None and type(loader) is self._loader:
                loader._worker_pool.terminate()
                loader._worker_pool = None
        ahead = loader._prefetch if loader._num_workers > 0 else 0
        return _epoch(self, loader, rows, ahead, module)

    def _rows_of(self, loader: Any) -> Rows:
        """The rows of a loader; one that is made anew, for each epoch or fold, has those of its dataset."""
        dataset = loader._dataset
        key = id(dataset), type(loader), loader._batchify_fn, loader._pin_memory, loader._num_workers
        if key not in self._known:
            try:
                weakref.finalize(dataset, self._forget, key).atexit = False
            except TypeError:  # of a kind that says nothing at its end
                return self._rows(loader)
            self._known[key] = self._rows(loader)
        return self._known[key]

    def _forget(self, key: Any) -> None:
        """A dataset is gone: so is the need of its rows."""
        rows = self._known.pop(key, None)
        self._left += 0 if rows is None else sum(field.nbytes for field in rows.fields)

    def _rows(self, loader: Any) -> Rows:
        module = self._mx.gluon.data.dataloader
        defaults = (module.default_batchify_fn, module.default_mp_batchify_fn)
        refused = ""
        if type(loader) is not self._loader or loader._pin_memory or loader._thread_pool:
            refused = "a loader of another kind"
        elif loader._batchify_fn not in defaults:
            refused = "batches are made by a function of the script's"
        refused = refused or why_not_pure(self._mx, loader._dataset)
        rows = Rows(len(loader._dataset), refused)
        if refused:
            self.note(f"{self.name}: a loader is left as it is: {refused}")
        else:
            self._fill_at_once(loader, rows)
        return rows

    def _fill_at_once(self, loader: Any, rows: Rows) -> None:
        """All rows by a few calls of the transforms on many samples, where that gives the same to the bit."""
        bulk = Bulk.of(self._mx, loader._dataset)
        if bulk is None or rows.count < 2:
            return
        began = time.perf_counter()
        for start, fields in bulk.chunks():
            count = len(fields[0])
            checked = {0, count - 1, *(self._random.randrange(count) for _ in range(_CHECKED_ROWS))}
            for k in checked if start == 0 else list(checked)[:2]:
                fresh = bulk.sample(start + k)
                if fresh is None or not same_samples(fresh, [field[k] for field in fields]):
                    rows.forget()
                    return
            if rows.known is None and not self._allot(rows, [(f.shape[1:], f.dtype) for f in fields], bulk.is_tuple):
                return
            for kept, field in zip(rows.fields, fields):
                kept[start : start + count] = field
            assert rows.known is not None
            rows.known[start : start + count] = True
            if start == 0 and (time.perf_counter() - began) * rows.count / count > 60:
                rows.forget()  # slower than can pay
                return

    def _allot(self, rows: Rows, kinds: list[tuple[Any, Any]], is_tuple: bool) -> bool:
        need = sum(int(np.prod(shape)) * np.dtype(dtype).itemsize for shape, dtype in kinds) * rows.count
        if need > self._left:
            rows.refused = f"its rows would take {need / 2**20:,.0f} MiB"
            self.note(f"{self.name}: a loader is left as it is: {rows.refused}")
            return False
        self._left -= need
        rows.allot(kinds, is_tuple)
        return True

    def _still_true(self, loader: Any, rows: Rows) -> bool:
        """Whether samples computed anew are those that were kept."""
        assert rows.known is not None
        if len(loader._dataset) != rows.count:
            rows.refused = "its length has changed"
        else:
            places = np.flatnonzero(rows.known)
            for _ in range(_SPOT_CHECKS if len(places) else 0):
                place = int(places[self._random.randrange(len(places))])
                if not same_samples(as_fields(loader._dataset[place]), [field[place] for field in rows.fields]):
                    rows.refused = "samples have changed since they were kept"
                    break
        if rows.refused:
            self.note(f"{self.name}: a loader is left as it is: {rows.refused}")
        return not rows.refused

    @property
    def took_over(self) -> bool:
        return self._batches > 0  # a loader's workers leave their cores to the others

    # -- one batch

    def batch(self, loader: Any, rows: Rows, indices: Any) -> Any:
        """The loader's batch of these samples."""
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

    def learn(self, rows: Rows, places: Any, made: Any) -> None:
        """Keep a batch that the loader itself has made, where it is of the kind that can be kept."""
        if rows.refused:
            return
        try:
            self._learn(rows, places, made)
        except Exception as error:
            rows.refused = f"{type(error).__name__}: {error}"
        if rows.refused:
            self.note(f"{self.name}: a loader is left as it is: {rows.refused}")

    def _learn(self, rows: Rows, places: Any, made: Any) -> None:
        arrays = made if isinstance(made, list) else [made]
        if not all(isinstance(array, self._mx.nd.NDArray) and array.stype == "default" for array in arrays):
            rows.refused = "its batches are no dense arrays"
            return
        values = [array.asnumpy() for array in arrays]
        if rows.known is None:
            kinds = [(value.shape[1:], value.dtype) for value in values]
            if not self._allot(rows, kinds, isinstance(made, list)):
                return
        assert rows.known is not None
        if rows.template is None:
            rows.template = [(type(array), array.context) for array in arrays]
        alike = len(values) == len(rows.fields) and isinstance(made, list) == rows.is_tuple
        if not alike or any(f.shape[1:] != v.shape[1:] or f.dtype != v.dtype for f, v in zip(rows.fields, values)):
            rows.refused = "its samples have several shapes"
            return
        had = rows.known[places]
        for field, value in zip(rows.fields, values):
            if not np.array_equal(field[places[had]], value[had], equal_nan=value.dtype.kind == "f"):
                rows.refused = "rows computed at once differ from the loader's"
                return
            field[places] = value
        rows.known[places] = True
        rows.learned += 1


def _epoch(helper: Samples, loader: Any, rows: Rows, ahead: int, module: Any) -> Iterator[Any]:
    """Batches in the loader's order. Indices are drawn as early as the loader with workers draws them."""
    indices = iter(loader._batch_sampler)
    waiting: collections.deque[Any] = collections.deque()
    for _ in range(ahead):
        drawn = next(indices, None)
        if drawn is not None:
            waiting.append(drawn)
    return _batches(helper, loader, rows, indices, waiting)


def _batches(helper: Samples, loader: Any, rows: Rows, indices: Any, waiting: Any) -> Iterator[Any]:
    while True:
        drawn = next(indices, None)
        if drawn is not None:
            waiting.append(drawn)
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
