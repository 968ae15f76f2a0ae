"""The same images as files, JPEG records, raw-pixel records and LMDB: size, packing speed, reading speed.

Reading is by random access in one thread, and is measured twice: the bytes alone, and up to pixels.
"""

from __future__ import annotations

import os
import shutil
import statistics
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Callable, Optional

import numpy as np

from gluontune.codec.header import inspect
from gluontune.codec.image import decode_image, raw_to_pixels
from gluontune.core.files import PathLike
from gluontune.records.layout import image_record, split_image_record
from gluontune.records.packer import pack
from gluontune.records.reader import RecordReader

Read = Callable[[int], Any]


@dataclass(frozen=True)
class FormatRow:
    """One format; speeds in images a second, medians of ``repeats``; None: not measured.

    ``packing`` of files and LMDB starts from the encoded images, that of records from the sources.
    """

    name: str
    status: str
    bytes: Optional[int] = None
    packing_images_per_sec: Optional[float] = None
    reading_images_per_sec: Optional[float] = None
    pixels_images_per_sec: Optional[float] = None


def compare_formats(src: PathLike, resize: int = 256, repeats: int = 3, seed: int = 0) -> list[FormatRow]:
    """Measure each format with the images of ``src``.

    Args:
        src: as for ``pack``. resize: shorter side, pixels; raw pixels are cut to the middle square.
        repeats: readings of all images, each in another random order.
        seed: of the orders.

    Raises:
        GluontuneError: nothing to pack.

    >>> from PIL import Image
    >>> folder = Path(tempfile.mkdtemp())
    >>> (folder / "robin").mkdir()  # a folder is a class
    >>> for red in range(4):
    ...     Image.new("RGB", (40, 32), (60 * red, 0, 0)).save(folder / "robin" / f"{red}.png")
    >>> [row.name for row in compare_formats(folder, resize=32, repeats=1)][:3]
    ['files', 'JPEG records', 'raw-pixel records']
    """
    folder = Path(tempfile.mkdtemp(prefix="gluontune-formats-"))
    try:
        jpeg = pack(src, folder / "jpeg.rec", format="jpg", resize=resize, crop=True, seed=seed)
        raw = pack(src, folder / "raw.rec", format="raw", resize=resize, crop=True, seed=seed)
        with RecordReader(folder / "jpeg.rec") as jpegs, RecordReader(folder / "raw.rec") as raws:
            payloads = [bytes(jpegs.payload(i)) for i in range(len(jpegs))]
            labels = jpegs.labels().tolist()
            measure = _Measure(len(payloads), repeats, seed)
            rows = [_files(folder / "files", payloads, measure)]
            rows.append(measure.row("JPEG records", jpeg.bytes, jpeg.images_per_sec, jpegs.payload, _decode))
            rows.append(measure.row("raw-pixel records", raw.bytes, raw.images_per_sec, raws.payload, raw_to_pixels))
            rows.append(_lmdb(folder / "lmdb", payloads, labels, measure))
        return rows
    finally:
        shutil.rmtree(folder, ignore_errors=True)


class _Measure:
    def __init__(self, count: int, repeats: int, seed: int):
        self.count, self.repeats = count, repeats
        self.rng = np.random.default_rng(seed)

    def row(self, name: str, size: int, packing: float, read: Read, decode: Callable[[Any], Any]) -> FormatRow:
        def touch(i: int) -> int:
            return int(np.frombuffer(read(i), np.uint8)[::512].sum())  # mapped pages are read when touched

        def pixels(i: int) -> int:
            return int(np.ascontiguousarray(decode(read(i))).ravel()[::512].sum())

        return FormatRow(name, "ok", size, round(packing, 1), self._speed(touch), self._speed(pixels))

    def _speed(self, read: Read) -> float:
        speeds = []
        for _ in range(self.repeats):
            order = self.rng.permutation(self.count).tolist()
            started = time.perf_counter()
            for i in order:
                read(i)
            speeds.append(self.count / (time.perf_counter() - started))
        return round(statistics.median(speeds), 1)


def _decode(payload: Any) -> np.ndarray:
    data = bytes(payload)
    return decode_image(data, inspect(data))


def _files(folder: Path, payloads: list[bytes], measure: _Measure) -> FormatRow:
    folder.mkdir()
    started = time.perf_counter()
    for i, payload in enumerate(payloads):
        (folder / f"{i:07d}.jpg").write_bytes(payload)
    seconds = time.perf_counter() - started
    paths = [str(folder / f"{i:07d}.jpg") for i in range(len(payloads))]
    size = sum(os.stat(path).st_blocks * 512 for path in paths)

    def read(i: int) -> bytes:
        with open(paths[i], "rb") as stream:
            return stream.read()

    return measure.row("files", size, len(payloads) / seconds, read, _decode)


def _lmdb(folder: Path, payloads: list[bytes], labels: Sequence[Any], measure: _Measure) -> FormatRow:
    try:
        import lmdb
    except ImportError:
        return FormatRow("LMDB", "not installed: pip install lmdb")
    started = time.perf_counter()
    with lmdb.open(str(folder), map_size=2 * sum(map(len, payloads)) + (64 << 20)) as writer:
        with writer.begin(write=True) as transaction:
            for i, (payload, label) in enumerate(zip(payloads, labels)):
                transaction.put(b"%08d" % i, image_record(payload, label, i))
        writer.sync(True)
    seconds = time.perf_counter() - started
    size = (folder / "data.mdb").stat().st_blocks * 512
    with lmdb.open(str(folder), readonly=True, lock=False) as reader, reader.begin(buffers=True) as transaction:

        def read(i: int) -> Any:
            return split_image_record(transaction.get(b"%08d" % i))[1]

        return measure.row("LMDB", size, len(payloads) / seconds, read, _decode)
