"""What an encoded image says of itself: size, orientation, and whether its end is there.

OpenCV fills what a truncated file lacks with grey and says nothing, so loaders look for themselves.
"""

from __future__ import annotations

import struct
from typing import NamedTuple

__all__ = ["JpegHeader", "is_jpeg", "jpeg_header", "png_is_whole"]

_SOF = frozenset(range(0xC0, 0xD0)) - {0xC4, 0xC8, 0xCC}


class JpegHeader(NamedTuple):
    """The frame of a JPEG file as it is stored, before its EXIF orientation is applied."""

    height: int
    width: int
    components: int
    orientation: int
    whole: bool


def is_jpeg(data: memoryview) -> bool:
    """Whether ``data`` begins as a JPEG file does."""
    return len(data) > 4 and data[0] == 0xFF and data[1] == 0xD8


def jpeg_header(data: memoryview) -> JpegHeader | None:
    """The header of a JPEG file, or None where it is broken.

    >>> import cv2, numpy as np
    >>> data = memoryview(cv2.imencode(".jpg", np.zeros((5, 7, 3), np.uint8))[1])
    >>> jpeg_header(data)
    JpegHeader(height=5, width=7, components=3, orientation=1, whole=True)
    >>> jpeg_header(data[:-9]).whole, jpeg_header(data[:30])
    (False, None)
    """
    at, end, orientation = 2, len(data), 1
    frame: tuple[int, int, int] | None = None
    while at + 4 <= end:
        if data[at] != 0xFF:
            return None
        marker = data[at + 1]
        if marker == 0xFF:  # fill byte
            at += 1
            continue
        length = data[at + 2] << 8 | data[at + 3]
        if length < 2:
            return None
        if marker == 0xDA:
            break
        if marker in _SOF and at + 10 <= end:
            frame = (data[at + 5] << 8 | data[at + 6], data[at + 7] << 8 | data[at + 8], data[at + 9])
        elif marker == 0xE1 and bytes(data[at + 4 : at + 10]) == b"Exif\0\0":
            orientation = exif_orientation(data[at + 10 : at + 2 + length])
        at += 2 + length
    if frame is None or not frame[0] or not frame[1]:
        return None
    # A file may carry bytes behind its end; only then is a search worth its time.
    whole = bytes(data[end - 2 :]) == b"\xff\xd9" or bytes(data[at:]).rfind(b"\xff\xd9") >= 0
    return JpegHeader(*frame, orientation, whole)


def exif_orientation(tiff: memoryview) -> int:
    """The orientation (1 … 8) that an EXIF block asks for; 1 where it says nothing sensible."""
    try:
        order = {b"II": "<", b"MM": ">"}[bytes(tiff[:2])]
        (directory,) = struct.unpack_from(order + "I", tiff, 4)
        (count,) = struct.unpack_from(order + "H", tiff, directory)
        for entry in range(min(count, 200)):
            tag, _, _, value = struct.unpack_from(order + "HHIH", tiff, directory + 2 + 12 * entry)
            if tag == 0x0112:
                return value if 1 <= value <= 8 else 1
    except (KeyError, struct.error):
        pass
    return 1


def png_is_whole(data: memoryview) -> bool:
    """Whether a PNG file has its end chunk (other formats count as whole: the decoder must judge)."""
    if bytes(data[:8]) != b"\x89PNG\r\n\x1a\n":
        return True
    return b"IEND" in bytes(data[-64:]) or b"IEND" in bytes(data)
