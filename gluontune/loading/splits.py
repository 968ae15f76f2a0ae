"""Splits over plain files and record files, for loaders that are used without ``gt.datasets``."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Union

import numpy as np

from gluontune.errors import GluontuneError, UsageError
from gluontune.files import explain_os_error

__all__ = ["FileSplit", "RecordSplit"]


class FileSplit:
    """Image files and their class numbers.

    Args:
        files: one image file a sample.
        labels: one class number a sample.

    >>> len(FileSplit(["a.jpg", "b.jpg"], [0, 1]))
    2
    """

    rec_path: Path | None = None

    def __init__(self, files: Sequence[Union[str, Path]], labels: Sequence[int]):
        self.paths = [Path(f) for f in files]
        self.labels = np.asarray(labels, np.int64)
        if self.labels.shape != (len(self.paths),):
            raise UsageError(f"{len(self.paths)} files but labels of shape {self.labels.shape}")

    def __len__(self) -> int:
        return len(self.paths)

    def read(self, index: int) -> bytes:
        """The encoded image of sample ``index``."""
        try:
            with open(self.paths[index], "rb", buffering=0) as stream:
                return stream.read()
        except OSError as error:
            raise explain_os_error(self.paths[index], error) from error

    def files(self) -> list[Path]:
        """One image file a sample."""
        return self.paths

    def name_of(self, index: int) -> str:
        """What an error calls the sample."""
        return str(self.paths[index])


class RecordSplit:
    """A ``.rec`` file: the images in its order, without copying them.

    Args:
        path: the ``.rec`` file; an ``.idx`` beside it is used. Records with several labels give the first.

    Raises:
        GluontuneError: no such file, or no records in it.
    """

    def __init__(self, path: Union[str, os.PathLike[str]]):
        from gluontune.records import RecordReader

        self.rec_path: Path | None = Path(path)
        self.reader: Any = RecordReader(path)
        if len(self.reader) == 0:
            raise GluontuneError(f"{path}: the file holds no records")
        labels = np.asarray(self.reader.labels())
        self.labels = (labels if labels.ndim == 1 else labels[:, 0]).astype(np.int64)

    def __len__(self) -> int:
        return len(self.reader)

    def read(self, index: int) -> memoryview:
        """The encoded image of sample ``index``, a view of the mapped file."""
        return self.reader.payload(index)

    def name_of(self, index: int) -> str:
        """What an error calls the sample."""
        return f"{self.rec_path}, record {index}"
