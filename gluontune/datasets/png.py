"""Small grey PNG files: each row's filter is chosen by trial, the deflate stream by zopfli.

A PNG row is stored as differences from its neighbours, by one of five filters (PNG specification, section 9).
The best filters for deflate cannot be computed, only tried: rows are changed one at a time, and changes that shrink the
file are kept. zopfli then optimizes the deflate stream; any PNG decoder reads the result.
"""

from __future__ import annotations

import importlib
import struct
import zlib
from typing import Any, Callable

import numpy as np

from gluontune.core.errors import GluontuneError

SIGNATURE = b"\x89PNG\r\n\x1a\n"
ITERATIONS = 30  # of zopfli; more gain less than one byte an image


def zopfli() -> Any:
    """The module ``zopfli.zlib``."""
    try:
        return importlib.import_module("zopfli.zlib")
    except ImportError as error:
        raise GluontuneError(
            "the smallest PNG files need zopfli: `pip install zopfli`, or add --fast (the same pixels, 4 % larger)"
        ) from error


def encode_grey(image: np.ndarray, compress: Callable[..., bytes] | None = None) -> bytes:
    """A grey image as a PNG file.

    Args:
        image: uint8 (H, W).
        compress: bytes to a zlib stream, such as ``zopfli().compress``; None: zlib with the best of the usual filters,
            without a search.

    >>> import cv2
    >>> image = np.arange(12, dtype=np.uint8).reshape(3, 4)
    >>> cv2.imdecode(np.frombuffer(encode_grey(image), np.uint8), cv2.IMREAD_UNCHANGED).tolist()
    [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9, 10, 11]]
    """
    rows = _filtered_rows(image)
    plain = [[f] * len(rows) for f in range(5)]
    starts = sorted([*plain, _least_sum(rows)], key=lambda choice: len(_deflate(_join(rows, choice))))
    data = _deflate(_join(rows, starts[0])) if compress is None else _search(rows, starts, compress)
    height, width = image.shape
    header = struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0)
    return b"".join((SIGNATURE, _chunk(b"IHDR", header), _chunk(b"IDAT", data), _chunk(b"IEND", b"")))


def _search(rows: list[list[bytes]], starts: list[list[int]], compress: Callable[..., bytes]) -> bytes:
    """The smallest stream by climbing from the four best starts and refining the winner."""
    choices = [_climb(rows, s) for s in starts[:2]] + starts[:1] + [_climb(rows, s) for s in starts[2:4]]
    tried = [_squeeze(rows, choice, compress) for choice in choices]
    best = min(tried, key=len)
    refined = _refine(rows, choices[tried.index(best)], compress)
    return min(best, _squeeze(rows, refined, compress), key=len)


def _squeeze(
    rows: list[list[bytes]], choice: list[int], compress: Callable[..., bytes], iterations: int = ITERATIONS
) -> bytes:
    return compress(_join(rows, choice), numiterations=iterations, blocksplitting=0)


def _chunk(kind: bytes, body: bytes) -> bytes:
    return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))


def _deflate(raw: bytes) -> bytes:
    return zlib.compress(raw, 9)


def _filtered_rows(image: np.ndarray) -> list[list[bytes]]:
    """The five encodings of each row: filter number and filtered bytes."""
    x = image.astype(np.int16)
    padded = np.pad(x, ((1, 0), (1, 0)))
    left, up, corner = padded[1:, :-1], padded[:-1, 1:], padded[:-1, :-1]
    guess = left + up - corner
    to_left, to_up, to_corner = abs(guess - left), abs(guess - up), abs(guess - corner)
    paeth = np.where((to_left <= to_up) & (to_left <= to_corner), left, np.where(to_up <= to_corner, up, corner))
    filtered = [(x - p).astype(np.uint8) for p in (0 * x, left, up, (left + up) // 2, paeth)]
    return [[bytes([f]) + filtered[f][r].tobytes() for f in range(5)] for r in range(len(image))]


def _join(rows: list[list[bytes]], choice: list[int]) -> bytes:
    return b"".join([row[f] for row, f in zip(rows, choice)])


def _least_sum(rows: list[list[bytes]]) -> list[int]:
    """The usual guess: the filter with the least sum of absolute differences (PNG specification, 12.7)."""
    sums = [[int(np.abs(np.frombuffer(e[1:], np.int8).astype(int)).sum()) for e in row] for row in rows]
    return [row.index(min(row)) for row in sums]


def _climb(rows: list[list[bytes]], choice: list[int], passes: int = 2) -> list[int]:
    """Change one row's filter at a time while the file shrinks."""
    best = len(_deflate(_join(rows, choice)))
    for _ in range(passes):
        before = best
        for r in range(len(rows)):
            for f in range(5):
                trial = [*choice[:r], f, *choice[r + 1 :]]
                size = len(_deflate(_join(rows, trial)))
                if size < best:
                    best, choice = size, trial
        if best == before:
            break
    return choice


def _refine(rows: list[list[bytes]], choice: list[int], compress: Callable[..., bytes]) -> list[int]:
    """As :func:`_climb`, but measured by a quick zopfli, on changes that are nearly as good for zlib."""
    best = len(_squeeze(rows, choice, compress, 3))
    near = len(_deflate(_join(rows, choice)))
    for r in range(len(rows)):
        for f in range(5):
            trial = [*choice[:r], f, *choice[r + 1 :]]
            plain = len(_deflate(_join(rows, trial)))
            if f == choice[r] or plain > near + 2:
                continue
            size = len(_squeeze(rows, trial, compress, 3))
            if size < best:
                best, choice, near = size, trial, plain
    return choice
