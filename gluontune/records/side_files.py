"""The offsets of records (the index, or a walk from header to header), and their checksums (the ``.crc`` side file).

``.rec`` and ``.idx`` have no checksums, so a flipped bit inside an image is invisible. A ``.crc`` file has a head of 32
bytes (name, fingerprint of the packed sources, eight zeros), then a row of 28 bytes a record. Each row has a check word
over its other words, so that damage to this file costs single rows.
"""

from __future__ import annotations

import contextlib
import mmap
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from gluontune.core.errors import GluontuneError
from gluontune.core.files import PathLike
from gluontune.core.reading import explained, open_regular, read_bytes
from gluontune.records.layout import HEAD, LENGTH_MASK, DamagedRecordError, padded

NAME = b"GLUONTUNE-CRC-2\n"
HEAD_SIZE = 32
ROW = np.dtype([("key", "<i8"), ("offset", "<u8"), ("length", "<u4"), ("crc", "<u4"), ("check", "<u4")])
_FACTOR = np.uint32(0x85EBCA6B)
_LARGEST = 1 << 48  # bytes of a record file
_PIECE = 1 << 22  # bytes of an index that are read at once


def side_path(path: PathLike, suffix: str) -> Path:
    """The side file of a record file: ``train.rec`` → ``train.idx``, as in MXNet."""
    return Path(path).with_suffix(suffix)


def head(fingerprint: bytes = b"") -> bytes:
    """The first 32 bytes; ``fingerprint`` (8 bytes) identifies the packing job."""
    return NAME + fingerprint[:8].ljust(8, b"\0") + b"\0" * 8


def _check_words(rows: np.ndarray) -> np.ndarray:
    """A hash of the other words. Each step is reversible, so a change in one word always changes it; the shifts carry
    high bits down, so that changes in two words do not cancel."""
    words = np.ascontiguousarray(rows).view("<u4").reshape(len(rows), 7)
    found = np.full(len(rows), 0x5BD1E995, np.uint32)
    for column in range(6):
        found = (found ^ words[:, column]) * _FACTOR
        found ^= found >> np.uint32(15)
    return found


def make_rows(keys: list[int], offsets: list[int], lengths: list[int], crcs: list[int]) -> np.ndarray:
    """Rows to be written by ``.tobytes()``."""
    rows = np.zeros(len(keys), ROW)
    rows["key"], rows["offset"], rows["length"], rows["crc"] = keys, offsets, lengths, crcs
    rows["check"] = _check_words(rows)
    return rows


def row_is_sound(rows: np.ndarray) -> np.ndarray:
    """(N,) bool: the rows with a correct check word."""
    if not len(rows):
        return np.zeros(0, bool)
    sound: np.ndarray = _check_words(rows) == rows["check"]
    return sound


def mended_rows(rows: np.ndarray, limit: int = 1000) -> np.ndarray:
    """``rows``, with those corrected in which one byte was altered; other damaged rows are unchanged.

    Of the 7,140 changes of one byte only the true one satisfies the check word: another does by chance once in 600,000
    damaged rows. A row with two altered bytes has no true one, so a correction must also fit between its neighbours,
    as records do. With two candidates the row is unchanged.

    >>> rows = make_rows([7], [0], [100], [0xDEADBEEF])
    >>> hurt = rows.copy(); hurt["offset"] ^= 64
    >>> bool(row_is_sound(hurt)[0]), mended_rows(hurt).tolist() == rows.tolist()
    (False, True)
    """
    mended, right = rows.copy(), row_is_sound(rows)
    for place in np.flatnonzero(~right)[:limit].tolist():
        original = np.frombuffer(rows[place : place + 1].tobytes(), np.uint8)
        ways = np.repeat(original[None], ROW.itemsize * 255, axis=0)
        ways[np.arange(len(ways)), np.repeat(np.arange(ROW.itemsize), 255)] ^= np.tile(
            np.arange(1, 256, dtype=np.uint8), ROW.itemsize
        )
        found = ways.view(ROW)[:, 0]
        sound = [row for row in found[row_is_sound(found)] if _fits_between(rows, right, place, row)]
        if len(sound) == 1:
            mended[place] = sound[0]
    return mended


def _fits_between(rows: np.ndarray, right: np.ndarray, place: int, row: np.void) -> bool:
    """Whether the record of ``row`` fits between those of the nearest right rows."""
    before, behind = np.flatnonzero(right[:place]), np.flatnonzero(right[place + 1 :])
    start, end = int(row["offset"]), int(row["offset"]) + 8 + int(row["length"])
    if start % 4 or end > _LARGEST:
        return False
    if len(before):
        last = rows[before[-1]]
        if start < int(last["offset"]) + 8 + int(last["length"]):
            return False
    return not len(behind) or end <= int(rows["offset"][place + 1 + behind[0]])


