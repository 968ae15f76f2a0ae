"""Gluon data sets over record files, and data sets cached in memory."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Callable, Optional, Union

import numpy as np
import psutil

from gluontune.codec import image
from gluontune.core.arrays import flat, mapped
from gluontune.core.errors import GluontuneError, UsageError
from gluontune.loading.base import sample_error
from gluontune.records import RecordReader, boxes_of
from gluontune.runtime import mxnet
from gluontune.runtime.pytorch import torch

# (limit, usage) of cgroup v2 and v1
_CGROUPS = (
    ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory.current"),
    ("/sys/fs/cgroup/memory/memory.limit_in_bytes", "/sys/fs/cgroup/memory/memory.usage_in_bytes"),
)


def usable_memory(cgroups: tuple[tuple[str, str], ...] = _CGROUPS) -> int:
    """Free bytes for this process, within the machine's memory and the container's limit."""
    free = int(psutil.virtual_memory().available)
    for files in cgroups:
        with contextlib.suppress(OSError, ValueError):  # "max" is no limit
            limit, usage = (int(Path(file).read_text()) for file in files)
            free = min(free, max(0, limit - usage))
    return free


_READ_TWICE = 64  # samples that are compared before all are cached
_SHARE = 0.5  # of the free memory


def keep_in_memory(dataset: Any) -> Any:
    """Read each sample of a Gluon data set once, transforms included, and cache it as numpy arrays.

    Gluon's loader reads and transforms every sample anew in each epoch. If a sample is the same each time, as after
    ``ToTensor`` or a resize, that work is done once here; the loader's batches are unchanged.

    Args:
        dataset: any Gluon data set that fits in half of the free memory.

    Raises:
        UsageError: a sample changes when it is read again (random transforms), or too many samples.

    >>> from gluontune.runtime import mxnet
    >>> gluon = mxnet().gluon
    >>> plain = gluon.data.ArrayDataset(np.arange(6, dtype="float32"), np.arange(6))
    >>> kept = keep_in_memory(plain.transform_first(lambda x: x / 2))
    >>> len(kept), [x for x, _ in gluon.data.DataLoader(kept, 3)][1].asnumpy().tolist()
    (6, [1.5, 2.0, 2.5])
    """
    other = redrawn(dataset, _READ_TWICE)
    if other is not None:
        raise UsageError(
            f"sample {other} of the data set is another one when it is read again (random transforms): it cannot be "
            "kept; leave it to Gluon's loader, or keep the data set below the random transforms"
        )
    count, free = len(dataset), usable_memory()
    needed, size, kept = count * sample_bytes(dataset), 0, list[Any]()
    for place in range(count):
        if max(needed, size) > _SHARE * free:  # the first sample may be a small one
            raise UsageError(
                f"{count:,} samples need {max(needed, size) / 2**30:.2g} GiB, and do not fit in half of the free "
                f"memory ({free / 2**30:.2g} GiB): leave them to Gluon's loader with workers"
            )
        kept.append(mapped(_numpy, dataset[place]))
        size += sum(array.nbytes for array in _arrays(kept[-1]))
    return mxnet().gluon.data.SimpleDataset(kept)


def redrawn(dataset: Any, count: int) -> int | None:
    """The first of ``count`` samples, spread over the data set, that changes when it is read again, or None.

    >>> redrawn([1, 2], 4) is None
    True
    """
    for place in np.unique(np.linspace(0, len(dataset) - 1, count).astype(int)):
        once, again = _arrays(dataset[int(place)]), _arrays(dataset[int(place)])
        if len(once) != len(again) or not all(map(np.array_equal, once, again)):
            return int(place)
    return None


def sample_bytes(dataset: Any) -> int:
    """Memory of the first sample, bytes.

    >>> sample_bytes([(np.zeros((2, 3), "float32"), 1)])
    32
    """
    return sum(array.nbytes for array in _arrays(dataset[0])) if len(dataset) else 0


def _numpy(value: Any) -> Any:
    """MXNet's arrays as numpy's; the rest is unchanged."""
    return value.asnumpy() if hasattr(value, "asnumpy") else value


def _arrays(sample: Any) -> list[np.ndarray]:
    return [np.asarray(_numpy(item)) for item in flat(sample)]


KINDS = ("tensor", "numpy", "bytes")


class RecordDataset:
    """``dataset[i]`` is ``(image, label)``. One object serves all threads and forked or spawned workers at once.

    Reading is from a mapped file without a shared position, so that ``DataLoader(..., num_workers=8)`` reads the right
    records, unlike seeks on a shared handle.

    Args:
        path: the ``.rec`` file; an ``.idx`` beside it is used.
        transform: called with the image.
        kind: ``tensor`` uint8 (C, H, W); ``numpy`` uint8 (H, W, C); ``bytes``, as packed.
        channels: 3 (RGB), 1 (grey) or 0: as in the image.
        boxes: return the objects of a detection record's label, see :func:`gluontune.records.boxes_of`.
        fields: ``dataset[i]`` is a mapping with these fields (``image``, ``label``, ``boxes``, ``mask``, …, as written;
            the image by ``kind``), which ``transform`` is called with.

    Raises:
        GluontuneError: no such file, or damage. UsageError: an unknown ``kind``.

    >>> import cv2, pathlib, tempfile
    >>> from gluontune.records import RecordWriter
    >>> path = pathlib.Path(tempfile.mkdtemp()) / "a.rec"
    >>> with RecordWriter(path) as writer:
    ...     writer.write(cv2.imencode(".png", np.full((4, 6, 3), 9, np.uint8))[1].tobytes(), label=7)
    >>> dataset = RecordDataset(path, kind="numpy")
    >>> pixels, label = dataset[0]
    >>> len(dataset), pixels.shape, label
    (1, (4, 6, 3), 7)
    """

    def __init__(
        self, path: Union[str, os.PathLike[str]], transform: Optional[Callable[[Any], Any]] = None,
        kind: str = "tensor", channels: int = 3, boxes: bool = False, fields: Optional[Sequence[str]] = None,
    ):  # fmt: skip
        if kind not in KINDS or channels not in (0, 1, 3):
            raise UsageError(f"kind={kind!r}, channels={channels}: kind is {', '.join(KINDS)}; channels 0, 1, 3")
        self.reader = RecordReader(path)
        self.transform, self.kind, self.channels, self.boxes = transform, kind, channels, boxes
        self.fields = None if fields is None else tuple(fields)

    def __len__(self) -> int:
        return len(self.reader)

    def name_of(self, index: int) -> str:
        """The name of this record in errors."""
        return f"{self.reader.path}: record {index}"

    def __getitem__(self, index: int) -> Any:
        index = index.__index__()
        if not -len(self) <= index < len(self):
            raise IndexError(f"{self.reader.path}: no record {index}: there are {len(self):,}")
        index %= len(self)
        if self.fields is not None:
            sample = self.reader.fields(index, self.fields)
            if "image" in sample:
                sample["image"] = self._picture(index, sample["image"])
            return sample if self.transform is None else self.transform(sample)
        header, payload = self.reader.unpack(index)
        picture = self._picture(index, payload)
        if self.boxes:
            try:
                objects = boxes_of(header.label)
            except GluontuneError as error:
                raise sample_error(self, index, error) from error
            return picture if self.transform is None else self.transform(picture), objects
        label: Any = np.array(header.label, np.float32) if np.ndim(header.label) else float(header.label)
        if isinstance(label, float) and label.is_integer():
            label = int(label)
        return picture if self.transform is None else self.transform(picture), label

    def _picture(self, index: int, payload: Any) -> Any:
        if self.kind == "bytes":
            return bytes(payload)
        pixels = image.decode(payload, self.channels)
        if pixels is None:
            raise sample_error(self, index, GluontuneError("the image cannot be decoded"))
        if self.kind == "numpy":
            return np.ascontiguousarray(pixels)
        return torch().from_numpy(np.ascontiguousarray(pixels.transpose(2, 0, 1)))
