"""What the disk under a file gives: sequential and random reads, by queue depth, past the page cache."""

from __future__ import annotations

import contextlib
import mmap
import os
import threading
import time
from pathlib import Path
from typing import Any, Union

import numpy as np

from gluontune.core.files import explain_os_error

BLOCK = 1 << 20
ALIGN = 4096
DEPTHS = (1, 4, 16)


def measure_disk(path: Union[str, Path], item_bytes: int = 1 << 17, seconds: float = 0.5) -> dict[str, Any]:
    """Read ``path`` sequentially, and at random places ``item_bytes`` at a time from 1, 4 and 16 threads.

    Reads bypass the page cache (``O_DIRECT``) where the file system allows it; ``cached`` says when it
    does not, and the figures then are those of memory.

    Args:
        path: a file of some size; a small one gives the figures of a small one.
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
    try:
        size = os.path.getsize(path)
        handle, direct = _open(path)
    except OSError as error:
        raise explain_os_error(path, error) from error
    try:
        count = max(ALIGN, -(-item_bytes // ALIGN) * ALIGN)
        sequential = _sequential(handle, size, seconds)
        rows = [_random(handle, size, count, depth, seconds) for depth in DEPTHS]
    except OSError as error:
        raise explain_os_error(path, error) from error
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
    buffer = mmap.mmap(-1, BLOCK)  # page-aligned, as O_DIRECT asks
    begin, done, at = time.perf_counter(), 0, 0
    while True:  # one read at least, however busy the machine is
        got = os.preadv(handle, [buffer], at)
        done += got
        at = at + BLOCK if got == BLOCK and at + BLOCK < size else 0
        if got == 0 or time.perf_counter() - begin >= seconds:
            break
    return done / (1 << 20) / (time.perf_counter() - begin)


def _random(handle: int, size: int, count: int, depth: int, seconds: float) -> dict[str, Any]:
    places = max(1, (size - count) // ALIGN)
    done, failed = [0] * depth, []
    begin = time.perf_counter()

    def read(k: int) -> None:
        rng, buffer = np.random.default_rng(k), mmap.mmap(-1, count)
        try:
            while time.perf_counter() - begin < seconds:
                for place in rng.integers(0, places, 16).tolist():
                    os.preadv(handle, [buffer], place * ALIGN)
                    done[k] += 1
        except OSError as error:
            failed.append(error)

    threads = [threading.Thread(target=read, args=(k,), daemon=True) for k in range(depth)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failed:
        raise failed[0]
    per_sec = sum(done) / (time.perf_counter() - begin)
    mib = per_sec * min(count, size) / (1 << 20)
    return {"queue_depth": depth, "reads_per_sec": per_sec, "mib_per_sec": mib}
