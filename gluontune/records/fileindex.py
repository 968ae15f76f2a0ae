"""Where the records of a file start: from its index, or by hopping from header to header."""

from __future__ import annotations

import contextlib
import mmap
import os
from typing import Any, Union

import numpy as np

from gluontune.errors import GluontuneError
from gluontune.files import explain_os_error, open_regular
from gluontune.reading import read_bytes
from gluontune.records.checksums import side_path
from gluontune.records.layout import HEAD, LENGTH_MASK, DamagedRecordError, padded

__all__ = ["find_index", "index_rows", "map_file", "read_index", "record_ends", "scan"]

PathLike = Union[str, "os.PathLike[str]"]


def map_file(path: str) -> tuple[mmap.mmap | None, memoryview]:
    """Map a file for reading; an empty file is an empty view."""
    try:
        with os.fdopen(open_regular(path), "rb") as stream:
            if os.fstat(stream.fileno()).st_size == 0:
                return None, memoryview(b"")
            mapped = mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ)
            return mapped, memoryview(mapped)
    except OSError as error:
        raise explain_os_error(path, error) from error


def find_index(path: str, index: PathLike | bool | None) -> str | None:
    """The index to use: the one given; the one beside ``path`` for None or True; none for False."""
    if index is False:
        return None
    if index is None or index is True:
        beside = side_path(path, ".idx")
        if beside.is_file():
            return str(beside)
        if index is None:
            return None
        raise GluontuneError(f"{beside}: no such file; leave out index=True and the records are found by a scan")
    return os.fspath(index)


def record_ends(offsets: np.ndarray, size: int) -> np.ndarray:
    """(N,) int64: the byte that each record cannot pass: the start of the next indexed one, or the file's end."""
    order = np.unique(offsets)
    following = np.searchsorted(order, offsets, side="right")
    return np.append(order, size)[following]


def read_index(path: PathLike) -> tuple[Any, np.ndarray]:
    """Keys ((N,) int64, or a list of str) and offsets ((N,) int64) of an ``.idx`` file.

    Raises:
        GluontuneError: a row is not ``key<TAB>offset``; the message names the line.
    """
    data = _bytes_of(path)
    fields = data.split()
    rows = data.count(b"\t")
    if len(fields) == 2 * rows and rows == data.count(b"\n") + (not data.endswith(b"\n") and bool(data.strip())):
        with contextlib.suppress(ValueError, OverflowError):
            table = np.array(fields, dtype=bytes).astype(np.int64) if fields else np.zeros(0, np.int64)
            return table[0::2].copy(), table[1::2].copy()
    return _read_index_slowly(path, data)


def index_rows(path: PathLike) -> tuple[list[str], list[int]]:
    """Keys as they are written, and offsets, of an ``.idx`` file.

    Raises:
        GluontuneError: as :func:`read_index`.
    """
    return _rows(path, _bytes_of(path))


def _bytes_of(path: PathLike) -> bytes:
    try:
        return read_bytes(path)
    except OSError as error:
        raise explain_os_error(path, error) from error


def _rows(path: PathLike, data: bytes) -> tuple[list[str], list[int]]:
    keys, offsets = [], []
    for number, line in enumerate(data.splitlines(), 1):
        if not line.strip():
            continue
        key, tab, offset = line.rpartition(b"\t")
        if not tab or not offset.strip().isdigit() or int(offset) >= 1 << 63:
            raise GluontuneError(
                f"{path}: line {number} is not 'key<TAB>offset': {line[:60]!r}; delete the index to scan instead"
            )
        keys.append(key.decode("utf-8", "replace"))
        offsets.append(int(offset))
    return keys, offsets


def _read_index_slowly(path: PathLike, data: bytes) -> tuple[Any, np.ndarray]:
    keys, offsets = _rows(path, data)
    try:
        return np.array([int(k) for k in keys], np.int64), np.array(offsets, np.int64)
    except (ValueError, OverflowError):
        return keys, np.array(offsets, np.int64)


def scan(view: memoryview, path: str) -> np.ndarray:
    """(N,) int64: where each record starts, found by hopping from header to header.

    Raises:
        DamagedRecordError: the chain of headers breaks before the end.
    """
    offsets = []
    at, size, unpack = 0, len(view), HEAD.unpack_from
    inside = False
    while at + 8 <= size:
        magic, word = unpack(view, at)
        flag = word >> 29
        if magic != 0xCED7230A or flag > 3 or (flag in (2, 3)) != inside:
            break
        if not inside:
            offsets.append(at)
        inside = flag in (1, 2)
        at += 8 + padded(word & LENGTH_MASK)
    if (at != size and not 0 < at - size < 4) or inside:
        where = offsets[-1] if offsets and (inside or at > size) else at
        raise DamagedRecordError(
            f"{path}: damaged at byte {where:,} of {size:,}, after {len(offsets):,} records; "
            "`gluontune verify` lists all damage, `--repair` keeps what is whole",
            offset=where,
        )
    return np.array(offsets, np.int64)
