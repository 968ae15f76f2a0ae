"""The header of an encoded image: kind, size, channels, orientation, and whether the file is complete.

Plain parsing without a decoder: fast enough for every file that is read, packed or verified. OpenCV silently fills the
missing part of a truncated file with grey, so all callers check here first. ``csrc/batch.c`` parses JPEG headers in
the same way.
"""

from __future__ import annotations

import struct
import zlib
from typing import Any, NamedTuple

from gluontune.codec.sizes import claimed_size, pixel_bits, too_large

PNG = b"\x89PNG\r\n\x1a\n"
PNG_END = b"IEND\xaeB`\x82"
JPEG_END = b"\xff\xd9"
NPY = b"\x93NUMPY"
_SIZE_MARKERS = frozenset(range(0xC0, 0xD0)) - {0xC4, 0xC8, 0xCC}
_BARE_MARKERS = frozenset((0x01, *range(0xD0, 0xD9)))


class ImageError(ValueError):
    """The reason why an image cannot be used, in a few words."""


class ImageInfo(NamedTuple):
    """The facts known without decoding.

    Args:
        kind: jpg, png, npy (raw pixels), or another format's name.
        width, height: pixels as stored, before ``orientation``; 0 if unknown.
        channels: of the stored image. bits: per channel; 0 if unknown.
        orientation: EXIF's 1 (upright) to 8.
        plain: every JPEG or PNG decoder returns the same upright 8-bit grey or RGB pixels.
    """

    kind: str
    width: int = 0
    height: int = 0
    channels: int = 0
    bits: int = 0
    orientation: int = 1
    plain: bool = False


class JpegHeader(NamedTuple):
    """The frame of a JPEG file as it is stored, before its EXIF orientation is applied.

    Args:
        height, width: pixels. components: 1 grey, 3 colour, 4 CMYK. bits: per component.
        orientation: EXIF's 1 (upright) to 8.
        scan: byte at which the image data begin.
        coefficients: of all scans together; 0 for a single scan.
        progressive: its scans refine one another.
    """

    height: int
    width: int
    components: int
    bits: int
    orientation: int
    scan: int
    coefficients: int = 0
    progressive: bool = False


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
    """The facts in an image file's header.

    Raises:
        ImageError: empty, cut off, visibly damaged, or no image.

    >>> inspect(b"GIF89a" + bytes(20)).kind
    'gif'
    >>> inspect(b"<html>")
    Traceback (most recent call last):
    gluontune.codec.header.ImageError: not an image (begins with b'<html>')
    """
    if data[:3] == b"\xff\xd8\xff":
        return _inspect_jpeg(data)
    if not data:
        raise ImageError("empty file")
    kind = kind_of(data)
    if kind == "png":
        return _inspect_png(data)
    check_size(data, kind)
    return ImageInfo(str(kind))


def check_size(data: Any, kind: str | None, header: JpegHeader | None = None) -> None:
    """Check an image's claimed size before it is decoded; see :mod:`gluontune.codec.sizes`.

    Raises:
        ImageError: too many pixels, or more than so few bytes can hold; or a kind without a known header, and so
            without a known size (JPEG 2000, OpenEXR, Radiance and the like).

    >>> check_size(b"GIF89a" + bytes([255] * 4), "gif")
    Traceback (most recent call last):
    gluontune.codec.header.ImageError: it claims 65,535 x 65,535 pixels; at most 178,956,970 are taken ...
    """
    if kind == "jpg":
        header = header or jpeg_header(data)
        scans = bytes(data[header.scan :]).count(b"\xff\xda") if header.progressive else 1
        why = too_large(kind, header.width, header.height, len(data), coefficients=header.coefficients, scans=scans)
    else:
        if kind is None:
            raise ImageError(f"not an image (begins with {bytes(data[:12])!r})")
        if kind == "npy":  # raw pixels, as many as bytes
            return
        size = claimed_size(data, kind)
        if size is None:
            raise ImageError(f"damaged {kind} (its header does not say how large it is)")
        why = too_large(kind, *size, len(data), depth=pixel_bits(data, kind))
    if why is not None:
        raise ImageError(why)


