"""From an encoded image to its place in a batch: decode, crop, resize, flip, colour, without the GIL.

A JPEG file is decoded at the smallest scale (1, 1/2, 1/4, 1/8) that still covers the wanted image: fewer pixels,
averaged where a bilinear resize would skip. Sources: libjpeg-turbo's scaled IDCT; fast.ai's DAWNBench entry; FFCV.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import cv2
import numpy as np

from gluontune.codec import native
from gluontune.codec.header import ImageError, check_size, jpeg_header, jpeg_is_whole, kind_of, png_is_whole
from gluontune.codec.image import in_channels, raw_to_pixels
from gluontune.core.errors import GluontuneError
from gluontune.loading.augment import Augment, Box, Draws

_REDUCED = {
    3: {2: cv2.IMREAD_REDUCED_COLOR_2, 4: cv2.IMREAD_REDUCED_COLOR_4, 8: cv2.IMREAD_REDUCED_COLOR_8},
    1: {2: cv2.IMREAD_REDUCED_GRAYSCALE_2, 4: cv2.IMREAD_REDUCED_GRAYSCALE_4, 8: cv2.IMREAD_REDUCED_GRAYSCALE_8},
}
_NOTHING = np.zeros(1, np.uint8)
_FULL = {3: cv2.IMREAD_COLOR, 1: cv2.IMREAD_GRAYSCALE}


class Decoder:
    """Decodes images into a batch; one for each thread. Without ``scaled`` every pixel of a JPEG file is decoded."""

    def __init__(self, image_shape: tuple[int, int, int], augment: Augment, scaled: bool = True):
        self.shape = image_shape
        self.augment, self.scaled = augment, scaled
        self._library = native.load()
        self._handle = self._library.gt_new() if self._library is not None else None

    def __del__(self) -> None:
        if getattr(self, "_handle", None):
            self._library.gt_free(self._handle)
            self._handle = None

    def into(self, out: np.ndarray, payload: Any, draws: Draws, i: int) -> None:
        """Decode ``payload`` into ``out`` (H, W, C) uint8, as image ``i`` of the batch of ``draws``."""
        data = memoryview(payload)
        if data.ndim != 1 or data.itemsize != 1:
            data = data.cast("B")
        if len(data) == 0:
            raise GluontuneError("the record is empty")
        kind = kind_of(data[:16])
        if kind == "npy":
            self._raw(out, data, draws, i)
            return
        if kind == "jpg":
            code = int(self.many(out[np.newaxis], [data], draws, i)[0])
            if code == native.OK:
                return
            if code == native.TRUNCATED:
                raise GluontuneError("a truncated JPEG image: its data ends early")
            if code == native.BROKEN:
                why = self._library.gt_message(self._handle).decode(errors="replace")
                raise GluontuneError(f"a broken JPEG image: {why}")
        pixels, box = self._pixels(data, draws, i)
        self._place(out, pixels, box, draws, i)

    def many(self, out: np.ndarray, payloads: Sequence[Any], draws: Draws, first: int) -> np.ndarray:
        """Decode JPEG files into ``out`` (n, H, W, C), as images ``first`` … of the batch, in one compiled call.

        Returns int32 (n,): 0 for decoded images. :meth:`into` decodes the others, or raises.
        """
        if not self._handle:
            return np.full(len(payloads), native.UNSUPPORTED, np.int32)
        data = [np.frombuffer(payload, np.uint8) if len(payload) else _NOTHING for payload in payloads]
        addresses = np.array([one.__array_interface__["data"][0] for one in data], np.uintp)
        lengths = np.array([one.size for one in data], np.uintp)
        return self.at(out, addresses, lengths, draws, first)

    def at(self, out: np.ndarray, addresses: np.ndarray, lengths: np.ndarray, draws: Draws, first: int) -> np.ndarray:
        """:meth:`many` for JPEG files in memory: ``addresses`` and ``lengths``, uintp (n,)."""
        n, library = len(addresses), self._library
        codes, headers = np.full(n, native.UNSUPPORTED, np.int32), np.empty((n, 8), np.int32)
        library.gt_headers(n, addresses.ctypes.data, lengths.ctypes.data, headers.ctypes.data)
        boxes, eighths = np.zeros((n, 4), np.int32), np.zeros(n, np.int32)
        for same, height, width in self._alike(headers, draws):
            box, by = self._wanted(draws, first + int(same[0]), height, width)
            if by:
                codes[same], boxes[same], eighths[same] = native.OK, box, 8 // by
        flips = None if draws.flip is None else draws.flip[first : first + n].astype(np.uint8)
        offsets = None if draws.offsets is None else draws.offsets[first : first + n].astype(np.int64)
        library.gt_decode_many(
            self._handle, n, addresses.ctypes.data, lengths.ctypes.data, boxes.ctypes.data, eighths.ctypes.data,
            None if flips is None else flips.ctypes.data, None if offsets is None else offsets.ctypes.data,
            self.augment.pad, *self.shape, out.ctypes.data, codes.ctypes.data,
        )  # fmt: skip
        if draws.finishes:
            for k in np.flatnonzero(codes == native.OK).tolist():
                draws.finish(out[k], first + k)
        return codes

    def _alike(self, headers: np.ndarray, draws: Draws) -> Iterator[tuple[np.ndarray, int, int]]:
        """Whole, upright images with equal boxes: their numbers, height and width."""
        fit = np.flatnonzero((headers[:, 7] == native.OK) & (headers[:, 6] == 1) & (headers[:, 4] == 1))
        sizes = headers[fit, :2]
        if draws.uniforms is None and len(fit) and (sizes == sizes[0]).all():
            yield fit, int(sizes[0, 0]), int(sizes[0, 1])
        else:
            for k, (height, width) in zip(fit[:, np.newaxis], sizes.tolist()):
                yield k, height, width

    def _wanted(self, draws: Draws, i: int, height: int, width: int) -> tuple[Box, int]:
        """The box of image ``i`` and its reduction in decoding; 0 if OpenCV must average."""
        box = self.augment.box(draws, i, height, width, self.shape)
        by = reduction(box, self.shape) if self.scaled else 1
        shrink = min(box[2] / self.shape[0], box[3] / self.shape[1])
        return box, 0 if shrink >= 2 * by and box[2:] != self.shape[:2] else by

    def _raw(self, out: np.ndarray, data: memoryview, draws: Draws, i: int) -> None:
        """Crop, resize and flip raw pixels."""
        height, width, channels = self.shape
        try:
            pixels = raw_to_pixels(data)
            top, left, box_h, box_w = self.augment.box(draws, i, pixels.shape[0], pixels.shape[1], self.shape)
            part = in_channels(pixels[top : top + box_h, left : left + box_w], channels)
        except ImageError as error:
            raise GluontuneError(str(error)) from error
        place = out[:, :, 0] if channels == 1 else out
        if draws.offsets is not None:
            self._pad_crop_flip(out, fit(part, width, height), draws, i)
        elif draws.flip is not None and draws.flip[i]:
            cv2.flip(fit(part, width, height), 1, dst=place)
        else:
            fit(part, width, height, place)
        if draws.finishes:
            draws.finish(out, i)

    def _pixels(self, data: memoryview, draws: Draws, i: int) -> tuple[np.ndarray, Box]:
        """The decoded image (BGR or grey), perhaps scaled down, and the wanted box in it."""
        channels, flag, header = self.shape[2], _FULL[self.shape[2]], None
        kind = kind_of(data[:16])
        if kind == "jpg":
            try:
                header = jpeg_header(data)
            except ImageError as error:
                raise GluontuneError(f"a broken JPEG image: {error}") from error
            if not jpeg_is_whole(data, header.scan):
                raise GluontuneError("a truncated JPEG image: its end is missing")
        elif kind == "png" and not png_is_whole(data):
            raise GluontuneError("a truncated PNG image: its end is missing")
        try:
            check_size(data, kind, header)
        except ImageError as error:
            fault = str(error) if kind is None else f"an image that is too large: {error}"
            raise GluontuneError(fault) from error
        box = None
        if header is not None and header.orientation == 1:
            box = self.augment.box(draws, i, header.height, header.width, self.shape)
            if self.scaled:
                flag = _REDUCED[channels].get(reduction(box, self.shape), flag)
        pixels = cv2.imdecode(np.frombuffer(data, np.uint8), flag)
        if pixels is None:
            raise GluontuneError("no image that OpenCV can decode")
        height, width = pixels.shape[:2]
        if box is None or header is None:
            return pixels, self.augment.box(draws, i, height, width, self.shape)
        if (height, width) != (header.height, header.width):
            box = scale_box(box, height / header.height, width / header.width, height, width)
        return pixels, box

    def _place(self, out: np.ndarray, pixels: np.ndarray, box: Box, draws: Draws, i: int) -> None:
        height, width, channels = self.shape
        top, left, box_h, box_w = box
        part = fit(pixels[top : top + box_h, left : left + box_w], width, height)
        if channels == 3:
            part = cv2.cvtColor(part, cv2.COLOR_BGR2RGB)
        self._pad_crop_flip(out, part, draws, i)
        if draws.finishes:
            draws.finish(out, i)

    def _pad_crop_flip(self, out: np.ndarray, part: np.ndarray, draws: Draws, i: int) -> None:
        """Finish an image of the wanted size: reflect-pad and crop, flip, into its place."""
        height, width, _ = self.shape
        if draws.offsets is not None:
            pad = self.augment.pad
            part = cv2.copyMakeBorder(part, pad, pad, pad, pad, cv2.BORDER_REFLECT_101)
            y, x = draws.offsets[i]
            part = part[y : y + height, x : x + width]
        if draws.flip is not None and draws.flip[i]:
            part = cv2.flip(part, 1)
        out[...] = part.reshape(out.shape)


def fit(part: np.ndarray, width: int, height: int, out: np.ndarray | None = None) -> np.ndarray:
    """``part`` with the wanted size: into ``out`` if given; averaged if halved or more."""
    if part.shape[:2] == (height, width):
        if out is not None:
            out[...] = part.reshape(out.shape)
        return part if out is None else out
    shrink = min(part.shape[0] / height, part.shape[1] / width)
    how = cv2.INTER_AREA if shrink >= 2 else cv2.INTER_LINEAR
    return cv2.resize(part, (width, height), dst=out, interpolation=how)


def reduction(box: Box, shape: tuple[int, int, int]) -> int:
    """The factor (1, 2, 4, 8) by which the box may be decoded smaller and still cover the wanted size."""
    room = min(box[2] / shape[0], box[3] / shape[1])
    return 8 if room >= 8 else 4 if room >= 4 else 2 if room >= 2 else 1


def scale_box(box: Box, by_h: float, by_w: float, height: int, width: int) -> Box:
    """``box`` in an image decoded ``by_h`` × ``by_w`` as large, clipped to it."""
    h, w = max(1, round(box[2] * by_h)), max(1, round(box[3] * by_w))
    top, left = min(round(box[0] * by_h), height - h), min(round(box[1] * by_w), width - w)
    return max(0, top), max(0, left), min(h, height), min(w, width)
