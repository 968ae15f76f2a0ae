"""Splits: the training or test part of a data set, as encoded images with a class number each."""

from __future__ import annotations

import contextlib
import hashlib
import os
import threading
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

from gluontune.codec import header, image
from gluontune.core.errors import GluontuneError, UsageError
from gluontune.core.files import PathLike, cache_dir
from gluontune.core.reading import explain_os_error, explained
from gluontune.records import RecordReader, RecordWriter


class Split(ABC):
    """One part of a data set. Reading is safe from any thread and in forked or spawned processes.

    Args:
        slug, part: the data set's name and ``train`` or ``test``. classes: their names, in order.
        places: int64 (N,), the place of each sample in its container.

    Attributes:
        labels: int64 (N,), class numbers, read-only.
        rec_path: the ``.rec`` file with exactly these samples in this order, or None.
    """

    rec_path: Path | None = None

    def __init__(self, slug: str, part: str, labels: Any, classes: Sequence[str], places: Any):
        self._slug, self._part = slug, part
        self._classes = tuple(classes)
        self._places = np.asarray(places, np.int64)
        self.labels = np.array(labels, np.int64)
        self.labels.flags.writeable = False

    def __len__(self) -> int:
        return len(self.labels)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._slug} {self._part}: {len(self):,} images)"

    def read(self, index: int) -> Any:
        """The encoded image at a position, bytes-like."""
        data = self._read(index)
        reason = header.fault(data)
        if reason is not None:
            raise GluontuneError(f"{self.name_of(index)}: {reason}; replace or remove it")
        return data

    def decode(self, index: int, channels: int = 0) -> np.ndarray:
        """The image at a position as uint8 (H, W, C), RGB or grey.

        Args:
            index: the position.
            channels: 3, 1, or 0: as in the image.
        """
        pixels = image.decode(self.read(index), channels)
        if pixels is None:
            raise GluontuneError(f"{self.name_of(index)}: the image cannot be decoded; replace or remove it")
        return pixels

    @abstractmethod
    def name_of(self, index: int) -> str:
        """The name of this sample in errors: its file or record."""

    @abstractmethod
    def files(self) -> list[Path]:
        """One image file a sample, in this order.

        Images in records are written once into the cache folder; an existing file of the right size is used again.

        Raises:
            GluontuneError: the disk is full, the cache folder read-only, …
        """

    def subset(self, indices: Iterable[int]) -> Split:
        """The samples at these positions, in this order."""
        chosen = np.asarray(list(indices) if not isinstance(indices, np.ndarray) else indices)
        if chosen.ndim != 1 or (len(chosen) and chosen.dtype.kind not in "iu"):
            raise UsageError("subset(indices): give whole numbers, the positions of the samples")
        if len(chosen) and (int(chosen.min()) < 0 or int(chosen.max()) >= len(self)):
            worst = int(chosen.min()) if int(chosen.min()) < 0 else int(chosen.max())
            raise UsageError(f"subset(indices): no sample {worst}: there are {len(self):,}")
        return self._take(chosen.astype(np.int64))

    def to_records(self, path: PathLike | None = None) -> Path:
        """Pack the encoded images unchanged into a ``.rec`` file, once.

        Args:
            path: the file; None: :attr:`rec_path`, or else a file in the cache folder. An existing file with the same
                labels and sizes is used again.

        Raises:
            GluontuneError: an image cannot be read, the disk is full, …
        """
        if path is None:
            path = self.rec_path or cache_dir() / self._slug / "packed" / f"{self._part}-{self._digest()}.rec"
        target = Path(path)
        if not self._is_packed(target):
            with RecordWriter(target) as writer:
                for i in range(len(self)):
                    writer.write(self.read(i), int(self.labels[i]), key=i)
        return target

    @abstractmethod
    def _read(self, index: int) -> Any: ...

    @abstractmethod
    def _size(self, index: int) -> int: ...

    @abstractmethod
    def _take(self, indices: np.ndarray) -> Split: ...

    def _digest(self) -> str:
        sizes = np.array([self._size(i) for i in range(len(self))], np.int64)
        parts = (self._places.tobytes(), self.labels.tobytes(), sizes.tobytes())
        return hashlib.blake2b(b"".join(parts), digest_size=6).hexdigest()

    def _is_packed(self, path: Path) -> bool:
        if self.rec_path is not None and path == self.rec_path:
            return True
        if not path.is_file():
            return False
        with contextlib.suppress(GluontuneError), RecordReader(path) as there:
            return (
                len(there) == len(self)
                and np.array_equal(there.labels(), self.labels)
                and all(len(there.payload(i)) == self._size(i) for i in range(len(self)))
            )
        return False


