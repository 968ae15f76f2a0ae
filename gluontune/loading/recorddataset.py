"""A record file as a map-style data set, for PyTorch's own DataLoader and anything else that indexes."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any, Callable, Optional, Union

import numpy as np

from gluontune.codec import image
from gluontune.errors import GluontuneError, UsageError
from gluontune.loading.base import sample_error
from gluontune.records import RecordReader, boxes_of
from gluontune.runtime.pytorch import torch

__all__ = ["RecordDataset"]

KINDS = ("tensor", "numpy", "bytes")


class RecordDataset:
    """``dataset[i]`` is ``(image, label)``. One object serves all threads and forked or spawned workers at once.

    Reading is from a mapped file without a shared position, so that ``DataLoader(..., num_workers=8)`` reads right
    records, where a seek on a shared handle does not.

    Args:
        path: the ``.rec`` file; an ``.idx`` beside it is used.
        transform: called with the image.
        kind: ``tensor`` uint8 (C, H, W); ``numpy`` uint8 (H, W, C); ``bytes``, as they are packed.
        channels: 3 (RGB), 1 (grey) or 0 for what the image has.
        boxes: the label is that of a detection record; give its objects, see :func:`gluontune.records.boxes_of`.
        fields: ``dataset[i]`` is a mapping with these fields (``image``, ``label``, ``boxes``, ``mask``, …, as they
            were written; the image as ``kind`` says), and ``transform`` is called with it.

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
        self,
        path: Union[str, os.PathLike[str]],
        transform: Optional[Callable[[Any], Any]] = None,
        kind: str = "tensor",
        channels: int = 3,
        boxes: bool = False,
        fields: Optional[Sequence[str]] = None,
    ):
        if kind not in KINDS or channels not in (0, 1, 3):
            raise UsageError(f"kind={kind!r}, channels={channels}: kind is {', '.join(KINDS)}; channels 0, 1, 3")
        self.reader = RecordReader(path)
        self.transform, self.kind, self.channels, self.boxes = transform, kind, channels, boxes
        self.fields = None if fields is None else tuple(fields)

    def __len__(self) -> int:
        return len(self.reader)

    def name_of(self, index: int) -> str:
        """What an error calls this record."""
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