def read_checksums(path: PathLike, lenient: bool = False) -> tuple[bytes, np.ndarray]:
    """The fingerprint and the rows of a ``.crc`` file; without an incomplete last row.

    ``lenient``: accept a damaged head if a row is sound.
    """
    with explained(path):
        data = read_bytes(path)
    count = max(0, len(data) - HEAD_SIZE) // ROW.itemsize
    rows = np.frombuffer(data, ROW, count, HEAD_SIZE) if count else np.zeros(0, ROW)
    if data[:16] != NAME and not (lenient and row_is_sound(rows).any()):
        raise GluontuneError(f"{path}: not a checksum file of gluontune; delete it or pack again")
    return data[16:24], rows


def map_file(path: str) -> tuple[mmap.mmap | None, memoryview]:
    """Map a file for reading; an empty file is an empty view."""
    with explained(path), os.fdopen(open_regular(path), "rb") as stream:
        if os.fstat(stream.fileno()).st_size == 0:
            return None, memoryview(b"")
        mapped = mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ)
        return mapped, memoryview(mapped)


@contextlib.contextmanager
def viewed(path: str) -> Iterator[memoryview]:
    """A context with the mapped content of a file; a view in use afterwards keeps it alive."""
    mapped, view = map_file(path)
    try:
        yield view
    finally:
        with contextlib.suppress(BufferError):
            view.release()
            if mapped is not None:
                mapped.close()


def find_index(path: str, index: PathLike | bool | None) -> str | None:
    """The path of the index: as given; beside ``path`` for None or True; None for False."""
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


def bounded(offsets: np.ndarray, size: int) -> tuple[np.ndarray, np.ndarray]:
    """Offsets, and the limit of each record, (N,) int64: the start of the next indexed one, or the file's end.

    Of records in their order both are one array; ``offsets`` itself is used up.
    """
    if (offsets[1:] > offsets[:-1]).all() and offsets.flags.owndata and offsets.flags.writeable:
        offsets.resize(len(offsets) + 1, refcheck=False)  # no second array of ten million
        offsets[-1] = size
        return offsets[:-1], offsets[1:]
    order = np.unique(offsets)
    following = np.searchsorted(order, offsets, side="right")
    return offsets, np.append(order, size)[following]


def read_index(path: PathLike) -> tuple[Any, np.ndarray]:
    """Keys ((N,) int64, a list of str, or the positions as a range) and offsets ((N,) int64) of an ``.idx`` file."""
    found = _plain_index(path)
    if found is not None:
        return found
    keys, offsets = index_rows(path)
    try:
        return np.array([int(k) for k in keys], np.int64), np.array(offsets, np.int64)
    except (ValueError, OverflowError):
        return keys, np.array(offsets, np.int64)


def _plain_index(path: PathLike) -> tuple[Any, np.ndarray] | None:
    """An index of numbers alone, by pieces of the file; None for one with anything else."""
    keys: np.ndarray | None = None  # as long as they are the positions
    with explained(path), os.fdopen(open_regular(path), "rb") as stream:
        rows = sum(piece.count(b"\t") for piece in iter(lambda: stream.read(_PIECE), b""))
        stream.seek(0)
        offsets, at = np.empty(rows, np.int64), 0
        for lines in _whole_lines(stream):
            table = _plain_rows(lines)
            if table is None or at + len(table) > rows:
                return None
            end = at + len(table)
            offsets[at:end] = table[:, 1]
            if keys is None and not np.array_equal(table[:, 0], np.arange(at, end)):
                keys = np.arange(rows)
            if keys is not None:
                keys[at:end] = table[:, 0]
            at = end
    if at != rows:
        return None
    return range(rows) if keys is None else keys, offsets


def _whole_lines(stream: BinaryIO) -> Iterator[bytes]:
    """The content in pieces of whole lines."""
    rest = b""
    while piece := stream.read(_PIECE):
        lines, end, rest = (rest + piece).rpartition(b"\n")
        yield lines + end
    if rest.strip():
        yield rest + b"\n"


def _plain_rows(text: bytes) -> np.ndarray | None:
    """(n, 2) int64 of whole lines, or None if one is not two numbers."""
    count = text.count(b"\t")
    if text.count(b"\n") != count or text.translate(None, b"0123456789 \t\r\n"):
        return None
    flat, ends = np.fromstring(text, np.int64, sep=" "), np.iinfo(np.int64)
    cut_off = len(flat) and not ends.min < flat.min() <= flat.max() < ends.max  # a larger number is read as an end
    return flat.reshape(count, 2) if len(flat) == 2 * count and not cut_off else None


def index_rows(path: PathLike) -> tuple[list[str], list[int]]:
    """Keys as texts, and offsets, of an ``.idx`` file; a GluontuneError names a line that is not ``key<TAB>offset``."""
    with explained(path):
        data = read_bytes(path)
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


def scan(view: memoryview, path: str) -> np.ndarray:
    """(N,) int64: the offset of each record; a DamagedRecordError if the chain of headers breaks before the end."""
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