def fault(data: Any) -> str | None:
    """The reason why these bytes (or the first and last of them) are not a whole image, or None, by a quick check.

    JPEG and PNG files are checked for their end; other formats are left to the decoder.

    >>> fault(b""), fault(b"hello world"), fault(PNG + b"cut off")
    ('it is empty', 'it is not an image', 'a truncated PNG file: its end is missing')
    """
    view = memoryview(data)
    if len(view) == 0:
        return "it is empty"
    kind = kind_of(view[:16])
    if kind == "jpg":
        return None if jpeg_is_whole(view) else "a truncated JPEG file: its end is missing"
    if kind == "png":
        return None if png_is_whole(view) else "a truncated PNG file: its end is missing"
    return "it is not an image" if kind is None else None


def jpeg_is_whole(view: memoryview, scan: int = 2) -> bool:
    """Whether the end marker is behind byte ``scan``, the start of the image data.

    Inside the image data 0xff is always followed by 0x00 or a restart marker, so this finds its true end. A file may
    have bytes behind its end; only then is a search needed.
    """
    return view[-2:] == JPEG_END or bytes(view[scan:]).rfind(JPEG_END) >= 0


def png_is_whole(view: memoryview) -> bool:
    """Whether a PNG file has its end chunk."""
    return view[-8:] == PNG_END or bytes(view).rfind(PNG_END) >= 0


def suffix(data: Any) -> str:
    """``.png`` or ``.jpg`` (or the like) for these bytes.

    >>> suffix(PNG), suffix(bytes.fromhex("ffd8ff"))
    ('.png', '.jpg')
    """
    return f".{kind_of(memoryview(data)[:16]) or 'jpg'}"


_last_jpeg: tuple[bytes, ImageInfo | None, JpegHeader | None] = (b"-", None, None)


def _inspect_jpeg(data: bytes) -> ImageInfo:
    """The images of a set often have the same header, so the last one is cached."""
    global _last_jpeg
    start, info, header = _last_jpeg
    if info is None or header is None or not data.startswith(start):
        header = jpeg_header(data)
        plain = header.orientation == 1 and header.components in (1, 3) and header.bits == 8
        info = ImageInfo("jpg", header.width, header.height, *header[2:5], plain)
        start = data[: header.scan + 2]
        _last_jpeg = (start, info, header)
    check_size(data, "jpg", header)
    if not data.endswith(JPEG_END, len(start)) and data.find(JPEG_END, len(start)) < 0:
        raise ImageError("truncated JPEG (no end of image)")
    return info


def jpeg_header(data: Any) -> JpegHeader:
    """The frame in a JPEG file's header, parsed up to the first scan; an ImageError if it is damaged or ends too early.

    >>> import cv2, numpy as np
    >>> data = memoryview(cv2.imencode(".jpg", np.zeros((5, 7, 3), np.uint8))[1]).cast("B")
    >>> jpeg_header(data)
    JpegHeader(height=5, width=7, components=3, bits=8, orientation=1, scan=609, coefficients=0, progressive=False)
    >>> jpeg_header(data[:30])
    Traceback (most recent call last):
    gluontune.codec.header.ImageError: truncated JPEG (it ends inside its header)
    """
    at, size = 2, len(data)
    width = height = components = bits = 0
    orientation, frame, tables = 1, 0, []
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
        if marker == 0xD9:
            raise ImageError("truncated JPEG (no image data)")
        length = data[at + 2] << 8 | data[at + 3]
        if length < 2:
            raise ImageError(f"damaged JPEG (wrong length at byte {at})")
        if marker in _SIZE_MARKERS and at + 10 <= size:
            bits = data[at + 4]
            height, width = data[at + 5] << 8 | data[at + 6], data[at + 7] << 8 | data[at + 8]
            components, frame = data[at + 9], at
        elif marker == 0xDA:
            break
        elif marker in (0xC4, 0xDB):
            tables.append(at)
        elif marker == 0xE1 and data[at + 4 : at + 10] == b"Exif\0\0":
            orientation = _exif_orientation(data[at + 10 : at + 2 + length])
        at += 2 + length
    if not (width and height and components):
        raise ImageError("damaged JPEG (no image size)")
    if data[frame + 1] < 0xC3 and size > at + 4 and size >= at + 8 + 2 * data[at + 4]:
        _check_tables(data, frame, at, tables)
    progressive = data[frame + 1] & 3 == 2
    several = progressive or (at + 4 < size and data[at + 4] < components)
    coefficients = _coefficients(data, frame, width * height) if several else 0
    return JpegHeader(height, width, components, bits, orientation, at, coefficients, progressive)


