"""Writing RecordIO, byte for byte as MXNet does, with index and checksums, put in place only when complete."""

from __future__ import annotations

import contextlib
import os
import zlib
from array import array
from collections.abc import Mapping
from itertools import chain
from pathlib import Path
from types import TracebackType
from typing import Any

from gluontune.core.errors import GluontuneError, UsageError
from gluontune.core.files import PathLike, atomic_write
from gluontune.core.reading import explain_os_error, explained
from gluontune.records.fields import join_fields
from gluontune.records.layout import MAX_KEY, Label, frame, image_record
from gluontune.records.side_files import head, make_rows, side_path


class RecordWriter:
    """Writes a ``.rec`` file beside its final place and renames it when it is closed.

    The bytes equal those of ``MXIndexedRecordIO.write_idx(key, pack(IRHeader(0, label, key, 0), payload))``.
    Until :meth:`close`, and if the ``with`` block raises, the final place is unchanged. Not thread-safe: one writer
    belongs to one thread.

    Args:
        path: the final record file, ``.rec`` by custom.
        index: also write ``.idx`` (MXNet's format) beside it; or the path of the index. ``RecordWriter("a.idx",
            "a.rec")``, the order of ``MXIndexedRecordIO``, is accepted.
        checksums: also write ``.crc``, with which ``verify`` finds damage inside a payload.

    Raises:
        GluontuneError: the folder is read-only, the disk full, …
        UsageError: a label that float32 cannot hold, a record of 2^29 bytes or more, a key used twice.

    >>> import pathlib, tempfile
    >>> out = pathlib.Path(tempfile.mkdtemp()) / "a.rec"
    >>> with RecordWriter(out) as w:
    ...     w.write(b"image", label=[1, 0], key=7)
    >>> sorted(p.name for p in out.parent.iterdir())
    ['a.crc', 'a.idx', 'a.rec']
    """

    def __init__(self, path: PathLike, index: PathLike | bool = True, checksums: bool = True):
        index_path = None if isinstance(index, bool) else os.fspath(index)
        self.path = os.fspath(path)
        if index_path is not None and self.path.endswith(".idx"):  # MXIndexedRecordIO's order
            self.path, index_path = index_path, self.path
        if self.path.endswith((".idx", ".crc")) or index_path == self.path:
            raise UsageError(f"{self.path}: the name of an index, not of a record file; give NAME.rec")
        self.index_path = index_path or str(side_path(self.path, ".idx"))
        self.index, self.checksums = bool(index), checksums
        self._keys, self._offsets, self._lengths, self._crcs = (array("q") for _ in range(4))
        self._used: set[int] | None = None  # needed once keys stop increasing
        self._position = 0
        self._file = atomic_write(self.path)
        self._stream: Any = self._file.__enter__()

    def __len__(self) -> int:
        return len(self._keys)

    @property
    def position(self) -> int:
        """Bytes written so far: the offset of the next record."""
        return self._position

    def write(self, payload: bytes, label: Label, key: int | None = None) -> None:
        """Add an image record.

        Args:
            payload: the image's bytes (or any others).
            label: a number, or k numbers; stored as float32.
            key: whole number, unique, at least 0; None takes the record's position.
        """
        key = self._check_key(key)
        self._append(image_record(payload, label, key), key)

    def write_fields(self, fields: Mapping[str, Any], key: int | None = None) -> None:
        """Add an image record with named fields, in the layout of :mod:`gluontune.records.fields`.

        Args:
            fields: ``image`` (encoded, bytes), ``label``, ``boxes`` (n, 5 or more), ``mask`` (H, W), and any others:
                text, bytes, numbers, arrays.
            key: see :meth:`write`.

        Raises:
            UsageError: an unsupported value; names its field.

        >>> import pathlib, tempfile
        >>> from gluontune.records import RecordReader
        >>> out = pathlib.Path(tempfile.mkdtemp()) / "a.rec"
        >>> with RecordWriter(out) as w:
        ...     w.write_fields({"image": b"...", "boxes": [[3, 0.25, 0.5, 0.75, 1]], "caption": "a robin"})
        >>> RecordReader(out).fields(0)["caption"]
        'a robin'
        """
        label, payload = join_fields(fields)
        self.write(payload, label, key)

    def write_record(self, record: bytes, key: int | None = None) -> None:
        """Add a raw record, without an image header."""
        self._append(bytes(record), self._check_key(key))

    def _check_key(self, key: int | None) -> int:
        if self._stream is None:
            raise UsageError(f"{self.path}: the writer is closed")
        if key is None:
            key = len(self._keys)
        try:
            key = key.__index__()
        except AttributeError:
            raise UsageError(f"record key {key!r}: give a whole number") from None
        if not 0 <= key <= MAX_KEY:
            raise UsageError(f"record key {key}: give a whole number from 0 to 2^63 - 1")
        if self._used is None and self._keys and key <= self._keys[-1]:
            self._used = set(self._keys)
        if self._used is not None and key in self._used:
            raise UsageError(f"record key {key}: it is in {self.path} already; each record needs its own")
        return key

    def _append(self, record: bytes, key: int) -> None:
        framed = frame(record)
        try:
            self._stream.write(framed)
        except OSError as error:
            self.abort()
            raise explain_os_error(self.path, error) from error
        self._keys.append(key)
        self._offsets.append(self._position)
        self._lengths.append(len(record))
        self._crcs.append(zlib.crc32(record) if self.checksums else 0)
        if self._used is not None:
            self._used.add(key)
        self._position += len(framed)

    def close(self) -> None:
        """Put the file and its side files in place. Old side files are removed first, so that none is ever stale."""
        if self._stream is None:
            return
        try:
            remove_side_files(self.path)
            _remove(self.index_path)
            stream, self._stream = self._stream, None
            del stream
            self._file.__exit__(None, None, None)
            if self.index:
                with atomic_write(self.index_path, "w") as text:
                    text.write(index_text(self._keys, self._offsets))
            if self.checksums:
                rows = make_rows(*(list(c) for c in (self._keys, self._offsets, self._lengths, self._crcs)))
                with atomic_write(side_path(self.path, ".crc")) as side:
                    side.write(head() + rows.tobytes())
        except BaseException:
            self.abort()
            raise

    def abort(self) -> None:
        """Discard the written file; the final place is unchanged."""
        if self._stream is None:
            return
        self._stream = None
        stop = GluontuneError("writing was abandoned")
        with contextlib.suppress(GluontuneError):
            self._file.__exit__(GluontuneError, stop, None)
        stop.__traceback__ = None  # its frames refer to it and the caller: no writer would be freed

    def __enter__(self) -> RecordWriter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            self.close()
        else:
            self.abort()

    def __del__(self) -> None:
        if getattr(self, "_stream", None) is not None:
            self.abort()


def index_text(keys: Any, offsets: Any) -> str:
    """The text of an ``.idx`` file."""
    return "%s\t%d\n" * len(keys) % tuple(chain.from_iterable(zip(keys, offsets)))


def remove_side_files(path: PathLike) -> None:
    """Remove ``.idx`` and ``.crc`` of a record file that is about to be replaced."""
    for suffix in (".idx", ".crc"):
        _remove(side_path(path, suffix))


def _remove(path: PathLike) -> None:
    with explained(path):
        Path(path).unlink(missing_ok=True)
