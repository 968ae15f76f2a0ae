"""What the lesson on record files needs: a folder of image files, a record taken apart, a byte that falls over."""

from __future__ import annotations

import os
import struct
from pathlib import Path
from typing import Any, Union

from gluontune.codec.header import suffix
from gluontune.core.errors import UsageError
from gluontune.core.files import atomic_write
from gluontune.records.layout import HEAD, IMAGE_HEAD, LENGTH_MASK

__all__ = ["as_files", "flip_bit", "record_fields"]

PathLike = Union[str, "os.PathLike[str]"]


def as_files(split: Any, folder: PathLike, count: int) -> Path:
    """Write the first ``count`` images of a split as class folders; files that are there stay.

    Args:
        split: of ``gt.datasets``.
        folder: gets ``<class>/<number>.<suffix>``.
        count: images; at most ``len(split)`` are written.
    """
    root = Path(folder)
    for i in range(min(count, len(split))):
        data = bytes(split.read(i))
        path = root / f"class-{int(split.labels[i]):03d}" / f"{i:06d}{suffix(data)}"
        if not path.is_file():
            path.parent.mkdir(parents=True, exist_ok=True)
            with atomic_write(path) as stream:
                stream.write(data)
    return root


def record_fields(path: PathLike, offset: int = 0) -> list[dict[str, Any]]:
    """The fields of the record that starts at ``offset``: byte, field, bytes in hex, meaning.

    Raises:
        UsageError: no record starts there.

    >>> import tempfile, gluontune as gt
    >>> path = Path(tempfile.mkdtemp()) / "one.rec"
    >>> with gt.records.RecordWriter(path) as writer:
    ...     writer.write(b"image", label=3, key=7)
    >>> [row["meaning"] for row in record_fields(path)][2:6]
    ['0: one label, in the next field', '3', '7', '0']
    """
    with open(path, "rb") as stream:
        stream.seek(offset)
        head = stream.read(HEAD.size + IMAGE_HEAD.size + 4)
    if len(head) < HEAD.size + IMAGE_HEAD.size or head[:4] != struct.pack("<I", 0xCED7230A):
        raise UsageError(f"{os.fspath(path)}: no image record starts at byte {offset}")
    length = HEAD.unpack_from(head)[1] & LENGTH_MASK
    flag, label, key, second = IMAGE_HEAD.unpack_from(head, HEAD.size)
    labels = "one label, in the next field" if flag == 0 else f"{flag} labels, before the image"
    payload = length - IMAGE_HEAD.size - 4 * flag
    rows = [
        ("magic", 0, 4, "here a record starts"),
        ("length", 4, 4, f"{length:,} bytes follow"),
        ("flag", 8, 4, f"{flag}: {labels}"),
        ("label", 12, 4, f"{label:g}"),
        ("id", 16, 8, f"{key}"),
        ("id2", 24, 8, f"{second}"),
        ("image", 32, 4, f"{payload:,} bytes, then zeros up to a multiple of four"),
    ]
    return [
        {
            "byte": offset + at,
            "field": name,
            "bytes in hex": head[at : at + size].hex(" ") + (" …" if name == "image" else ""),
            "meaning": meaning,
        }
        for name, at, size, meaning in rows
    ]


def flip_bit(path: PathLike, offset: int) -> None:
    """Turn over the lowest bit of one byte of a file, as a bad disk or cable does."""
    with open(path, "r+b") as stream:
        stream.seek(offset)
        byte = stream.read(1)
        if not byte:
            raise UsageError(f"{os.fspath(path)}: there is no byte {offset}")
        stream.seek(offset)
        stream.write(bytes([byte[0] ^ 1]))
