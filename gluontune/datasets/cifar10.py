"""CIFAR-10, from its official binary archive or from an archive of class folders.

Source: Krizhevsky, "Learning Multiple Layers of Features from Tiny Images", 2009. The binary layout: files of
10,000 rows, each a label byte and 3,072 pixel bytes (red, green, blue plane).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np

from gluontune.codec import header, image
from gluontune.core.errors import GluontuneError
from gluontune.core.files import write_json
from gluontune.datasets.archive import Limits, members
from gluontune.datasets.catalog import Dataset
from gluontune.datasets.download import Progress, as_png, download, files_of, filling, records_folder
from gluontune.datasets.recordset import open_parts
from gluontune.records import RecordReader, RecordWriter

URL = "https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz"
CLASSES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
ROW = 3073
LIMITS = Limits()


@dataclass(frozen=True)
class Layout:
    """The expected numbers of images: ``batches`` training files of ``batch_rows`` rows, one test file."""

    batches: int = 5
    batch_rows: int = 10_000
    train_per_class: int = 5_000
    test_per_class: int = 1_000
    limits: Limits = LIMITS


CIFAR10 = Layout()


def present(info: Any) -> Path | None:
    return records_folder(info.name)


def open_cifar10(rest: str | None, info: Any) -> Dataset:
    added = "ARCHIVE` with that archive, or with a tar or zip of class folders (train/<class>/…, test/<class>/…)"
    return open_parts(info, files_of(info, f" from {URL}", added), CLASSES)


def fetch(info: Any, url: str | None, progress: Progress) -> dict[str, Any]:
    """Download the official binary archive and import it; the archive is removed."""
    archive = download(url or URL, info.sha256, info.name, progress=progress)
    result = add(info, archive, progress)
    archive.unlink(missing_ok=True)
    return {**result, "source": url or URL}


def add(
    info: Any, archive: Path, progress: Progress = lambda done, total: None, layout: Layout = CIFAR10
) -> dict[str, Any]:
    """Import the official binary archive, or a tar (gzip, bzip2, xz) or zip with ``train/<class>/<image>`` and
    ``test/<class>/<image>``, perhaps within one more folder; a GluontuneError names unexpected content.
    """
    archive = Path(archive)
    if archive.is_dir():
        raise GluontuneError(f"{archive}: a folder, not an archive; open it as it is with --dataset folder:{archive}")
    intake = _Intake(archive, layout, progress)
    with filling(info.name) as folder:
        intake.run(folder)
        counted = {f"num_{part}": counts.sum().item() for part, counts in intake.counts.items()}
        facts = {"kind": intake.kind, "archive": archive.name, "classes": len(CLASSES), **counted}
        write_json(folder / "dataset.json", facts)
        (folder / "classes.txt").write_text("\n".join(CLASSES) + "\n", encoding="utf-8")
    return {**facts, "path": str(records_folder(info.name))}


class _Intake:
    """The import of one archive to ``train.rec`` and ``test.rec``."""

    def __init__(self, archive: Path, layout: Layout, progress: Progress):
        self.archive, self.layout, self.progress = archive, layout, progress
        self.counts = {part: np.zeros(len(CLASSES), np.int64) for part in ("train", "test")}
        self.kind = ""
        self.total = len(CLASSES) * (layout.train_per_class + layout.test_per_class)

    def run(self, folder: Path) -> None:
        writers = {part: RecordWriter(folder / f"in-{part}.rec") for part in self.counts}
        try:
            for part, label, data in self._images():
                writers[part].write(data, label)
                self.counts[part][label] += 1
                self.progress(sum(int(c.sum()) for c in self.counts.values()), self.total)
            self._judge()
        except BaseException:
            for writer in writers.values():
                writer.abort()
            raise
        for part, writer in writers.items():
            writer.close()
            self._place(folder, part)

    def _place(self, folder: Path, part: str) -> None:
        """Write a part; class folders are shuffled, since shuffling readers with a window cannot undo their order."""
        with RecordReader(folder / f"in-{part}.rec") as reader:
            count = len(reader)
            order = np.arange(count) if self.kind == "official binary" else np.random.default_rng(0).permutation(count)
            labels = reader.labels()
            with RecordWriter(folder / f"{part}.rec") as writer:
                for i in order.tolist():
                    writer.write(bytes(reader.payload(i)), int(labels[i]))
        for left in folder.glob(f"in-{part}.*"):
            left.unlink()

    def _images(self) -> Iterator[tuple[str, int, bytes]]:
        for name, read in members(self.archive, self.layout.limits):
            path = PurePosixPath(name)
            if path.name.endswith(".bin"):
                self._is("official binary", name)
                yield from self._rows(path.name, name, read())
            elif path.name.startswith(("data_batch_", "test_batch", "batches.meta")) and not path.suffix:
                raise GluontuneError(
                    f"{self.archive}: {name!r}: this is the Python version of CIFAR-10, which only unpickling could "
                    "read, and that can run code; take the binary version, cifar-10-binary.tar.gz"
                )
            elif path.suffix.lower() in (".jpg", ".jpeg", ".png"):
                self._is("class folders", name)
                yield self._file(path, name, read())
        if not self.kind:
            raise GluontuneError(f"{self.archive}: neither CIFAR-10's .bin files nor images in class folders are in it")

    def _is(self, kind: str, name: str) -> None:
        if self.kind and self.kind != kind:
            raise GluontuneError(
                f"{self.archive}: {name!r}: a mixture of .bin files and images; is it the right archive?"
            )
        self.kind = kind

    def _rows(self, file: str, name: str, data: bytes) -> Iterator[tuple[str, int, bytes]]:
        """The rows of one ``.bin`` file."""
        known = {f"data_batch_{i + 1}.bin" for i in range(self.layout.batches)} | {"test_batch.bin"}
        if file not in known:
            raise GluontuneError(f"{self.archive}: {name!r} is not a file of CIFAR-10's binary version")
        if len(data) != ROW * self.layout.batch_rows:
            raise GluontuneError(
                f"{self.archive}: {name!r} has {len(data):,} bytes, not {ROW * self.layout.batch_rows:,}"
            )
        rows = np.frombuffer(data, np.uint8).reshape(-1, ROW)
        labels = rows[:, 0]
        if int(labels.max()) >= len(CLASSES):
            at = int(np.argmax(labels >= len(CLASSES)))
            raise GluontuneError(
                f"{self.archive}: {name!r}, row {at}: label {int(labels[at])} is out of range (0 to {len(CLASSES) - 1})"
            )
        pixels = np.ascontiguousarray(rows[:, 1:].reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1))
        part = "test" if file == "test_batch.bin" else "train"
        for label, encoded in zip(labels.tolist(), as_png(pixels)):
            yield part, label, encoded

    def _file(self, path: PurePosixPath, name: str, data: bytes) -> tuple[str, int, bytes]:
        """One image of a class folder."""
        part, label = path.parts[-3:-1] if len(path.parts) >= 3 else ("", "")
        if part not in self.counts or len(path.parts) > 4:
            raise GluontuneError(f"{self.archive}: {name!r}: images must lie in train/<class>/ and test/<class>/")
        if label not in CLASSES:
            raise GluontuneError(
                f"{self.archive}: {name!r}: {label!r} is not a class of CIFAR-10 ({', '.join(CLASSES)})"
            )
        reason = header.fault(data)
        pixels = None if reason else image.decode(data, 3)
        if pixels is None:
            raise GluontuneError(f"{self.archive}: {name!r}: {reason or 'it cannot be decoded'}")
        if pixels.shape != (32, 32, 3):
            raise GluontuneError(
                f"{self.archive}: {name!r} has {pixels.shape[0]} x {pixels.shape[1]} pixels, not 32 x 32"
            )
        return part, CLASSES.index(label), data

    def _judge(self) -> None:
        """Check the numbers of images."""
        wanted = {"train": self.layout.train_per_class, "test": self.layout.test_per_class}
        for part, counts in self.counts.items():
            for label, count in zip(CLASSES, counts.tolist()):
                if count != wanted[part]:
                    raise GluontuneError(
                        f"{self.archive}: {count:,} {part} images of class {label!r}, but CIFAR-10 has "
                        f"{wanted[part]:,}; is the archive complete?"
                    )
