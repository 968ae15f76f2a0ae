"""A disk's reading speed (in order, at random offsets, by queue depth) and free space."""

from __future__ import annotations

import contextlib
import mmap
import os
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Union

from gluontune.core.reading import explained


@dataclass(frozen=True)
class DiskSpace:
    """Of a file system, in MiB."""

    total_mib: int
    free_mib: int


def measure_reading(place: Path, limit: int, seconds: float) -> tuple[float | None, str]:
    """Read up to ``limit`` bytes of the files below ``place``, past the page cache if possible.

    If the files have less than 8 MiB in all, one is written there and read back. Returns MiB/s or None, and a
    description of the read files, or the error.
    """
    try:
        place.stat()
        done, spent, count = _read_files(_files(place), limit, seconds)
        what = f"{done >> 20} MiB of {count} files"
        if done < 8 << 20:
            folder = place if place.is_dir() else place.parent
            with tempfile.NamedTemporaryFile(dir=folder, prefix=".gluontune-read-") as stream:
                stream.write(os.urandom(1 << 20) * 32)
                stream.flush()
                os.fsync(stream.fileno())
                done, spent, _ = _read_files(iter([Path(stream.name)]), limit, seconds)
            what = f"{done >> 20} MiB written there and read back"
    except OSError as error:
        return None, f"{error.strerror or error}: {place}"
    return (done / (1 << 20)) / max(spent, 1e-9), what


def _files(place: Path) -> Iterator[Path]:
    if place.is_file():
        yield place
        return
    for folder, folders, names in os.walk(place):
        folders.sort()
        for name in sorted(names):
            path = Path(folder, name)
            if not name.startswith(".") and path.is_file() and not path.is_symlink():
                yield path


def _read_files(paths: Iterator[Path], limit: int, seconds: float) -> tuple[int, float, int]:
    """(bytes, seconds, files); opening is timed, the search for files is not."""
    done, spent, count = 0, 0.0, 0
    began = time.perf_counter()
    for path in paths:
        if done >= limit or time.perf_counter() - began > seconds:
            break
        try:
            start = time.perf_counter()
            with open(path, "rb", buffering=0) as stream:
                if hasattr(os, "posix_fadvise"):  # drop the page cache, so that the disk is measured
                    os.posix_fadvise(stream.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
                while done < limit and time.perf_counter() - began <= seconds:
                    block = stream.read(1 << 20)
                    if not block:
                        break
                    done += len(block)
            spent += time.perf_counter() - start
            count += 1
        except PermissionError:
            continue
    return done, spent, count


BLOCK = 1 << 20
ALIGN = 4096
DEPTHS = (1, 4, 16)


def measure_disk(path: Union[str, Path], item_bytes: int = 1 << 17, seconds: float = 0.5) -> dict[str, Any]:
    """Read ``path`` sequentially, and at random offsets ``item_bytes`` at a time from 1, 4 and 16 threads.

    Reads bypass the page cache (``O_DIRECT``) if the file system allows it; otherwise ``cached`` is true, and the
    figures are those of memory.

    Args:
        path: a large file; a small one gives figures of the cache.
        item_bytes: bytes of a random read, such as the mean size of a record.
        seconds: for each of the four measurements.

    Returns:
        ``{"cached", "sequential_mib_per_sec", "random": [{"queue_depth", "reads_per_sec", "mib_per_sec"}]}``.

    >>> import tempfile
    >>> with tempfile.NamedTemporaryFile() as f:
    ...     _ = f.write(bytes(1 << 21)); f.flush()
    ...     result = measure_disk(f.name, seconds=0.05)
    >>> [row["queue_depth"] for row in result["random"]], result["sequential_mib_per_sec"] > 0
    ([1, 4, 16], True)
    """
    with explained(path):
        size = os.path.getsize(path)
        handle, direct = _open(path)
        try:
            count = max(ALIGN, -(-item_bytes // ALIGN) * ALIGN)
            sequential = _sequential(handle, size, seconds)
            rows = [_random(handle, size, count, depth, seconds) for depth in DEPTHS]
        finally:
            os.close(handle)
    return {"cached": not direct, "item_bytes": count, "sequential_mib_per_sec": sequential, "random": rows}


def _open(path: Union[str, Path]) -> tuple[int, bool]:
    direct = getattr(os, "O_DIRECT", 0)
    if direct:
        with contextlib.suppress(OSError):
            handle = os.open(path, os.O_RDONLY | direct)
            try:
                os.preadv(handle, [mmap.mmap(-1, ALIGN)], 0)
                return handle, True
            except OSError:
                os.close(handle)
    handle = os.open(path, os.O_RDONLY)
    if hasattr(os, "posix_fadvise"):
        os.posix_fadvise(handle, 0, 0, os.POSIX_FADV_DONTNEED)
    return handle, False


def _sequential(handle: int, size: int, seconds: float) -> float:
    buffer = mmap.mmap(-1, BLOCK)  # page-aligned, as O_DIRECT requires
    begin, done, at = time.perf_counter(), 0, 0
    while True:  # at least one read, even on a busy machine
        got = os.preadv(handle, [buffer], at)
        done += got
        at = at + BLOCK if got == BLOCK and at + BLOCK < size else 0
        if got == 0 or time.perf_counter() - begin >= seconds:
            break
    return done / (1 << 20) / (time.perf_counter() - begin)


def _random(handle: int, size: int, count: int, depth: int, seconds: float) -> dict[str, Any]:
    import numpy as np

    places = max(1, (size - count) // ALIGN)
    done = [0] * depth
    begin = time.perf_counter()

    def read(k: int) -> None:
        rng, buffer = np.random.default_rng(k), mmap.mmap(-1, count)
        while time.perf_counter() - begin < seconds:
            for place in rng.integers(0, places, 16).tolist():
                os.preadv(handle, [buffer], place * ALIGN)
                done[k] += 1

    with ThreadPoolExecutor(depth) as threads:
        list(threads.map(read, range(depth)))
    per_sec = sum(done) / (time.perf_counter() - begin)
    mib = per_sec * min(count, size) / (1 << 20)
    return {"queue_depth": depth, "reads_per_sec": per_sec, "mib_per_sec": mib}
