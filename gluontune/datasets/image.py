"""Encoded images: what kind, how large, and whether they are whole, told from their bytes without decoding.

OpenCV fills what a truncated JPEG file lacks with grey and reports nothing, so a truncated image would train
as noise. These checks find it in about a microsecond.
"""

from __future__ import annotations

import importlib
import struct
from typing import Any, NamedTuple

import numpy as np

__all__ = ["ImageFacts", "decode", "facts", "fault", "suffix"]

PNG = b"\x89PNG\r\n\x1a\n"
PNG_END = b"IEND\xaeB`\x82"
JPEG_END = b"\xff\xd9"
_FRAMES = frozenset(range(0xC0, 0xD0)) - {0xC4, 0xC8, 0xCC}


class ImageFacts(NamedTuple):
    """What the header of an image says: pixels and channels (1 grey, 3 colour)."""

    height: int
    width: int
    channels: int


def fault(data: Any) -> str | None:
    """Why these bytes are not a whole image, or None.

    JPEG and PNG files are checked for their end; other formats are left to the decoder.

    >>> fault(b""), fault(b"hello world"), fault(PNG + b"cut off")
    ('it is empty', 'it is not an image', 'a truncated PNG file: its end is missing')
    """
    view = memoryview(data)
    if len(view) == 0:
        return "it is empty"
    if view[:2] == b"\xff\xd8":
        # Bytes behind the end are legal and rare; only then is a search worth its time.
        whole = view[-2:] == JPEG_END or bytes(view).rfind(JPEG_END) > 0
        return None if whole else "a truncated JPEG file: its end is missing"
    if view[:8] == PNG:
        whole = view[-8:] == PNG_END or bytes(view).rfind(PNG_END) > 0
        return None if whole else "a truncated PNG file: its end is missing"
    head = bytes(view[:16])
    known = (
        head[:2] == b"BM" or head[8:12] == b"WEBP" or head[:4] in (b"II*\0", b"MM\0*") or head[:2] == b"P6"
    )
    return None if known else "it is not an image"


def facts(data: Any) -> ImageFacts | None:
    """Size and channels of an image; None where its header is broken.

    A JPEG file that its EXIF orientation turns on its side is reported as decoders show it.

    >>> import cv2
    >>> facts(cv2.imencode(".jpg", np.zeros((5, 7, 3), np.uint8))[1].tobytes())
    ImageFacts(height=5, width=7, channels=3)
    """
    view = memoryview(data)
    try:
        if view[:8] == PNG:
            width, height, _, colour = struct.unpack_from(">IIBB", view, 16)
            return ImageFacts(height, width, 1 if colour in (0, 4) else 3) if height and width else None
        if view[:2] == b"\xff\xd8":
            return _jpeg_facts(view)
        pixels = decode(view)
    except (struct.error, IndexError):
        return None
    return None if pixels is None else ImageFacts(*pixels.shape)


def _jpeg_facts(view: memoryview) -> ImageFacts | None:
    at, turned = 2, False
    while True:
        if view[at] != 0xFF:
            return None
        marker = view[at + 1]
        if marker == 0xFF:  # a fill byte
            at += 1
            continue
        (length,) = struct.unpack_from(">H", view, at + 2)
        if marker in _FRAMES:
            height, width, components = struct.unpack_from(">HHB", view, at + 5)
            if not height or not width:
                return None
            if turned:
                height, width = width, height
            return ImageFacts(height, width, 1 if components == 1 else 3)
        if marker == 0xDA or length < 2:
            return None
        if marker == 0xE1 and view[at + 4 : at + 10] == b"Exif\0\0":
            turned = _on_its_side(view[at + 10 : at + 2 + length])
        at += 2 + length


def _on_its_side(tiff: memoryview) -> bool:
    """Whether an EXIF block asks for a turn by 90 or 270 degrees (orientation 5 to 8)."""
    try:
        order = {b"II": "<", b"MM": ">"}[bytes(tiff[:2])]
        (start,) = struct.unpack_from(order + "I", tiff, 4)
        (count,) = struct.unpack_from(order + "H", tiff, start)
        for entry in range(min(count, 200)):
            tag, _, _, value = struct.unpack_from(order + "HHIH", tiff, start + 2 + 12 * entry)
            if tag == 0x0112:
                return 5 <= value <= 8
    except (KeyError, struct.error):
        pass
    return False


def decode(data: Any, channels: int = 0) -> np.ndarray | None:
    """Pixels as uint8 (H, W, C), RGB or grey; None where the decoder gives up.

    Args:
        data: the encoded image.
        channels: 3, 1, or 0 for what the image has.
    """
    cv2 = importlib.import_module("cv2")
    flag = {
        0: cv2.IMREAD_ANYCOLOR,
        1: cv2.IMREAD_GRAYSCALE,
        3: cv2.IMREAD_COLOR,
    }[channels]
    buffer = np.frombuffer(data, np.uint8)
    if not len(buffer):
        return None
    try:
        pixels = cv2.imdecode(buffer, flag)
    except cv2.error:
        return None
    if pixels is None:
        return None
    return pixels[:, :, None] if pixels.ndim == 2 else pixels[:, :, ::-1]


def suffix(data: Any) -> str:
    """``.png`` or ``.jpg`` (or the like) for these bytes.

    >>> suffix(PNG), suffix(bytes.fromhex("ffd8ff"))
    ('.png', '.jpg')
    """
    head = bytes(memoryview(data)[:12])
    if head[:8] == PNG:
        return ".png"
    if head[:2] == b"BM":
        return ".bmp"
    return ".webp" if head[8:12] == b"WEBP" else ".jpg"
