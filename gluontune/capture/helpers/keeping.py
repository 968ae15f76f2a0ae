"""What is kept of a loader's samples: rows that are filled by its own batches or at once, and looked at again."""

from __future__ import annotations

import random
import time
import weakref
from typing import Any

import numpy as np
import psutil

from gluontune.capture.helpers.base import Helper
from gluontune.capture.helpers.bulk import Bulk, why_not_pure
from gluontune.capture.helpers.rows import Rows, as_fields, same_samples

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
            assert rows.known is not None
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
        rows.allot(kinds, is_tuple)
        return True

    def still_true(self, loader: Any, rows: Rows) -> bool:
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
        return self._goes_on(rows)

    def learn(self, rows: Rows, places: Any, made: Any) -> None:
        """Keep a batch that the loader itself has made, where it is of the kind that can be kept."""
        if rows.refused:
            return
        try:
            self._learn(rows, places, made)
        except Exception as error:
            rows.refused = f"{type(error).__name__}: {error}"
        self._goes_on(rows)

    def _learn(self, rows: Rows, places: Any, made: Any) -> None:
        arrays = made if isinstance(made, list) else [made]
        if not all(isinstance(array, self._mx.nd.NDArray) and array.stype == "default" for array in arrays):
            rows.refused = "its batches are no dense arrays"
            return
        values = [array.asnumpy() for array in arrays]
        kinds = [(value.shape[1:], value.dtype) for value in values]
        if rows.known is None and not self._allot(rows, kinds, isinstance(made, list)):
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
