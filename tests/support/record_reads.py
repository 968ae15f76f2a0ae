"""Trials of one reader shared by threads and forked processes."""

from __future__ import annotations

import multiprocessing
import shutil
import tempfile
import threading
import zlib
from pathlib import Path
from typing import Any

import numpy as np

from gluontune.records.reader import RecordReader
from gluontune.records.writer import RecordWriter

__all__ = ["concurrent_reads"]


def concurrent_reads(n: int, threads: int = 8, processes: int = 4, seed: int = 0) -> dict[str, int]:
    """``n`` random reads of one reader, from threads and forked processes at once; counts wrong records."""
    folder = Path(tempfile.mkdtemp(prefix="gluontune-reads-"))
    try:
        path = folder / "reads.rec"
        rng = np.random.default_rng(seed)
        with RecordWriter(path) as writer:
            for i in range(4000):
                body = rng.bytes(int(rng.integers(1, 4000)))
                writer.write(zlib.crc32(body).to_bytes(4, "little") + body, i)
        reader = RecordReader(path)
        each = -(-n // (threads + processes))
        context = multiprocessing.get_context("fork")
        queue = context.Queue()
        wrongs: list[int] = []
        children: list[Any] = [
            context.Process(target=_count_into_queue, args=(reader, seed + 1000 + i, each, queue))
            for i in range(processes)
        ]
        workers: list[Any] = [
            threading.Thread(target=lambda i=i: wrongs.append(_count_wrong(reader, seed + i, each)))  # type: ignore[misc]
            for i in range(threads)
        ]
        for worker in [*children, *workers]:
            worker.start()
        wrongs += [queue.get() for _ in children]
        for worker in [*children, *workers]:
            worker.join()
        return {"reads": each * (threads + processes), "wrong": sum(wrongs)}
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _count_into_queue(reader: RecordReader, seed: int, n: int, queue: Any) -> None:
    queue.put(_count_wrong(reader, seed, n))


def _count_wrong(reader: RecordReader, seed: int, n: int) -> int:
    wrong = 0
    for i in np.random.default_rng(seed).integers(0, len(reader), n).tolist():
        header, payload = reader.unpack(i)
        good = header.id == i and zlib.crc32(payload[4:]).to_bytes(4, "little") == bytes(payload[:4])
        wrong += not good
    return wrong
