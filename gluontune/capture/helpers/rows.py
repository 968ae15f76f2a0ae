"""Rows: what is kept of one loader's dataset, and how a sample is compared with them."""

from __future__ import annotations

import collections
import math
import statistics
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from gluontune.runtime import usable_cores
from gluontune.runtime.arrays import lent

#: Makes an array of the program's: of values that nobody else has, its type, and its context.
Giving = Callable[[np.ndarray, type, Any], Any]


class Rows:
    """What is kept of one loader's dataset.

    Attributes:
        fields: an array for each part of a sample, a row for each sample. known: which rows are filled.
        template: type and context of each array of the loader's own batches. learned: how many of those were seen.
        as_is_s: seconds that a sample of theirs took, in the fastest. waits_s: for batches of workers.
        refused: why nothing is kept.
    """

    def __init__(self, count: int, refused: str = ""):
        self.count, self.refused = count, refused
        self.fields: list[Any] = []
        self.known: Any = None
        self.is_tuple = False
        self.template: list[Any] | None = None
        self.as_is_s = math.inf
        self.learned = 0
        self.waits_s: list[float] = []
        self._cores = usable_cores()

    @property
    def whole(self) -> bool:
        """Whether every row is there."""
        return self.known is not None and bool(self.known.all())

    def as_is_seconds(self, count: int, workers: int) -> float:
        """How long the script would have waited for a batch of so many samples."""
        if self.waits_s:
            return statistics.median(self.waits_s)
        return self.as_is_s * count / (min(workers, self._cores) or 1)

    def allot(self, kinds: list[tuple[Any, Any]], is_tuple: bool) -> None:
        self.fields = [np.empty((self.count, *shape), dtype) for shape, dtype in kinds]
        self.known, self.is_tuple = np.zeros(self.count, bool), is_tuple

    def forget(self) -> None:
        self.fields, self.known = [], None

    def batch(self, mx: Any, places: Any, giving: Giving | None) -> Any:
        """The batch of these samples. giving: makes its arrays, or returns None where MXNet is to make one."""
        made = []
        assert self.template is not None
        for field, (kind, context) in zip(self.fields, self.template):
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


def as_fields(sample: Any) -> list[Any]:
    """The parts of one sample as numpy arrays."""
    parts = sample if isinstance(sample, tuple) else (sample,)
    return [part.asnumpy() if hasattr(part, "asnumpy") else np.asarray(part) for part in parts]


def same_samples(mine: list[Any], kept: list[Any]) -> bool:
    """Whether a sample's parts are those of kept rows, to the bit."""
    return len(mine) == len(kept) and all(
        a.shape == np.shape(b) and a.dtype == b.dtype and np.array_equal(a, b, equal_nan=a.dtype.kind == "f")
        for a, b in zip(mine, kept)
    )
