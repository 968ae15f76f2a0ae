"""How fast a disk gives its files, and how much room it has."""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class DiskSpace:
    """Of a file system, in MiB."""

    total_mib: int
    free_mib: int


def disk_space(path: str | os.PathLike[str]) -> DiskSpace | None:
    """Space of the file system that holds ``path``; None where it cannot be asked."""
    try:
        usage = shutil.disk_usage(path)
    except OSError:
        return None
    return DiskSpace(usage.total >> 20, usage.free >> 20)


def measure_reading(place: Path, limit: int, seconds: float) -> tuple[float | None, str]:
    """Read up to ``limit`` bytes of the files below ``place``, past the page cache where that is possible.

    Without files of at least 8 MiB in all, one is written there and read back.

    Returns:
        (MiB/s or None, what was read or why nothing was).
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
    """(bytes, seconds, files); opening counts, finding the files does not."""
    done, spent, count = 0, 0.0, 0
    began = time.perf_counter()
    for path in paths:
        if done >= limit or time.perf_counter() - began > seconds:
            break
        try:
            start = time.perf_counter()
            with open(path, "rb", buffering=0) as stream:
                if hasattr(os, "posix_fadvise"):  # drop what is in memory, so that the disk is measured
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
