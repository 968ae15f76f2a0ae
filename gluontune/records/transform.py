"""The conversion of an image file's bytes to packed bytes: copied if possible, else encoded anew; or of a block of
files in one call of the compiled codec, without Python's lock.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import struct
from array import array
from collections import deque
from dataclasses import dataclass
from itertools import chain, repeat
from typing import Any

import numpy as np

from gluontune.codec import native
from gluontune.codec.header import ImageError, ImageInfo, inspect
from gluontune.codec.image import decode_image, pixels_to_raw, resize_image
from gluontune.codec.native import recode_jpeg, thread_state
from gluontune.core.errors import UsageError
from gluontune.records.layout import IMAGE_HEAD, label_bytes
from gluontune.records.sources import Item

FORMATS = ("keep", "jpg", "png", "raw")
COLORS = ("keep", "rgb", "grey")
LOSSY = ("jpg", "webp")
QUALITY = 95  # the default for JPEG


@dataclass(frozen=True)
class Transform:
    """The conversion of each image.

    By default a plain JPEG or PNG is copied byte for byte. Others, which decoders show differently, are made plain:
    turned upright by EXIF, CMYK, palette and 16-bit to 8-bit RGB or grey (value / 257), transparency blended over
    white; BMP, GIF, TIFF as PNG, WebP as JPEG.

    A JPEG that stays one and is not enlarged is resized plane by plane in the compiled codec (``recode_jpeg``); all
    others, and everything without the codec, by OpenCV. The results agree except for rounding and chroma, about 40 dB;
    each agrees with averaging the whole decoded image (INTER_AREA) to 36 dB.

    Args:
        resize: pixels of the shorter side; None: unchanged.
        crop: cut the middle square out after resizing.
        format: ``keep``, ``jpg``, ``png`` or ``raw`` (pixels as a ``.npy`` of (H, W, C) uint8, RGB).
        quality: JPEG quality 1 to 100; None: 95 for encoded images.
        color: ``keep``, ``rgb`` or ``grey``.
        exact: copy every file unchanged.
    """

    resize: int | None = None
    crop: bool = False
    format: str = "keep"
    quality: int | None = None
    color: str = "keep"
    exact: bool = False

    def __post_init__(self) -> None:
        for name, allowed in (("format", FORMATS), ("color", COLORS)):
            if getattr(self, name) not in allowed:
                raise UsageError(f"{name} {getattr(self, name)!r}: choose one of {', '.join(allowed)}")
        if self.resize is not None and not 1 <= self.resize <= 16384:
            raise UsageError(f"resize {self.resize}: give the shorter side in pixels, 1 to 16384")
        if self.quality is not None and not 1 <= self.quality <= 100:
            raise UsageError(f"quality {self.quality}: give 1 to 100")
        if self.quality is not None and self.format in ("png", "raw"):
            raise UsageError(f"quality {self.quality}: {self.format} loses nothing, so it has no quality")
        if self.exact and not self.copies:
            raise UsageError("exact copies every file untouched: give no resize, crop, format, quality or color")

    @property
    def copies(self) -> bool:
        """Whether most images are copied, so that reading dominates."""
        changes = (self.resize, self.crop, self.format, self.quality, self.color)
        return changes == (None, False, "keep", None, "keep")

    @property
    def recoding(self) -> tuple[int, int, int, int] | None:
        """The codec's conversion of most JPEG files, as ``gt_recoding``: shorter side, crop, channels, quality.

        None: copies, or pixels for OpenCV. 0 channels: unchanged.
        """
        if self.resize is None or self.format not in ("keep", "jpg"):
            return None
        return self.resize, self.crop, {"keep": 0, "grey": 1, "rgb": 3}[self.color], self.quality or QUALITY

    def __call__(self, data: bytes) -> tuple[bytes, bool]:
        """The bytes to pack, and whether they differ from ``data``; an ImageError if it is damaged or no image."""
        if self.exact:
            if not data:
                raise ImageError("empty file")
            return data, False
        info = inspect(data)
        if info.plain and self._can_copy(info):
            return data, False
        recoded = self._recode(data, info)
        if recoded is not None:
            return recoded, True
        image = decode_image(data, info, self.resize)
        return self._encode(self._shape(self._color(image), info), info), True

    def _recode(self, data: bytes, info: ImageInfo) -> bytes | None:
        """JPEG to JPEG in the compiled codec, or None."""
        grey = info.channels == 1 or self.color == "grey"
        fits = info.kind == "jpg" and info.plain and self.format in ("keep", "jpg")
        if not fits or (info.channels == 1 and self.color == "rgb"):
            return None
        if self.resize is not None and min(info.width, info.height) < self.resize:
            return None
        return recode_jpeg(data, self.resize, crop=self.crop, grey=grey, quality=self.quality or QUALITY)

    def _can_copy(self, info: ImageInfo) -> bool:
        return (
            self.format in ("keep", info.kind)
            and self.quality is None
            and (self.resize is None or min(info.width, info.height) == self.resize)
            and (not self.crop or info.width == info.height)
            and info.channels == {"keep": info.channels, "rgb": 3, "grey": 1}[self.color]
        )

    def _color(self, image: np.ndarray) -> np.ndarray:
        import cv2

        if self.color == "rgb" and image.ndim == 2:
            return cv2.cvtColor(image, cv2.COLOR_GRAY2BGR)
        if self.color == "grey" and image.ndim == 3:
            return cv2.cvtColor(image, cv2.COLOR_BGR2GRAY)
        return image

    def _shape(self, image: np.ndarray, info: ImageInfo) -> np.ndarray:
        height, width = image.shape[:2]
        if self.resize is not None:
            # The result's size follows from the whole image: a reduced one is rounded up to whole pixels.
            full = (info.width, info.height) if info.width and info.height else (width, height)
            full = full[::-1] if (full[0] < full[1]) != (width < height) else full
            by = self.resize / min(full)
            wanted = (max(self.resize, round(full[0] * by)), max(self.resize, round(full[1] * by)))
            scale = self.resize / min(height, width)
            if max(wanted) > 65500:
                raise ImageError(f"{width} x {height} pixels: too long and thin for a shorter side of {self.resize}")
            if wanted != (width, height):
                image = resize_image(image, wanted, scale)
        if self.crop:
            height, width = image.shape[:2]
            side = min(height, width)
            top, left = (height - side) // 2, (width - side) // 2
            image = np.ascontiguousarray(image[top : top + side, left : left + side])
        return image

    def _encode(self, image: np.ndarray, info: ImageInfo) -> bytes:
        import cv2

        if self.format == "raw":
            return pixels_to_raw(image[..., None] if image.ndim == 2 else cv2.cvtColor(image, cv2.COLOR_BGR2RGB))
        kind = self.format if self.format != "keep" else "jpg" if info.kind in LOSSY else "png"
        settings = [cv2.IMWRITE_JPEG_QUALITY, self.quality or QUALITY] if kind == "jpg" else []
        try:
            done, encoded = cv2.imencode(f".{kind}", image, settings)
        except cv2.error as error:
            raise ImageError(f"cannot be encoded as {kind}: {error.err}") from None
        if not done:
            raise ImageError(f"cannot be encoded as {kind}")
        return encoded.tobytes()


ROOM = 8 << 20  # bytes of records in one call


@dataclass(frozen=True)
class CopiedBlock:
    """Framed records of the first items, as many as possible."""

    data: memoryview  # of a buffer that `BulkCopier.give_back` reuses
    sizes: list[int]  # framed
    lengths: list[int]
    crcs: list[int]


class BulkCopier:
    """Makes records of plain JPEG files (of all files, if the transform is exact), up to the first unusual one."""

    def __init__(self, library: Any):
        self.codec = library
        self._free: deque[bytearray] = deque()

    @classmethod
    def find(cls) -> BulkCopier | None:
        """A copier for any number of threads, or None without a compiled codec."""
        library = native.load()
        return None if library is None else cls(library)

    def give_back(self, data: Any) -> None:
        """Reuse the allocated memory of a written :class:`CopiedBlock` for the next block."""
        if isinstance(data, memoryview) and isinstance(data.obj, bytearray):
            self._free.append(data.obj)

    def gather(self, items: list[Item], transform: Transform, check: bool = False) -> CopiedBlock:
        """Records of ``items`` from the first on, up to an unusual one."""
        recoding, state, options = transform.recoding, None, None
        if recoding is not None:
            options = (ctypes.c_int * 4)(*recoding)
        if recoding is not None or check:
            state = thread_state()
        if not transform.copies and state is None:
            return CopiedBlock(memoryview(b""), [], [], [])
        heads, sizes = _heads(items)
        count = len(sizes)
        paths = os.fsencode("\0".join([path for _, _, path in items[:count]])) + b"\0"
        results = array("I", bytes(12 * count))
        start = results.buffer_info()[0]
        try:
            buffer = self._free.pop()
        except IndexError:
            buffer = bytearray(ROOM)
        done = self.codec.gt_gather(
            paths, heads, sizes.buffer_info()[0], count, transform.exact, state and state.handle, options,
            ctypes.addressof(ctypes.c_char.from_buffer(buffer)), ROOM, start, start + 4 * count, start + 8 * count,
        )  # fmt: skip
        found = [results[k * count : k * count + done].tolist() for k in range(3)]
        return CopiedBlock(memoryview(buffer)[: sum(found[0])], *found)


def _heads(items: list[Item]) -> tuple[bytes, array[int]]:
    """The record header of each file, and their sizes: up to a label that float32 cannot hold."""
    keys, labels = [item.key for item in items], [item.label for item in items]
    with contextlib.suppress(UsageError):
        if set(map(type, labels)) == {float}:  # the usual case: all at once
            for label in set(labels):
                label_bytes(label)
            fields = chain.from_iterable(zip(repeat(0), labels, keys, repeat(0)))
            return struct.pack("<" + "IfQQ" * len(items), *fields), array("I", [IMAGE_HEAD.size]) * len(items)
    heads: list[bytes] = []
    sizes = array("I")
    with contextlib.suppress(UsageError):
        for key, label, _ in items:
            flag, field, extra = label_bytes(label)
            heads.append(IMAGE_HEAD.pack(flag, field, key, 0) + extra)
            sizes.append(len(heads[-1]))
    return b"".join(heads), sizes
