"""Named fields in a record: an image with boxes, masks, text, arrays and several labels.

A record with fields is an image record, with header and label in front, as MXNet writes and reads them. The image comes
first: decoders of JPEG and PNG stop at its end. The other fields follow it::

    image | bytes of field 1 | bytes of field 2 | … | directory | length of the directory, uint32
                                                                | CRC-32 of the directory, uint32
                                                                | END, eight bytes

The directory is JSON: a list of ``[name, kind, bytes, dtype, shape]`` for each field, in the order of their bytes.
Kinds: ``array`` (little-endian, C order; a number has the shape []), ``text`` (UTF-8), ``bytes``, ``mask`` (a PNG file
of one channel, 8 or 16 bits) and ``boxes`` (no bytes: they are in the label, see :func:`boxes_to_label`). A record of
only an image and a label, or an image and boxes, has no directory: it equals MXNet's to the byte.

Boxes have the layout of ``im2rec --pack-label`` and gluon-cv in a label: ``[A, B, …header to A numbers, object 0,
object 1, …]``: A numbers of header, B for each object, which begins with ``class, xmin, ymin, xmax, ymax`` as shares of
the image's width and height. (MXNet's documentation of ``ImageDetIter``; gluon-cv, "Prepare your dataset in ImageRecord
format".)
"""

from __future__ import annotations

import json
import math
import struct
import zlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from gluontune.codec.header import check_size, png_is_whole
from gluontune.core.errors import GluontuneError, UsageError
from gluontune.core.reading import parse_json
from gluontune.records.layout import IRHeader, Label


def boxes_to_label(boxes: Any, header: Sequence[float] = ()) -> np.ndarray:
    """A label for ``RecordWriter.write`` from objects.

    Args:
        boxes: (n, B), B at least 5: class, xmin, ymin, xmax, ymax (shares of 0 to 1), and further numbers of an object.
        header: numbers behind A and B, such as the image's width and height.

    Raises:
        UsageError: another shape, no object, a box outside 0 … 1 or of negative size (named).

    >>> boxes_to_label([[3, 0.25, 0.5, 0.75, 1]]).tolist()
    [2.0, 5.0, 3.0, 0.25, 0.5, 0.75, 1.0]
    """
    rows = np.asarray(boxes, np.float32)
    if rows.ndim != 2 or rows.shape[1] < 5 or not len(rows):
        raise UsageError(f"boxes of shape {rows.shape}: give (n, 5 or more): class, xmin, ymin, xmax, ymax")
    low, high = rows[:, 1:3], rows[:, 3:5]
    sound = (rows[:, 0] >= 0) & (low >= 0).all(1) & (high <= 1).all(1) & (low <= high).all(1)
    wrong = np.flatnonzero(~sound)
    if len(wrong):
        raise UsageError(f"box {wrong[0]}: {rows[wrong[0], :5].tolist()}: class, then corners of 0 to 1 in order")
    return np.concatenate([np.array([2 + len(header), rows.shape[1], *header], np.float32), rows.ravel()])


def boxes_of(label: Any) -> np.ndarray:
    """The objects of a record's label, float32 (n, B), rows as in :func:`boxes_to_label`.

    Raises:
        GluontuneError: the label is not laid out so.

    >>> boxes_of(boxes_to_label([[3, 0.25, 0.5, 0.75, 1]], header=(640, 480))).tolist()
    [[3.0, 0.25, 0.5, 0.75, 1.0]]
    """
    row = np.asarray(label, np.float32).ravel()
    start, width = (int(row[0]), int(row[1])) if len(row) >= 2 and np.isfinite(row[:2]).all() else (0, 0)
    if start < 2 or width < 5 or len(row) < start + width or (len(row) - start) % width:
        raise GluontuneError(
            f"no boxes: a label of {len(row)} numbers that begins {row[:3].tolist()} is laid out otherwise"
        )
    return row[start:].reshape(-1, width)


