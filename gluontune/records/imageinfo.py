"""What an image file's own bytes say: its kind, size, channels, orientation, and whether it is complete.

Plain parsing, no decoder: fast enough to look at every file that is packed or verified.
"""

from __future__ import annotations

import struct
import zlib
from typing import Any, NamedTuple

__all__ = ["ImageError", "ImageInfo", "inspect", "kind_of"]

PNG = b"\x89PNG\r\n\x1a\n"
NPY = b"\x93NUMPY"
_SIZE_MARKERS = frozenset(range(0xC0, 0xD0)) - {0xC4, 0xC8, 0xCC}
_BARE_MARKERS = frozenset((0x01, *range(0xD0, 0xD9)))


class ImageError(ValueError):
    """Why an image cannot be used, in a few words."""


class ImageInfo(NamedTuple):
    """What is known without decoding.

    Args:
        kind: jpg, png, npy (raw pixels), or another format's name.
        width, height: pixels as stored, before ``orientation``; 0 where unknown.
        channels: of the stored image. bits: per channel; 0 where unknown.
        orientation: EXIF's 1 (upright) to 8.
        plain: every JPEG or PNG decoder gives the same upright 8-bit grey or RGB pixels.
    """

    kind: str
    width: int = 0
    height: int = 0
    channels: int = 0
    bits: int = 0
    orientation: int = 1
    plain: bool = False


def kind_of(data: Any) -> str | None:
    """The format that the first bytes announce, or None."""
    start = bytes(data[:16])
    if start[:3] == b"\xff\xd8\xff":
        return "jpg"
    if start[:8] == PNG:
        return "png"
    if start[:6] == NPY:
        return "npy"
    if start[:4] == b"RIFF" and start[8:12] == b"WEBP":
        return "webp"
    for sign, kind in ((b"GIF8", "gif"), (b"II*\0", "tiff"), (b"MM\0*", "tiff")):
        if start.startswith(sign):
            return kind
    if start[:2] == b"BM" and start[6:10] == b"\0\0\0\0":
        return "bmp"
    if start[:1] == b"P" and start[1:2] in b"123456" and start[2:3] in b" \t\r\n":
        return "pnm"
    return None


def inspect(data: bytes) -> ImageInfo:
    """Look at an image file's bytes.

    Args:
        data: the whole file.

    Raises:
        ImageError: empty, cut off, damaged where that shows without decoding, or no image.

    >>> inspect(b"GIF89a" + bytes(20)).kind
    'gif'
    >>> inspect(b"<html>")
    Traceback (most recent call last):
    gluontune.records.imageinfo.ImageError: not an image (begins with b'<html>')
    """
    if data[:3] == b"\xff\xd8\xff":
        return _inspect_jpeg(data)
    if not data:
        raise ImageError("empty file")
    kind = kind_of(data)
    if kind == "png":
        return _inspect_png(data)
    if kind is None:
        raise ImageError(f"not an image (begins with {bytes(data[:12])!r})")
    return ImageInfo(kind)


_last_jpeg: tuple[bytes, ImageInfo | None] = (b"-", None)


def _inspect_jpeg(data: bytes) -> ImageInfo:
    """The images of a set often have the same header, so the last one is remembered."""
    global _last_jpeg
    header, info = _last_jpeg
    if info is None or not data.startswith(header):
        at, info = _read_jpeg_header(data)
        header = data[: at + 2]
        _last_jpeg = (header, info)
    # Inside the image data 0xff is always followed by 0x00 or a restart marker, so this finds its true end.
    if not data.endswith(b"\xff\xd9", len(header)) and data.find(b"\xff\xd9", len(header)) < 0:
        raise ImageError("truncated JPEG (no end of image)")
    return info


def _read_jpeg_header(data: bytes) -> tuple[int, ImageInfo]:
    """Offset of the start-of-scan marker, and what stands before it."""
    at, size = 2, len(data)
    width = height = channels = bits = 0
    orientation = 1
    while True:
        if at + 4 > size:
            raise ImageError("truncated JPEG (it ends inside its header)")
        marker = data[at + 1]
        if data[at] != 0xFF or marker == 0:
            raise ImageError(f"damaged JPEG (no marker at byte {at})")
        if marker == 0xFF:  # fill byte
            at += 1
            continue
        if marker in _BARE_MARKERS:
            at += 2
            continue
        if marker in _SIZE_MARKERS and at + 10 <= size:
            bits = data[at + 4]
            height, width = data[at + 5] << 8 | data[at + 6], data[at + 7] << 8 | data[at + 8]
            channels = data[at + 9]
        elif marker == 0xDA:
            break
        elif marker == 0xE1 and data[at + 4 : at + 10] == b"Exif\0\0":
            orientation = _exif_orientation(data[at + 10 : at + 2 + (data[at + 2] << 8 | data[at + 3])])
        elif marker == 0xD9:
            raise ImageError("truncated JPEG (no image data)")
        at += 2 + (data[at + 2] << 8 | data[at + 3])
    if not (width and height and channels):
        raise ImageError("damaged JPEG (no image size)")
    plain = orientation == 1 and channels in (1, 3) and bits == 8
    return at, ImageInfo("jpg", width, height, channels, bits, orientation, plain)


def _exif_orientation(tiff: bytes) -> int:
    """Orientation (tag 0x0112) of the first directory; anything odd counts as upright."""
    order = {b"II": "<", b"MM": ">"}.get(bytes(tiff[:2]))
    if order is None or len(tiff) < 8:
        return 1
    start = struct.unpack_from(order + "I", tiff, 4)[0]
    if start + 2 > len(tiff):
        return 1
    for n in range(struct.unpack_from(order + "H", tiff, start)[0]):
        at = start + 2 + 12 * n
        if at + 12 > len(tiff):
            break
        tag, kind, _, value = struct.unpack_from(order + "HHIH", tiff, at)
        if tag == 0x0112:
            return value if kind == 3 and 1 <= value <= 8 else 1
    return 1


def _inspect_png(data: bytes) -> ImageInfo:
    """Every chunk of a PNG carries its own CRC, so damage shows for certain."""
    at, size = 8, len(data)
    header, orientation, transparent = b"", 1, False
    while True:
        if at + 12 > size:
            raise ImageError("truncated PNG")
        length = int.from_bytes(data[at : at + 4], "big")
        kind = bytes(data[at + 4 : at + 8])
        end = at + 8 + length
        if end + 4 > size:
            raise ImageError("truncated PNG")
        if zlib.crc32(data[at + 4 : end]) != int.from_bytes(data[end : end + 4], "big"):
            raise ImageError(f"damaged PNG (checksum of chunk {kind!r})")
        if kind == b"IHDR":
            header = bytes(data[at + 8 : end])
        elif kind == b"eXIf":
            orientation = _exif_orientation(data[at + 8 : end])
        elif kind == b"tRNS":
            transparent = True
        elif kind == b"IEND":
            break
        at = end + 4
    if len(header) != 13:
        raise ImageError("damaged PNG (no header)")
    width, height, bits, color = struct.unpack(">IIBB", header[:10])
    channels = {0: 1, 2: 3, 3: 3, 4: 2, 6: 4}.get(color, 0)
    plain = orientation == 1 and not transparent and bits == 8 and color in (0, 2)
    return ImageInfo(
        "png", width, height, channels + (transparent and channels < 4), bits, orientation, plain
    )
