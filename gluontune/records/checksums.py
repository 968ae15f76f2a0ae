"""The ``.crc`` side file: where each record lies, how long it is, and the CRC-32 of its bytes.

``.rec`` and ``.idx`` have no checksum of their own, so a flipped bit inside an image goes unseen. Layout:
a head of 32 bytes (name, fingerprint of what was packed, eight zeros), then a row of 28 bytes a record.
Each row carries a check word over its own other words, so damage to this file costs single rows, not all.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Union

import numpy as np

from gluontune.errors import GluontuneError
from gluontune.files import explain_os_error
from gluontune.reading import read_bytes

__all__ = ["HEAD_SIZE", "ROW", "head", "make_rows", "mended_rows", "read_checksums", "row_is_sound", "side_path"]

NAME = b"GLUONTUNE-CRC-2\n"
HEAD_SIZE = 32
ROW = np.dtype([("key", "<i8"), ("offset", "<u8"), ("length", "<u4"), ("crc", "<u4"), ("check", "<u4")])
_FACTOR = np.uint32(0x85EBCA6B)
_LARGEST = 1 << 48  # bytes of a record file

PathLike = Union[str, "os.PathLike[str]"]


def side_path(path: PathLike, suffix: str) -> Path:
    """The side file of a record file: ``train.rec`` → ``train.idx``, as MXNet names it."""
    return Path(path).with_suffix(suffix)


def head(fingerprint: bytes = b"") -> bytes:
    """The first 32 bytes; ``fingerprint`` (8 bytes) names the packing job that wrote the records."""
    return NAME + fingerprint[:8].ljust(8, b"\0") + b"\0" * 8


def _check_words(rows: np.ndarray) -> np.ndarray:
    """A hash of the other words. Each step can be undone, so a change in any one word always changes it; the shifts
    carry high bits down, so that changes in two words do not cancel."""
    words = np.ascontiguousarray(rows).view("<u4").reshape(len(rows), 7)
    found = np.full(len(rows), 0x5BD1E995, np.uint32)
    for column in range(6):
        found = (found ^ words[:, column]) * _FACTOR
        found ^= found >> np.uint32(15)
    return found


def make_rows(keys: list[int], offsets: list[int], lengths: list[int], crcs: list[int]) -> np.ndarray:
    """Rows ready to be written (``.tobytes()``)."""
    rows = np.zeros(len(keys), ROW)
    rows["key"], rows["offset"], rows["length"], rows["crc"] = keys, offsets, lengths, crcs
    rows["check"] = _check_words(rows)
    return rows


def row_is_sound(rows: np.ndarray) -> np.ndarray:
    """(N,) bool: which rows carry the check word that belongs to them."""
    if not len(rows):
        return np.zeros(0, bool)
    sound: np.ndarray = _check_words(rows) == rows["check"]
    return sound


def mended_rows(rows: np.ndarray, limit: int = 1000) -> np.ndarray:
    """``rows``, with those put right in which one byte was altered; the others that are damaged stay so.

    Of the 7,140 ways to change one byte only the true one satisfies the check word: another does by chance once in
    600,000 damaged rows. A row of which two bytes were altered has no true one, so what is found must also lie between
    its neighbours, as records do. Where two ways do all that, the row stays as it is.

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
    """Whether the record that ``row`` tells of lies between those of the nearest right rows."""
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
    """The fingerprint and the rows of a ``.crc`` file; an incomplete last row is left out.

    ``lenient``: take a file whose name at the start is damaged, if a row in it is sound.

    Raises:
        GluontuneError: unreadable, or not such a file.
    """
    try:
        data = read_bytes(path)
    except OSError as error:
        raise explain_os_error(path, error) from error
    count = max(0, len(data) - HEAD_SIZE) // ROW.itemsize
    rows = np.frombuffer(data, ROW, count, HEAD_SIZE) if count else np.zeros(0, ROW)
    if data[:16] != NAME and not (lenient and row_is_sound(rows).any()):
        raise GluontuneError(f"{path}: not a checksum file of gluontune; delete it or pack again")
    return data[16:24], rows