END = b"\x93GTFLD\r\n"
_FOOT = struct.Struct("<II8s")
_DTYPES = frozenset(["|b1", "|i1", "|u1", "<i2", "<u2", "<f2", "<i4", "<u4", "<f4", "<i8", "<u8", "<f8"])
_NO_BOXES = [2.0, 5.0]  # the label of an image without objects


class Field(NamedTuple):
    """One field behind the image. ``dtype`` and ``shape`` are those of an ``array``."""

    name: str
    kind: str
    data: Any
    dtype: str = ""
    shape: tuple[int, ...] = ()


def is_mask(name: str) -> bool:
    """Whether a field of this name moves with the image: ``mask``, ``…_mask``."""
    return name == "mask" or name.endswith("_mask")


def join_fields(fields: Mapping[str, Any]) -> tuple[Label, bytes]:
    """Label and payload of an image record with these fields.

    Args:
        fields: by name. ``image``: an encoded image, bytes. ``label``: a number, or several. ``boxes``: (n, 5 or more),
            see :func:`boxes_to_label`, n may be 0; they take the label's place. ``mask`` or ``…_mask``: uint8 or uint16
            (H, W). Others: str, bytes, a number, or an array of numbers.
    """
    image = fields.get("image", b"")
    if not isinstance(image, (bytes, bytearray, memoryview)):
        raise UsageError(
            f"field 'image': {type(image).__name__}; give the bytes of a JPEG or PNG file, or pixels_to_raw(pixels)"
        )
    label: Any = fields.get("label", 0)
    parts, bare = [], True
    for name, value in fields.items():
        if not isinstance(name, str) or not 0 < len(name) <= 255:
            raise UsageError(f"field {name!r}: a name is a text of 1 to 255 characters")
        if name in ("image", "label"):
            continue
        if name == "boxes":
            if "label" in fields:
                raise UsageError("boxes stand in the record's label: give 'label' another name, such as 'class'")
            label = boxes_to_label(value) if len(value) else _NO_BOXES
            bare = bare and len(value) > 0
            parts.append(Field(name, "boxes", b""))
            continue
        bare = False
        parts.append(_field(name, value))
    if bare:
        return label, bytes(image)
    listed = [[p.name, p.kind, len(p.data), p.dtype, list(p.shape)] for p in parts]
    directory = json.dumps(listed, separators=(",", ":")).encode()
    foot = _FOOT.pack(len(directory), zlib.crc32(directory), END)
    return label, b"".join((image, *(p.data for p in parts), directory, foot))


def split_fields(payload: Any) -> tuple[Any, list[Field]]:
    """The image of a payload and the fields behind it, as views; a payload without fields is all image."""
    if len(payload) < _FOOT.size or bytes(payload[-8:]) != END:
        return payload, []
    view = memoryview(payload)
    length, checksum, _ = _FOOT.unpack_from(view, len(view) - _FOOT.size)
    start = len(view) - _FOOT.size - length
    if start < 0 or zlib.crc32(view[start : start + length]) != checksum:
        raise GluontuneError("the directory of its fields is damaged")
    try:
        listed = [_entry(row) for row in parse_json(bytes(view[start : start + length]))]
    except (ValueError, TypeError) as error:  # a UnicodeDecodeError is a ValueError
        raise GluontuneError(f"the directory of its fields cannot be read: {error}") from None
    begin = start - sum(size for _, size in listed)
    names = [field.name for field, _ in listed]
    if begin < 0 or len(set(names)) != len(names):
        raise GluontuneError("the directory of its fields contradicts the record's length")
    image, found = view[:begin], []
    for field, size in listed:
        found.append(field._replace(data=view[begin : begin + size]))
        begin += size
    return image, found