def _check_tables(data: Any, frame: int, scan: int, tables: list[int]) -> None:
    """Refuse a file without the tables that its first scan names: a decoder would take those of the previous file, or
    standard ones, which may be wrong."""
    quants, codes = set(), set()
    for at in tables:
        place, end = at + 4, at + 2 + (data[at + 2] << 8 | data[at + 3])
        while data[at + 1] == 0xDB and place < end:
            quants.add(data[place] & 15)
            place += 129 if data[place] >> 4 else 65
        while data[at + 1] == 0xC4 and place + 17 <= end:
            codes.add(data[place])
            place += 17 + sum(data[place + 1 : place + 17])
    quant_of = {data[k]: data[k + 2] for k in range(frame + 10, min(scan - 2, frame + 10 + 3 * data[frame + 9]), 3)}
    parts = data[scan + 4]
    first, _, step = data[scan + 5 + 2 * parts : scan + 8 + 2 * parts]
    for k in range(scan + 5, scan + 5 + 2 * parts, 2):
        if quant_of.get(data[k], 0) not in quants:
            raise ImageError("a JPEG file without its quantization tables")
        ac, dc = 16 + (data[k + 1] & 15), data[k + 1] >> 4
        if data[frame + 1] == 0xC2:  # a progressive scan needs either; a refining one of DC none
            wanted = {ac} if first else set() if step >> 4 else {dc}
        else:
            wanted = {dc, ac}
        if not wanted <= codes:
            raise ImageError("a JPEG file without its Huffman tables (of Motion JPEG? jpegtran puts them in)")


def _coefficients(data: Any, frame: int, pixels: int) -> int:
    """A JPEG file's number of coefficients, from the sampling factors of its components."""
    factors = [data[k] for k in range(frame + 11, min(len(data), frame + 11 + 3 * data[frame + 9]), 3)]
    areas = [(f >> 4) * (f & 15) for f in factors]
    most = max((f >> 4 for f in factors), default=1) * max((f & 15 for f in factors), default=1)
    return pixels * sum(areas) // max(1, most)


def _exif_orientation(tiff: Any) -> int:
    """Orientation (tag 0x0112) of the first directory; an odd one counts as upright."""
    order = {b"II": "<", b"MM": ">"}.get(bytes(tiff[:2]))
    if order is None or len(tiff) < 14:
        return 1
    start = struct.unpack_from(order + "I", tiff, 4)[0]
    if start + 2 > len(tiff):
        return 1
    for n in range(min(200, struct.unpack_from(order + "H", tiff, start)[0])):
        at = start + 2 + 12 * n
        if at + 12 > len(tiff):
            break
        tag, kind, _, value = struct.unpack_from(order + "HHIH", tiff, at)
        if tag == 0x0112:
            return value if kind == 3 and 1 <= value <= 8 else 1
    return 1


def _inspect_png(data: bytes) -> ImageInfo:
    """Every chunk of a PNG has a CRC, which proves damage."""
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
    check_size(data, "png")
    width, height, bits, color = struct.unpack(">IIBB", header[:10])
    channels = {0: 1, 2: 3, 3: 3, 4: 2, 6: 4}.get(color, 0)
    plain = orientation == 1 and not transparent and bits == 8 and color in (0, 2)
    return ImageInfo("png", width, height, channels + (transparent and channels < 4), bits, orientation, plain)
