"""What is kept of a loader's samples: rows that are filled by its own batches or at once, and looked at again."""

from __future__ import annotations

import collections
import math
import random
import statistics
import time
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import psutil

from gluontune.capture.helpers.base import Helper
from gluontune.capture.helpers.bulk import Bulk, as_fields, same_samples, why_not_pure
from gluontune.runtime import usable_cores
from gluontune.runtime.arrays import lent

#: Makes an array of the program's: of values that nobody else has, its type, and its context.
Giving = Callable[[np.ndarray, type, Any], Any]


class Rows:
    """What is kept of one loader's dataset."""

    def __init__(self, count: int, refused: str = ""):
        self.count, self.refused = count, refused
        self.fields: list[Any] = []  # an array for each part of a sample, a row for each sample
        self.known: Any = None  # which rows are filled
        self.is_tuple = False
        self.template: list[Any] | None = None  # type and context of each array of the loader's own batches
        self.learned = 0  # batches of the loader's own that were seen
        self.as_is_s, self.waits_s = (
            math.inf,
            list[float](),
        )  # of a sample of theirs, the fastest; for batches of workers
        self._cores = usable_cores()

    @property
    def whole(self) -> bool:
        return self.known is not None and bool(self.known.all())

    def as_is_seconds(self, count: int, workers: int) -> float:
        """How long the script would have waited for a batch of so many samples."""
        if self.waits_s:
            return statistics.median(self.waits_s)
        return self.as_is_s * count / (min(workers, self._cores) or 1)

    def forget(self) -> None:
        self.fields, self.known = [], None

    def batch(self, mx: Any, places: Any, giving: Giving | None) -> Any:
        """The batch of these samples. giving: makes its arrays, or returns None where MXNet is to make one."""
        made = []
        for field, (kind, context) in zip(self.fields, self.template or ()):
            values = field[places]
            array = None if giving is None else giving(values, kind, context)
            made.append(_array(mx, values, kind, context, giving is not None) if array is None else array)
        return made if self.is_tuple else made[0]


def _array(mx: Any, values: np.ndarray, kind: Any, context: Any, copied: bool) -> Any:
    """MXNet's array of values that nobody else has: over their memory, for a copy waits for MXNet's thread."""
    if not copied and context == mx.cpu(0):
        return lent(values, kind)
    make = mx.np.array if kind is mx.np.ndarray else mx.nd.array
    return make(values, dtype=values.dtype, ctx=context)


class Noted:
    """A batch sampler that notes what is drawn from it."""

    def __init__(self, sampler: Any):
        self._sampler = sampler
        self.drawn: collections.deque[Any] = collections.deque()

    def __iter__(self) -> Iterator[Any]:
        for indices in self._sampler:
            self.drawn.append(indices)
            yield indices

    def __len__(self) -> int:
        return len(self._sampler)


_MEMORY_SHARE = 0.25  # of what is available, for the rows of all loaders together
_SPOT_CHECKS = 2  # samples computed anew at the begin of each epoch
_CHECKED_ROWS = 8  # of the first batch, and of each chunk that was computed at once


class Keeping(Helper):
    """Keeps rows for each dataset of pure samples; who installs it sets ``_mx`` and ``_loader``, MXNet's class."""

    def __init__(self) -> None:
        super().__init__()
        self._mx: Any = None
        self._loader: Any = None
        self._left = psutil.virtual_memory().available * _MEMORY_SHARE
        self._random = random.Random(0)  # our own: the script's streams are not touched
        self._known: dict[Any, Rows] = {}  # by their dataset's id, and how batches are made of it

    def rows_of(self, loader: Any) -> Rows:
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

    def _goes_on(self, rows: Rows) -> bool:
        """Whether rows are kept; where they are not, why is noted."""
        if rows.refused:
            self.note(f"{self.name}: a loader is left as it is: {rows.refused}")
        return not rows.refused

    def _forget(self, key: Any) -> None:
        rows = self._known.pop(key, None)
        self._left += 0 if rows is None else sum(field.nbytes for field in rows.fields)

    def _rows(self, loader: Any) -> Rows:
        module = self._mx.gluon.data.dataloader
        if type(loader) is not self._loader or loader._pin_memory or loader._thread_pool:
            refused = "a loader of another kind"
        elif loader._batchify_fn not in (module.default_batchify_fn, module.default_mp_batchify_fn):
            refused = "batches are made by a function of the script's"
        else:
            refused = why_not_pure(self._mx, loader._dataset)
        rows = Rows(len(loader._dataset), refused)
        if self._goes_on(rows):
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
            rows.known[start : start + count] = True
            if start == 0 and (time.perf_counter() - began) * rows.count / count > 60:
                rows.forget()  # slower than can pay
                return

    def _allot(self, rows: Rows, kinds: list[tuple[Any, Any]], is_tuple: bool) -> bool:
        need = sum(int(np.prod(shape)) * np.dtype(dtype).itemsize for shape, dtype in kinds) * rows.count
        if need > self._left:
            rows.refused = f"its rows would take {need / 2**20:,.0f} MiB"
            return self._goes_on(rows)
        self._left -= need
        rows.fields = [np.empty((rows.count, *shape), dtype) for shape, dtype in kinds]
        rows.known, rows.is_tuple = np.zeros(rows.count, bool), is_tuple
        return True

    def still_true(self, loader: Any, rows: Rows) -> bool:
        """Whether samples computed anew are those that were kept."""
        if len(loader._dataset) != rows.count:
            rows.refused = "its length has changed"
        else:
            places = np.flatnonzero(rows.known)
            for _ in range(_SPOT_CHECKS if len(places) else 0):
                place = int(places[self._random.randrange(len(places))])
                if not same_samples(as_fields(loader._dataset[place]), [field[place] for field in rows.fields]):
                    rows.refused = "samples have changed since they were kept"
                    break
        return self._goes_on(rows)

    def learn(self, rows: Rows, places: Any, made: Any) -> None:
        """Keep a batch that the loader itself has made, where it is of the kind that can be kept."""
        if rows.refused:
            return
        try:
            rows.refused = self._why_not_learned(rows, places, made)
        except Exception as error:
            rows.refused = f"{type(error).__name__}: {error}"
        self._goes_on(rows)

    def _why_not_learned(self, rows: Rows, places: Any, made: Any) -> str:
        arrays = made if isinstance(made, list) else [made]
        if not all(isinstance(array, self._mx.nd.NDArray) and array.stype == "default" for array in arrays):
            return "its batches are no dense arrays"
        values = [array.asnumpy() for array in arrays]
        kinds = [(value.shape[1:], value.dtype) for value in values]
        if rows.known is None and not self._allot(rows, kinds, isinstance(made, list)):
            return rows.refused
        rows.template = rows.template or [(type(array), array.context) for array in arrays]
        alike = len(values) == len(rows.fields) and isinstance(made, list) == rows.is_tuple
        if not alike or any(f.shape[1:] != v.shape[1:] or f.dtype != v.dtype for f, v in zip(rows.fields, values)):
            return "its samples have several shapes"
        had = rows.known[places]
        for field, value in zip(rows.fields, values):
            if not np.array_equal(field[places[had]], value[had], equal_nan=value.dtype.kind == "f"):
                return "rows computed at once differ from the loader's"
            field[places] = value
        rows.known[places] = True
        rows.learned += 1
        return ""