def take_fields(header: IRHeader, payload: Any, names: Iterable[str] | None = None) -> dict[str, Any]:
    """The fields of an image record by name.

    ``image`` is bytes-like; ``label`` a number or float32 (k,); ``boxes`` float32 (n, B); masks uint8 or uint16 (H, W);
    the others as written. A record without a directory has ``image``, ``label`` and, on request, ``boxes``.
    """
    image, listed = split_fields(payload)
    there = {field.name: field for field in listed}
    wanted = ["image", "label", *there] if names is None else list(names)
    found: dict[str, Any] = {}
    for name in wanted:
        if name == "image":
            found[name] = image
        elif name == "label":
            found[name] = header.label
        elif name == "boxes" and (name not in there or there[name].kind == "boxes"):
            row = np.asarray(header.label, np.float32).ravel()
            empty = name in there and row.tolist() == _NO_BOXES
            found[name] = np.zeros((0, 5), np.float32) if empty else boxes_of(row)
        elif name in there:
            found[name] = _value(there[name])
        else:
            has = ", ".join(["image", "label", *there])
            raise GluontuneError(f"no field {name!r}: the record has {has}")
    return found


def _field(name: str, value: Any) -> Field:
    if isinstance(value, str):
        try:
            return Field(name, "text", value.encode())
        except UnicodeEncodeError as error:
            raise UsageError(f"field {name!r}: a text that UTF-8 cannot hold: {error.reason}") from None
    if isinstance(value, (bytes, bytearray, memoryview)):
        return Field(name, "bytes", bytes(value))
    array = np.asarray(value)
    if is_mask(name):
        return Field(name, "mask", _png(name, array))
    kept = array.astype(array.dtype.newbyteorder("<"))
    if kept.dtype.str not in _DTYPES:
        raise UsageError(f"field {name!r}: {type(value).__name__} of {array.dtype}; give text, bytes or numbers")
    return Field(name, "array", kept.tobytes(), kept.dtype.str, kept.shape)


def _png(name: str, mask: np.ndarray) -> bytes:
    import cv2

    if mask.ndim != 2 or not mask.size or mask.dtype not in (np.uint8, np.uint16):
        raise UsageError(f"field {name!r}: {mask.dtype} of shape {mask.shape}; a mask is uint8 or uint16 (H, W)")
    return bytes(cv2.imencode(".png", np.ascontiguousarray(mask))[1])


def _entry(row: Any) -> tuple[Field, int]:
    name, kind, size, dtype, shape = row
    if not isinstance(name, str) or kind not in ("array", "text", "bytes", "mask", "boxes"):
        raise ValueError(f"field {name!r:.80} of kind {kind!r:.80}")
    sizes = (size, *shape)
    if not all(isinstance(n, int) and not isinstance(n, bool) and 0 <= n < 1 << 32 for n in sizes) or len(sizes) > 33:
        raise ValueError(f"field {name!r:.80} has the size {size!r:.80} and the shape {shape!r:.80}")
    if kind == "array" and (dtype not in _DTYPES or size != math.prod(shape) * int(dtype[2:])):
        raise ValueError(f"field {name!r:.80}: {size} bytes are no {dtype!r:.80} of shape {shape!r:.80}")
    return Field(name, kind, b"", dtype, tuple(shape)), size


def _value(field: Field) -> Any:
    if field.kind == "bytes":
        return field.data
    try:
        if field.kind == "array":
            array = np.frombuffer(field.data, field.dtype).reshape(field.shape)
            return array.copy() if field.shape else array.item()
        if field.kind == "text":
            return bytes(field.data).decode()
        return _mask(field.data)
    except (ValueError, TypeError) as error:
        raise GluontuneError(f"field {field.name!r} cannot be read: {error}") from None


def _mask(data: Any) -> np.ndarray:
    import cv2

    view = memoryview(data)
    if not png_is_whole(view):
        raise ValueError("no whole PNG file")
    check_size(view, "png")  # an ImageError is a ValueError
    try:
        mask = cv2.imdecode(np.frombuffer(view, np.uint8), cv2.IMREAD_UNCHANGED)
    except cv2.error as error:
        raise ValueError(error.err) from None
    if mask is None or mask.ndim != 2:
        raise ValueError("no PNG file of one channel")
    return mask
