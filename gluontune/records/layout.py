"""The bytes of a RecordIO file: framing, the split at an embedded magic number, the image header.

A file is a sequence of *parts*, each starting at a multiple of four::

    magic 0xced7230a | flag (3 bits) and length (29 bits) | body | zeros up to a multiple of four

Flag 0 is a record in one part. A body never has the magic number at a multiple of four: the writer cuts the record
there and drops the four bytes; the parts have flag 1 (first), 2 (middle), 3 (last), and the reader inserts the number
again. So in a sound file every aligned magic number is a header, by which the verifier finds records after damage.
(Source: dmlc-core, ``src/recordio.cc``.)
"""

from __future__ import annotations

import math
import numbers
import struct
from collections.abc import Sequence
from typing import Any, NamedTuple, Union

import numpy as np

from gluontune.core.errors import GluontuneError, UsageError

MAGIC = struct.pack("<I", 0xCED7230A)
MAX_RECORD = 1 << 29  # records must be shorter: the length has 29 bits
MAX_KEY = (1 << 63) - 1
LENGTH_MASK = MAX_RECORD - 1
WHOLE, FIRST, MIDDLE, LAST = 0, 1, 2, 3

HEAD = struct.Struct("<II")  # magic, flag and length
IMAGE_HEAD = struct.Struct("<IfQQ")  # number of labels (0: the one in the header), label, id, id2
_PADDING = (b"", b"\0\0\0", b"\0\0", b"\0")

Label = Union[float, int, Sequence[float], np.ndarray]


class DamagedRecordError(GluontuneError):
    """A damaged record, described by ``message``. ``index`` is its position or None, ``offset`` its byte."""

    def __init__(self, message: str, index: int | None = None, offset: int | None = None):
        super().__init__(message)
        self.index, self.offset = index, offset


class IRHeader(NamedTuple):
    """The header in front of an image, with MXNet's field names.

    Args:
        flag: 0 for one label, else the number of labels.
        label: float, or float32 array of shape (flag,).
        id: the record's key. id2: higher bits of the id; 0.
    """

    flag: int
    label: Any
    id: int
    id2: int


def padded(length: int) -> int:
    """``length`` rounded up to a multiple of four."""
    return (length + 3) & ~3


def label_bytes(label: Label) -> tuple[int, float, bytes]:
    """``(flag, label field, bytes behind the header)`` for a label, in the layout of MXNet's ``pack``, as float32.

    >>> label_bytes(3), label_bytes([1.0, 2.0])[0]
    ((0, 3.0, b''), 2)
    >>> label_bytes(25130987)
    Traceback (most recent call last):
    gluontune.errors.UsageError: label 25130987: float32 would make it 25130988; ...
    """
    if type(label) is float and 1e-37 < abs(label) <= 16777216:
        return 0, label, b""  # the usual case, first
    if isinstance(label, numbers.Real):
        return 0, _as_float32(label), b""
    array = np.asarray(label)
    if array.dtype.kind not in "biuf" or array.size == 0:
        raise UsageError(f"label {label!r}: give a number or a sequence of numbers")
    for value in array.ravel().tolist():
        _as_float32(value)
    return array.size, 0.0, array.astype("<f4").tobytes()


def _as_float32(value: Any) -> float:
    number = float(value)
    if not math.isfinite(number):
        raise UsageError(f"label {value!r}: a label must be a finite number")
    if -16777216 <= number <= 16777216 and (number == 0 or abs(number) >= 1e-37):
        return number  # every whole number of this size is exact; the rest are rounded to 24 bits
    try:
        kept = struct.unpack("<f", struct.pack("<f", number))[0]
    except OverflowError:
        kept = 0.0
    if kept == 0:
        raise UsageError(f"label {value!r}: out of float32's range (1.2e-38 to 3.4e38)")
    # A float beyond 2^53 is a measurement, not a class or an id: it may be rounded like any other.
    counts = isinstance(value, numbers.Integral) or (number.is_integer() and abs(number) < 1 << 53)
    if counts and int(kept) != int(value):
        raise UsageError(
            f"label {value!r}: float32 would make it {int(kept)}; number the labels from 0, or split it into two"
        )
    return number


