"""Gluon datasets taken apart: whether their samples are the same each time, and many of them by one call."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from gluontune.capture.purity import branches, why_impure

_CHUNK_BYTES = 1 << 24

#: Transforms of ``gluon.data.vision.transforms`` that draw nothing.
_FIXED = ("Compose", "HybridCompose", "Cast", "ToTensor", "Normalize", "Resize", "CenterCrop", "Rotate")
_VISION = ("MNIST", "FashionMNIST", "CIFAR10", "CIFAR100")
_FILES = ("ImageFolderDataset", "ImageRecordDataset")


def why_not_pure(mx: Any, dataset: Any) -> str:
    """Why samples of ``dataset`` must not be kept; "" where each comes out the same each time."""
    data = mx.gluon.data
    vision, kind = data.vision, type(dataset)
    if isinstance(dataset, (mx.nd.NDArray, np.ndarray)):
        return ""
    if kind is data.ArrayDataset:
        return _first(why_not_pure(mx, part) for part in dataset._data if not isinstance(part, (list, tuple)))
    if kind is data.SimpleDataset:
        return "" if isinstance(dataset._data, (list, tuple)) else why_not_pure(mx, dataset._data)
    if kind is data.dataset._LazyTransformDataset:
        return why_not_pure(mx, dataset._data) or _why_not_fixed(mx, dataset._fn)
    if kind in (data.dataset._SampledDataset, data.dataset._FilteredDataset):
        return why_not_pure(mx, dataset._dataset)
    if kind in [getattr(vision, name) for name in (*_VISION, *_FILES) if hasattr(vision, name)]:
        return "" if dataset._transform is None else _why_not_fixed(mx, dataset._transform)
    if kind is data.RecordFileDataset or kind in (list, tuple):
        return ""
    return f"a {kind.__name__} of the script's"


def _first(reasons: Iterator[str]) -> str:
    return next((reason for reason in reasons if reason), "")


def _why_not_fixed(mx: Any, function: Any) -> str:
    """Why a transform must not be taken to give the same each time; "" where it may."""
    transforms = mx.gluon.data.vision.transforms
    if type(function) is mx.gluon.data.dataset._TransformFirstClosure:
        return _why_not_fixed(mx, function._fn)
    if isinstance(function, mx.gluon.Block):
        known = [getattr(transforms, name) for name in _FIXED if hasattr(transforms, name)]
        if type(function) not in (*known, mx.gluon.nn.Sequential, mx.gluon.nn.HybridSequential):
            return f"{type(function).__name__} may draw"
        return _first(_why_not_fixed(mx, child) for child in function._children.values())
    reason = why_impure(function)
    return f"of its transform {getattr(function, '__name__', '')}: {reason}" if reason else ""


class Bulk:
    """A dataset whose arrays are in memory, read and transformed at once; the caller compares with single samples."""

    def __init__(self, mx: Any, dataset: Any, arrays: list[Any], functions: list[Any], is_tuple: bool):
        self._mx, self._dataset, self._arrays, self._functions = mx, dataset, arrays, functions
        self.is_tuple = is_tuple

    @classmethod
    def of(cls, mx: Any, dataset: Any) -> Bulk | None:
        """The dataset's arrays and the transforms over them; None where it has none, or a transform decides."""
        data = mx.gluon.data
        functions: list[Any] = []
        while type(dataset_now := functions[0][0] if functions else dataset) is data.dataset._LazyTransformDataset:
            functions.insert(0, (dataset_now._data, dataset_now._fn))
        base = functions[0][0] if functions else dataset
        chain = [function for _, function in functions]
        if isinstance(base, data.ArrayDataset):
            arrays, single = list(base._data), len(base._data) == 1
        elif type(base).__name__ in _VISION and hasattr(base, "_data"):
            arrays, single = [base._data, base._label], False
            chain = [*([base._transform] if base._transform is not None else []), *chain]
        elif isinstance(base, (mx.nd.NDArray, np.ndarray)):
            arrays, single = [base], True
        elif type(base) is data.SimpleDataset and isinstance(base._data, (mx.nd.NDArray, np.ndarray)):
            arrays, single = [base._data], True
        else:
            return None
        kinds = (mx.nd.NDArray, np.ndarray)
        dense = all(isinstance(a, kinds) and getattr(a, "stype", "default") == "default" for a in arrays)
        if not dense or any(_decides(mx, function) for function in chain):
            return None
        found = cls(mx, dataset, arrays, chain, not single)
        try:
            found.is_tuple = isinstance(dataset[0], tuple)
        except Exception:
            return None
        return found

    def sample(self, place: int) -> list[Any] | None:
        """The parts of one sample as the dataset gives it, as numpy arrays."""
        found = self._dataset[place]
        if isinstance(found, tuple) != self.is_tuple:
            return None
        parts = found if self.is_tuple else (found,)
        known = all(hasattr(part, "dtype") or isinstance(part, (int, float)) for part in parts)
        return as_fields(found) if known else None

    def chunks(self) -> Iterator[tuple[int, list[Any]]]:
        """``(start, fields)`` of consecutive samples; a field has a row for each of them. Ends where it fails."""
        count, first = len(self._dataset), self.sample(0)
        if first is None:
            return
        step = max(1, min(count, _CHUNK_BYTES // max(1, sum(part.nbytes for part in first))))
        for start in range(0, count, step):
            try:
                fields = self._transformed(start, min(count, start + step))
            except Exception:
                return
            size = min(count, start + step) - start
            if len(fields) != len(first):
                return
            shaped = []
            for field, part in zip(fields, first):
                if field.size != size * part.size or field.dtype != part.dtype:
                    return
                shaped.append(field.reshape((size, *part.shape)))
            yield start, shaped

    def _transformed(self, start: int, stop: int) -> list[Any]:
        given: Any = tuple(array[start:stop] for array in self._arrays)
        given = given[0] if len(given) == 1 else given
        closure = self._mx.gluon.data.dataset._TransformFirstClosure
        for function in self._functions:
            if type(function) is closure:
                given = (function._fn(given[0]), *given[1:]) if isinstance(given, tuple) else function._fn(given)
            else:
                given = function(*given) if isinstance(given, tuple) else function(given)
        return as_fields(given)


def _decides(mx: Any, function: Any) -> bool:
    """Whether a transform may treat one sample otherwise than the next."""
    if type(function) is mx.gluon.data.dataset._TransformFirstClosure:
        return _decides(mx, function._fn)
    return False if isinstance(function, mx.gluon.Block) else branches(function)


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
