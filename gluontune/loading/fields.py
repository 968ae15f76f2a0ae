"""Batches of images with their fields: boxes and masks that move with the image, labels, text, arrays."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Union

import cv2
import numpy as np

from gluontune.codec.image import facts
from gluontune.core.errors import GluontuneError, UsageError
from gluontune.loading.augment import Augment, Box, Draws
from gluontune.loading.base import sample_error
from gluontune.loading.decode import Decoder
from gluontune.loading.threaded import ThreadedLoader
from gluontune.records import RecordReader
from gluontune.records.fields import is_mask


@dataclass(frozen=True)
class Motion:
    """The motion of an image's pixels: a box of it, stretched to the wanted size, shifted, mirrored.

    Args:
        size: height and width of the image. box: top, left, height, width of its part. shape: of the result, (H, W).
        shift: top and left of the crop in the result padded by ``pad``; (0, 0) with ``pad`` 0: none.
        pad: pixels. flip: mirrored left to right.
    """

    size: tuple[int, int]
    box: Box
    shape: tuple[int, int]
    shift: tuple[int, int] = (0, 0)
    pad: int = 0
    flip: bool = False

    @classmethod
    def of(cls, augment: Augment, draws: Draws, i: int, size: tuple[int, int], shape: tuple[int, ...]) -> Motion:
        """The motion of image ``i`` of a batch, by the same draws."""
        shift = (0, 0) if draws.offsets is None else (int(draws.offsets[i, 0]), int(draws.offsets[i, 1]))
        pad = 0 if draws.offsets is None else augment.pad
        flip = draws.flip is not None and bool(draws.flip[i])
        return cls(size, augment.box(draws, i, *size, tuple(shape)), (shape[0], shape[1]), shift, pad, flip)

    def boxes(self, rows: np.ndarray, visible: float = 0.3) -> np.ndarray:
        """Boxes in the result: clipped to its border; those with too little left are dropped.

        Args:
            rows: float32 (n, B): class, xmin, ymin, xmax, ymax in shares of the image, and more.
            visible: the least share of a box's area inside the result, 0 … 1.

        Returns:
            float32 (m, B), in shares of the result.

        >>> half = Motion((10, 20), (0, 10, 10, 10), (10, 10))  # the right half
        >>> half.boxes(np.array([[3, 0.25, 0, 0.75, 1], [4, 0, 0, 0.5, 1]], np.float32)).tolist()
        [[3.0, 0.0, 0.0, 0.5, 1.0]]
        """
        corners = rows[:, 1:5].astype(np.float64)
        for axis, columns in ((1, [0, 2]), (0, [1, 3])):  # x, then y
            start, extent = self.box[axis], self.box[axis + 2]
            corners[:, columns] = (corners[:, columns] * self.size[axis] - start) / extent
            corners[:, columns] += (self.pad - self.shift[axis]) / self.shape[axis]
        if self.flip:
            corners[:, [0, 2]] = 1 - corners[:, [2, 0]]
        cut = np.clip(corners, 0, 1)
        whole, left = (np.prod(c[:, 2:] - c[:, :2], axis=1) for c in (corners, cut))
        moved = np.array(rows, np.float32)
        moved[:, 1:5] = cut
        return moved[(left > 0) & (left >= visible * whole)]

    def mask(self, pixels: np.ndarray) -> np.ndarray:
        """A mask of the image's size (H, W), moved as the image, without blended values.

        >>> left = Motion((2, 4), (0, 0, 2, 2), (2, 2), flip=True)
        >>> left.mask(np.array([[1, 2, 3, 4], [5, 6, 7, 8]], np.uint8)).tolist()
        [[2, 1], [6, 5]]

        Raises:
            GluontuneError: it has another size than the image.
        """
        if pixels.shape != self.size:
            raise GluontuneError(
                f"the mask is {pixels.shape[0]}x{pixels.shape[1]}, the image {self.size[0]}x{self.size[1]}"
            )
        top, left, height, width = self.box
        part = pixels[top : top + height, left : left + width]
        if part.shape != self.shape:
            part = cv2.resize(part, self.shape[::-1], interpolation=cv2.INTER_NEAREST_EXACT)
        if self.pad:
            pad = self.pad
            part = cv2.copyMakeBorder(part, pad, pad, pad, pad, cv2.BORDER_REFLECT_101)
            y, x = self.shift
            part = part[y : y + self.shape[0], x : x + self.shape[1]]
        return part[:, ::-1] if self.flip else part


@dataclass(frozen=True)
class _FieldDraws(Draws):
    """The draws of a batch, and the fields read by the threads."""

    read: dict[str, list[Any]] = field(default_factory=dict)


class _FieldSplit:
    """The records of a file, as a split of samples with fields."""

    def __init__(self, path: Union[str, os.PathLike[str]]):
        self.reader = RecordReader(path)
        if not len(self.reader):
            raise GluontuneError(f"{os.fspath(path)}: the file holds no records")
        self.labels = np.zeros(len(self.reader), np.int64)

    def __len__(self) -> int:
        return len(self.reader)

    def name_of(self, index: int) -> str:
        return f"{self.reader.path}, record {index}"

    def read(self, index: int) -> Any:
        return self.reader.payload(index)


class FieldsLoader(ThreadedLoader):
    """``(images, fields)`` from a record file with named fields, or with detection labels.

    ``fields`` is a mapping by name: ``boxes`` float32 (N, M, B), M the most of any image of the batch (at least 1),
    padded with -1, as gluon-cv and ``ImageDetIter`` do; masks (N, H, W); numbers and arrays of one shape stacked;
    the rest as lists. One draw moves an image, its boxes and its masks.

    Args:
        path: the ``.rec`` file.
        fields: names; ``boxes`` also of records of ``im2rec --pack-label``.
        visible: boxes with less than this share inside the crop are dropped (0.3: ``ImageDetIter``'s).
        options: of :class:`gluontune.loading.ThreadedLoader`. ``augment="stretch-flip"`` keeps the whole image.

    Raises:
        UsageError: as :class:`ThreadedLoader`; an augmentation that would move the image without its boxes.
        GluontuneError: no such file; (while iterating) damage, or a record without the field; names it.

    >>> import pathlib, tempfile
    >>> from gluontune.records import RecordWriter
    >>> path = pathlib.Path(tempfile.mkdtemp()) / "a.rec"
    >>> image = cv2.imencode(".png", np.zeros((8, 16, 3), np.uint8))[1]
    >>> with RecordWriter(path) as writer:
    ...     writer.write_fields({"image": image.tobytes(), "boxes": [[3, 0, 0, 0.5, 1]], "caption": "a robin"})
    >>> options = {"batch_size": 1, "image_shape": (4, 4, 3), "augment": "stretch"}
    >>> with FieldsLoader(path, fields=["boxes", "caption"], **options) as loader:
    ...     images, fields = next(loader.epoch(0))
    >>> images.shape, fields["boxes"].tolist(), fields["caption"]
    ((1, 4, 4, 3), [[[3.0, 0.0, 0.0, 0.5, 1.0]]], ['a robin'])
    """

    name = "fields"

    def __init__(
        self, path: Union[str, os.PathLike[str]], *, fields: Sequence[str], visible: float = 0.3, **options: Any
    ):
        if isinstance(fields, str) or not fields:
            raise UsageError(f"fields={fields!r}: give a list of names, such as ['boxes', 'mask']")
        if not 0 <= visible <= 1:
            raise UsageError(f"visible={visible}: give 0 to 1")
        super().__init__(_FieldSplit(path), **options)
        self.fields, self.visible = tuple(fields), visible
        self._moving = [name for name in self.fields if name == "boxes" or is_mask(name)]
        if self._moving and self.augment.operations:
            raise UsageError(
                f"augment={self.augment.name!r} shears and turns images, and field {self._moving[0]!r} would stay; "
                "take one without RandAugment"
            )

    def draws(self, epoch: int, batch: int, indices: np.ndarray) -> Draws:
        """The draws of one batch, with room for its fields."""
        drawn = super().draws(epoch, batch, indices)
        return _FieldDraws(**vars(drawn), read={name: [None] * len(indices) for name in self.fields})

    def fill(
        self, decoder: Decoder, images: np.ndarray, indices: np.ndarray, draws: Draws, first: int, last: int
    ) -> None:
        """Decode samples ``indices[first:last]`` into ``images`` and their fields beside them."""
        super().fill(decoder, images, indices, draws, first, last)
        assert isinstance(draws, _FieldDraws)
        for k in range(first, last):
            index = int(indices[k])
            try:
                for name, value in self._fields(index, draws, k).items():
                    draws.read[name][k] = value
            except GluontuneError as error:
                raise sample_error(self.split, index, error) from error

    def _fields(self, index: int, draws: Draws, k: int) -> dict[str, Any]:
        values: dict[str, Any] = self.split.reader.fields(index, self.fields)
        if self._moving:
            size = facts(self.split.read(index))
            if size is None:
                raise GluontuneError("the image cannot be decoded")
            motion = Motion.of(self.augment, draws, k, size[:2], self.image_shape)
            for name in self._moving:
                how = motion.boxes(values[name], self.visible) if name == "boxes" else motion.mask(values[name])
                values[name] = how
        return values

    def targets(self, indices: np.ndarray, draws: Draws) -> dict[str, Any]:
        """The fields of one batch."""
        assert isinstance(draws, _FieldDraws)
        return {name: pad_boxes(rows) if name == "boxes" else _stacked(rows) for name, rows in draws.read.items()}


def pad_boxes(boxes: Sequence[np.ndarray]) -> np.ndarray:
    """The boxes of a batch as one array, float32 (N, M, B), padded with -1.

    Args:
        boxes: (n, B) of each image; n may be 0.

    >>> pad_boxes([np.zeros((0, 5)), np.ones((2, 5))])[:, :, 0].tolist()
    [[-1.0, -1.0], [1.0, 1.0]]
    """
    most, width = (max((b.shape[axis] for b in boxes), default=0) for axis in (0, 1))
    out = np.full((len(boxes), max(1, most), max(5, width)), -1, np.float32)
    for room, rows in zip(out, boxes):
        room[: rows.shape[0], : rows.shape[1]] = rows
    return out


def _stacked(values: list[Any]) -> Any:
    numeric = all(isinstance(v, (np.ndarray, int, float)) for v in values)
    return np.stack([np.asarray(v) for v in values]) if numeric and len({np.shape(v) for v in values}) == 1 else values