def image_record(payload: bytes, label: Label, key: int) -> bytes:
    """The record of one image: header, labels, payload; equal to ``mxnet.recordio.pack``."""
    flag, field, extra = label_bytes(label)
    return b"".join((IMAGE_HEAD.pack(flag, field, key, 0), extra, payload))


def frame(record: bytes) -> bytes:
    """The bytes of ``record`` in a file: header, body, padding, split at aligned magic numbers."""
    length = len(record)
    if length >= MAX_RECORD:
        raise UsageError(f"record of {length:,} bytes: the format's limit is 2^29 - 1 = {MAX_RECORD - 1:,}")
    at = record.find(MAGIC)
    if at < 0:
        return b"".join((MAGIC, length.to_bytes(4, "little"), record, _PADDING[length & 3]))
    pieces = []
    start = 0
    while at >= 0:
        if at & 3 == 0:
            flag = MIDDLE if start else FIRST
            pieces += [MAGIC, (flag << 29 | at - start).to_bytes(4, "little"), record[start:at]]
            start = at + 4
        at = record.find(MAGIC, at + 1)
    flag = LAST if start else WHOLE
    pieces += [MAGIC, (flag << 29 | length - start).to_bytes(4, "little"), record[start:]]
    return b"".join((*pieces, _PADDING[length & 3]))


def join_parts(buffer: Any, offset: int, end: int) -> tuple[bytes | memoryview, int]:
    """The record at ``offset`` of a file's memoryview, and the offset behind it; no part may reach past ``end``.

    A record in one part is a view of the file, one in several joined bytes, a damaged one a DamagedRecordError.
    """
    spans, behind = part_spans(buffer, offset, end)
    if len(spans) == 1:
        start, stop = spans[0]
        return buffer[start:stop], behind
    return MAGIC.join(buffer[start:stop] for start, stop in spans), behind


def part_spans(buffer: Any, offset: int, end: int) -> tuple[list[tuple[int, int]], int]:
    """Start and end of the body of each part of the record at ``offset``, and the offset behind it."""
    start = offset
    spans: list[tuple[int, int]] = []
    while True:
        if start + 8 > end:
            raise DamagedRecordError(f"the file ends inside the record at byte {offset:,}", offset=offset)
        magic, word = HEAD.unpack_from(buffer, start)
        flag, length = word >> 29, word & LENGTH_MASK
        if magic != 0xCED7230A:
            raise DamagedRecordError(f"no record starts at byte {start:,} (broken magic number)", offset=offset)
        if flag > LAST or (flag in (WHOLE, FIRST)) == bool(spans):
            raise DamagedRecordError(f"part flag {flag} does not fit at byte {start:,}", offset=offset)
        body = start + 8
        # The last padding may be missing in a file cut by other tools: the record is whole.
        if body + length > end:
            raise DamagedRecordError(
                f"the record at byte {offset:,} claims {length:,} bytes, more than there are", offset=offset
            )
        spans.append((body, body + length))
        start = body + padded(length)
        if flag in (WHOLE, LAST):
            return spans, start


def starts_record(buffer: Any, offset: int) -> bool:
    """Whether a first part's header is at ``offset``: later parts have a magic number, too.

    >>> starts_record(frame(b"abcd"), 0), starts_record(frame(b"abcd" + MAGIC + b"efgh"), 12)
    (True, False)
    """
    if offset + 8 > len(buffer):
        return False
    magic, word = HEAD.unpack_from(buffer, offset)
    return magic == 0xCED7230A and word >> 29 in (WHOLE, FIRST)


def split_image_record(record: Any) -> tuple[IRHeader, Any]:
    """Header and payload of an image record, views of it where possible; a DamagedRecordError if it is too short."""
    if len(record) < IMAGE_HEAD.size:
        raise DamagedRecordError(f"a record of {len(record)} bytes has no image header (24 bytes)")
    flag, label, key, id2 = IMAGE_HEAD.unpack_from(record)
    if flag == 0:
        return IRHeader(0, label, key, id2), record[24:]
    if len(record) < 24 + 4 * flag:
        raise DamagedRecordError(f"a record of {len(record):,} bytes cannot hold {flag:,} labels")
    labels = np.frombuffer(record, "<f4", flag, 24)
    return IRHeader(flag, labels, key, id2), record[24 + 4 * flag :]
