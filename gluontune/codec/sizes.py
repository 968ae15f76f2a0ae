"""The claimed size of an image, and whether it is too large: from its header, before memory is allocated.

A file of 500 bytes can claim 20,000 × 20,000 pixels; a decoder believes it and allocates gigabytes. Two checks prevent
that: is it more than :func:`max_pixels`, and can so few bytes hold so many pixels at all?

``GLUONTUNE_MAX_PIXELS`` sets the first limit; the default is 178,956,970 (a quarter of a GiB of RGB, as in Pillow). A
JPEG file in several scans (a progressive one) is held as coefficients until its end, two bytes for each: its limit is
0.75 of them for each allowed pixel, 256 MiB, and 500 scans, each of which visits all of them.
"""

from __future__ import annotations

import os
import re
import struct
from typing import Any

from gluontune.core.errors import UsageError

VARIABLE = "GLUONTUNE_MAX_PIXELS"
MAX_PIXELS = 178_956_970
MAX_SCANS = 500  # libjpeg-turbo's limit in its fuzzing
COEFFICIENTS = 0.75  # of one pixel, in a JPEG file of several scans
_SMALL = 1 << 22  # pixels: smaller images are not checked
_DEFLATE = 1032  # the most that a byte of a PNG can stand for (zlib's technical details)
_FLAT = 4096  # pixels of a byte of WebP, GIF, TIFF or packed BMP: more than any picture needs
_TIFF_SIZES = {3: "H", 4: "I"}


def max_pixels() -> int:
    """The most pixels that an image may have.

    >>> max_pixels()
    178956970
    """
    text = os.environ.get(VARIABLE)
    if text is None:
        return MAX_PIXELS
    if not text.isascii() or not text.isdigit() or not 0 < int(text) < 1 << 40:
        raise UsageError(f"{VARIABLE}={text!r}: give a whole number of pixels, from 1 to 2^40 - 1")
    return int(text)


def claimed_size(data: Any, kind: str) -> tuple[int, int] | None:
    """Width and height in a header of this kind, or None. For all formats except JPEG.

    >>> claimed_size(b"GIF89a" + struct.pack("<HH", 7, 5), "gif")
    (7, 5)
    """
    view = memoryview(data)
    try:
        if kind == "png" and bytes(view[12:16]) == b"IHDR":
            width, height = struct.unpack_from(">II", view, 16)
        elif kind == "gif":
            width, height = struct.unpack_from("<HH", view, 6)
        elif kind == "bmp":
            old = struct.unpack_from("<I", view, 14)[0] == 12
            width, height = map(abs, struct.unpack_from("<HH" if old else "<ii", view, 18))
        elif kind in ("webp", "pnm", "tiff"):
            width, height = {"webp": _webp_size, "pnm": _pnm_size, "tiff": _tiff_size}[kind](view)
        else:
            return None
    except (struct.error, ValueError, KeyError):
        return None
    return width, height


def too_large(
    kind: str, width: int, height: int, length: int, *, depth: int = 24, coefficients: int = 0, scans: int = 1
) -> str | None:
    """The reason why an image with this claimed size is refused, or None.

    Args:
        length: bytes of the file. depth: bits of a pixel (PNG; BMP and PNM, 0 if packed).
        coefficients: of a JPEG file in several scans; 0 for one scan. scans: their number.

    >>> too_large("jpg", 20000, 20000, 521)
    'it claims 20,000 x 20,000 pixels; at most 178,956,970 are taken (GLUONTUNE_MAX_PIXELS sets the limit)'
    >>> too_large("jpg", 9000, 9000, 521)
    'it claims 9,000 x 9,000 pixels, which 521 bytes cannot hold'
    """
    pixels = width * height
    if scans > MAX_SCANS:
        return f"a JPEG file in {scans:,} scans; at most {MAX_SCANS} are taken"
    if pixels <= _SMALL and VARIABLE not in os.environ:
        return None
    limit, claim = max_pixels(), f"it claims {width:,} x {height:,} pixels"
    way_out = f"({VARIABLE} sets the limit)"
    if pixels > limit:
        return f"{claim}; at most {limit:,} are taken {way_out}"
    if coefficients > COEFFICIENTS * limit:
        return f"{claim} in several scans; at most {int(COEFFICIENTS * limit):,} coefficients are taken {way_out}"
    if pixels > _SMALL and length < _least_bytes(kind, pixels, depth):
        return f"{claim}, which {length:,} bytes cannot hold"
    return None


def _least_bytes(kind: str, pixels: int, depth: int) -> int:
    """The smallest file that can hold so many pixels, bytes."""
    if kind == "jpg":  # Huffman codes take a bit for each block of 64 pixels at the least
        return pixels // 512
    if kind == "png":
        return pixels * depth // (8 * _DEFLATE)
    if kind in ("bmp", "pnm") and depth:
        return pixels * depth // 8
    return pixels // _FLAT


def pixel_bits(data: Any, kind: str) -> int:
    """Bits of a stored pixel, in the header of a PNG, BMP or PNM file; 0 for packed pixels.

    >>> pixel_bits(b"P6 7 5 255 ", "pnm"), pixel_bits(b"P4 7 5 ", "pnm")
    (24, 1)
    """
    view = memoryview(data)
    if kind == "png" and len(view) > 25:
        return int(view[24] * {0: 1, 2: 3, 3: 1, 4: 2, 6: 4}.get(view[25], 1))
    if kind == "pnm" and len(view) > 1:  # P1 may write its digits without a space in between
        return {"1": 8, "2": 16, "3": 48, "4": 1, "5": 8, "6": 24}.get(chr(view[1]), 1)
    if kind == "bmp" and len(view) > 33:
        old = struct.unpack_from("<I", view, 14)[0] == 12
        bits, packed = (struct.unpack_from("<H", view, 24)[0], 0) if old else struct.unpack_from("<HI", view, 28)
        return 0 if packed in (1, 2) else min(bits, 32)
    return 0


def _webp_size(view: memoryview) -> tuple[int, int]:
    kind = bytes(view[12:16])
    if kind == b"VP8X":
        return (int.from_bytes(view[24:27], "little") + 1, int.from_bytes(view[27:30], "little") + 1)
    if kind == b"VP8L":
        word = struct.unpack_from("<I", view, 21)[0]
        return (word & 0x3FFF) + 1, (word >> 14 & 0x3FFF) + 1
    width, height = struct.unpack_from("<HH", view, 26)
    return width & 0x3FFF, height & 0x3FFF


def _pnm_size(view: memoryview) -> tuple[int, int]:
    text = re.sub(rb"#[^\n]*\n?", b" ", bytes(view[2 : 1 << 16]))
    width, height = text.split(None, 2)[:2]
    return int(width), int(height)


def _tiff_size(view: memoryview) -> tuple[int, int]:
    order = "<" if bytes(view[:2]) == b"II" else ">"
    start = struct.unpack_from(order + "I", view, 4)[0]
    sizes: dict[int, int] = {}
    for n in range(struct.unpack_from(order + "H", view, start)[0]):
        tag, kind, _ = struct.unpack_from(order + "HHI", view, start + 2 + 12 * n)
        if tag in (256, 257) and kind in _TIFF_SIZES:
            value = struct.unpack_from(order + _TIFF_SIZES[kind], view, start + 10 + 12 * n)[0]
            sizes[tag] = max(value, sizes.get(tag, 0))  # a decoder may take either of two
    return sizes[256], sizes[257]
