"""MXNet's record classes, by their names and arguments, over our reader and writer: any number of threads and forks.

Two operations of MXNet are refused: two records under one key (the first would be lost), and pickling a writer (its
copy would empty the file).
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from typing import Any

from gluontune.core.errors import GluontuneError, UsageError
from gluontune.core.files import PathLike, atomic_write
from gluontune.records.layout import DamagedRecordError, join_parts
from gluontune.records.side_files import index_rows, map_file
from gluontune.records.writer import RecordWriter, index_text


class MXRecordIO:
    """Reads or writes the records of a file in order, as ``mx.recordio.MXRecordIO`` does.

    Args:
        uri: the record file. flag: ``"r"`` or ``"w"``.

    Attributes:
        uri, flag, writable, is_open: as in MXNet.

    Raises:
        UsageError: another flag, writing to a reader, use of a closed file, …
        GluontuneError: no such file, a folder that cannot be written, …

    Written records are in their place from :meth:`close` on (or when the object is deleted). The threads of a process
    share one position in the file; each record is read by one of them. A forked process reads from the first record on
    and cannot write.

    >>> import pathlib, tempfile
    >>> path = pathlib.Path(tempfile.mkdtemp()) / "a.rec"
    >>> record = MXRecordIO(path, "w")
    >>> record.write(b"first"); record.write(b"second"); record.close()
    >>> record = MXRecordIO(path, "r")
    >>> record.read(), record.read(), record.read()
    (b'first', b'second', None)
    >>> record.reset()
    >>> record.read()
    b'first'
    """

    is_open = False

    def __init__(self, uri: PathLike, flag: str):
        self.uri, self.flag = os.fspath(uri), flag
        self.open()

    def open(self) -> None:
        """Open the file: a reader at its first record, a writer with nothing."""
        if self.flag not in ("r", "w"):
            raise UsageError(f"{self.uri}: flag={self.flag!r}: give 'r' to read or 'w' to write")
        self.writable = self.flag == "w"
        if self.writable:
            self._writer = RecordWriter(self.uri, index=False, checksums=False)
        else:
            self._map, self._view = map_file(self.uri)
            self._rewind()
        self.pid = os.getpid()
        self.is_open = True

    def _rewind(self) -> None:
        self._lock, self._offset = threading.Lock(), 0

    def close(self) -> None:
        """Put the written file in its place, or release the file."""
        if not self.is_open:
            return
        self.is_open = False
        if not self.writable:
            self._view = memoryview(b"")
        elif self.pid == os.getpid():
            self._finish()

    def _finish(self) -> None:
        self._writer.close()

    def reset(self) -> None:
        """Return to the first record; a writer starts anew."""
        if self.writable and self.is_open:
            self._check(writes=True)
            self.is_open = False
            self._writer.abort()
        self.close()
        self.open()

    def write(self, buf: bytes) -> None:
        """Add a record."""
        self._check(writes=True)
        self._writer.write_record(buf)

    def read(self) -> bytes | None:
        """The next record, or None after the last.

        Raises:
            DamagedRecordError: no whole record at this position.
        """
        self._check(writes=False)
        with self._lock:
            if self._offset >= len(self._view):
                return None
            record, self._offset = self._record_at(self._offset)
        return record

    def _record_at(self, offset: int) -> tuple[bytes, int]:
        """A record, and the offset of the next one."""
        try:
            record, behind = join_parts(self._view, offset, len(self._view))
        except DamagedRecordError as error:
            raise DamagedRecordError(
                f"{self.uri}: {error}; `gluontune verify` lists all damage", offset=offset
            ) from None
        return bytes(record), behind

    def _check(self, writes: bool) -> None:
        if not self.is_open:
            raise UsageError(f"{self.uri}: it is closed; open() opens it again")
        if writes != self.writable:
            verb = "write" if writes else "read"
            raise UsageError(f"{self.uri}: opened with flag={self.flag!r}, which cannot {verb}")
        if self.pid != os.getpid():
            if writes:
                raise UsageError(f"{self.uri}: opened in process {self.pid}; a forked process cannot write to it")
            self.pid = os.getpid()
            self._rewind()  # position and lock belong to the parent

    def __getstate__(self) -> dict[str, Any]:
        if self.writable:
            raise UsageError(f"{self.uri}: a writer cannot be pickled or sent: its copy would empty the file; close it")
        dropped = ("_map", "_view", "_lock")
        return {name: value for name, value in self.__dict__.items() if name not in dropped}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        if self.is_open:
            self.open()

    def __del__(self) -> None:
        if self.is_open:
            self.close()


class MXIndexedRecordIO(MXRecordIO):
    """Reads or writes by key, with an index file, as ``mx.recordio.MXIndexedRecordIO`` does.

    Args:
        idx_path: the index file. uri: the record file. flag: ``"r"`` or ``"w"``.
        key_type: converts the index's text to a key.

    Attributes:
        keys: of the records, in the order of the index. idx: the offset of each, bytes.

    Raises:
        UsageError: a duplicate key. GluontuneError: as :class:`MXRecordIO`; an unreadable index.

    >>> import pathlib, tempfile
    >>> folder = pathlib.Path(tempfile.mkdtemp())
    >>> record = MXIndexedRecordIO(folder / "a.idx", folder / "a.rec", "w")
    >>> for k in range(3):
    ...     record.write_idx(k, b"record %d" % k)
    ...     print(record.tell())
    16
    32
    48
    >>> record.close()
    >>> record = MXIndexedRecordIO(folder / "a.idx", folder / "a.rec", "r")
    >>> record.keys, record.read_idx(1), record.read()
    ([0, 1, 2], b'record 1', b'record 2')
    """

    def __init__(self, idx_path: PathLike, uri: PathLike, flag: str, key_type: Callable[[Any], Any] = int):
        self.idx_path, self.key_type = os.fspath(idx_path), key_type
        self.idx: dict[Any, int] = {}
        self.keys: list[Any] = []
        super().__init__(uri, flag)

    def open(self) -> None:
        super().open()
        self.idx, self.keys = {}, []
        if not self.writable:
            texts, offsets = index_rows(self.idx_path)
            try:
                self.keys = [self.key_type(text) for text in texts]
            except ValueError as error:
                raise GluontuneError(f"{self.idx_path}: its keys do not fit key_type ({error})") from None
            self.idx = dict(zip(self.keys, offsets))

    def _finish(self) -> None:
        super()._finish()
        with atomic_write(self.idx_path, "w") as text:
            text.write(index_text(self.keys, self.idx.values()))

    def seek(self, idx: Any) -> None:
        """Go to the record with key ``idx``, the next of :meth:`read`.

        Raises:
            KeyError: no record has it.
        """
        self._check(writes=False)
        self._offset = self.idx[idx]

    def tell(self) -> int:
        """Bytes written so far: the offset of the next record."""
        self._check(writes=True)
        return self._writer.position

    def read_idx(self, idx: Any) -> bytes:
        """The record with key ``idx``; safe from any thread or forked process.

        Raises:
            KeyError: no record has it. DamagedRecordError: no whole record at its offset.
        """
        self._check(writes=False)
        record, behind = self._record_at(self.idx[idx])
        self._offset = behind
        return record

    def write_idx(self, idx: Any, buf: bytes) -> None:
        """Add a record with key ``idx``."""
        self._check(writes=True)
        key = self.key_type(idx)
        if set(str(key)) & set("\t\r\n"):
            raise UsageError(f"record key {key!r}: a tab or line end in it would break the index {self.idx_path}")
        if key in self.idx:
            raise UsageError(f"record key {key!r}: it is in {self.uri} already; each record needs its own")
        place = self._writer.position
        self.write(buf)
        self.idx[key] = place
        self.keys.append(key)