class RecordSplit(Split):
    """Samples in a ``.rec`` file."""

    def __init__(self, slug: str, part: str, path: PathLike, labels: Any, classes: Sequence[str], places: Any = None):
        whole = places is None
        super().__init__(slug, part, labels, classes, np.arange(len(labels)) if whole else places)
        self._path = Path(path).absolute()
        self.rec_path = self._path if whole else None
        self._reader: RecordReader | None = None

    def name_of(self, index: int) -> str:
        return f"{self._path}, record {int(self._places[index])}"

    def _open(self) -> RecordReader:
        # Two threads may both open it; either reader works, and no lock may be held across a fork.
        if self._reader is None:
            self._reader = RecordReader(self._path)
        return self._reader

    def _read(self, index: int) -> Any:
        return self._open().payload(int(self._places[index]))

    def locate(self, indices: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray] | None:
        """Addresses and lengths of encoded images, and the mapped file to hold, as :meth:`RecordReader.locate`.

        None if they are unknown, or if :meth:`read` is overridden and must read each.
        """
        plain = type(self).read is Split.read and type(self)._read is RecordSplit._read
        if not plain or "read" in vars(self):
            return None
        return self._open().locate(self._places[indices])

    def _size(self, index: int) -> int:
        return len(self._read(index))

    def _take(self, indices: np.ndarray) -> RecordSplit:
        return RecordSplit(
            self._slug, self._part, self._path, self.labels[indices], self._classes, self._places[indices]
        )

    def files(self) -> list[Path]:
        folder = cache_dir() / self._slug / "files" / self._part
        folders = [folder / _safe(name) for name in self._classes]
        with explained(folder):
            for label in np.unique(self.labels).tolist():
                folders[label].mkdir(parents=True, exist_ok=True)

        paths, missing = [], []
        for i, label in enumerate(self.labels.tolist()):
            data = self._read(i)
            path = f"{folders[label]}/{int(self._places[i]):06d}{header.suffix(data)}"
            paths.append(Path(path))
            with contextlib.suppress(OSError):
                if os.stat(path).st_size == len(data):
                    continue
            missing.append(i)

        with ThreadPoolExecutor(4) as pool:
            list(pool.map(lambda i: _write(paths[i], self.read(i)), missing))
        return paths

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_reader": None}


class FileSplit(Split):
    """Samples in one file each."""

    def __init__(
        self, slug: str, part: str, root: PathLike, names: Sequence[str], labels: Any, classes: Sequence[str],
        places: Any = None,
    ):  # fmt: skip
        super().__init__(slug, part, labels, classes, np.arange(len(names)) if places is None else places)
        self._root, self._names = os.fspath(root), list(names)

    def name_of(self, index: int) -> str:
        return os.path.join(self._root, self._names[index])

    def _read(self, index: int) -> Any:
        path = self.name_of(index)
        try:
            with open(path, "rb") as stream:
                return stream.read()
        except OSError as error:
            raise explain_os_error(path, error) from error

    def _size(self, index: int) -> int:
        path = self.name_of(index)
        with explained(path):
            return os.stat(path).st_size

    def _take(self, indices: np.ndarray) -> FileSplit:
        names = [self._names[i] for i in indices.tolist()]
        labels, places = self.labels[indices], self._places[indices]
        return FileSplit(self._slug, self._part, self._root, names, labels, self._classes, places)

    def files(self) -> list[Path]:
        return [Path(self._root, name) for name in self._names]


def _safe(name: str) -> str:
    """A class name as a folder name: Fashion-MNIST has a class ``T-shirt/top``."""
    cleaned = "".join(c if c.isalnum() or c in " ._+-" else "_" for c in name)
    return f"_{cleaned}" if cleaned.startswith(".") else cleaned or "_"


def _write(path: Path, data: Any) -> None:
    """Write beside and rename, without fsync: thousands take minutes, and each reuse checks the size."""
    beside = path.with_name(f".{path.name}.{os.getpid()}-{threading.get_ident()}.part")
    with explained(path):
        try:
            beside.write_bytes(data)
            os.replace(beside, path)
        finally:
            with contextlib.suppress(OSError):
                beside.unlink()
