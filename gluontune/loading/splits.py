"""Splits over plain files and record files, for loaders that are used without a named data set."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from gluontune.core.errors import GluontuneError, UsageError
from gluontune.core.files import PathLike
from gluontune.datasets.split import FileSplit, RecordSplit, Split
from gluontune.records import RecordReader

__all__ = ["from_files", "from_records", "open_source", "seeded_subset"]


def from_files(files: Sequence[PathLike], labels: Sequence[int]) -> Split:
    """Image files and their class numbers, as a split that every loader reads.

    Args:
        files: paths of images. labels: an int for each.

    >>> len(from_files(["a.jpg", "b.jpg"], [0, 1]))
    2

    Raises:
        UsageError: not one label for each file.
    """
    numbers = np.asarray(labels, np.int64)
    if numbers.shape != (len(files),):
        raise UsageError(f"{len(files)} files but labels of shape {numbers.shape}")
    return FileSplit("files", "all", "", [os.fspath(f) for f in files], numbers, _classes(numbers))


def from_records(path: PathLike) -> Split:
    """All records of a ``.rec`` file in its order; an ``.idx`` beside it is used.

    Records that carry several labels give the first of them.

    Args:
        path: the ``.rec`` file.

    Raises:
        GluontuneError: no such file, damage that hides the records, or no records in it.
    """
    with RecordReader(path) as reader:
        if len(reader) == 0:
            raise GluontuneError(f"{os.fspath(path)}: the file holds no records")
        labels = np.asarray(reader.labels())
        numbers = (labels if labels.ndim == 1 else labels[:, 0]).astype(np.int64)
    return RecordSplit("records", "all", path, numbers, _classes(numbers))


def open_source(source: Any) -> Any:
    """A split from what a user names: a ``.rec`` file, a data set (its training part), or a split itself."""
    if not isinstance(source, (str, os.PathLike)):
        return source
    if Path(source).suffix == ".rec" or Path(source).is_file():
        return from_records(source)
    from gluontune import datasets

    return datasets.open(os.fspath(source)).train


def seeded_subset(split: Any, count: int | None, seed: int) -> Any:
    """The first ``count`` images of a seeded shuffle, in the split's order; all of them for None.

    >>> from gluontune import datasets
    >>> len(seeded_subset(datasets.open("sample").test, 100, seed=0))
    100
    """
    if count is None or count >= len(split):
        return split
    return split.subset(np.sort(np.random.default_rng(seed).permutation(len(split))[:count]))


def _classes(labels: np.ndarray) -> list[str]:
    return [str(k) for k in range(int(labels.max(initial=0)) + 1)] if labels.min(initial=0) >= 0 else []
