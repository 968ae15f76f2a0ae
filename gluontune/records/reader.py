"""Reading RecordIO: memory-mapped, by position or key, from any number of threads and processes."""

from __future__ import annotations

import contextlib
import operator
import os
import zlib
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np

from gluontune.codec import native
from gluontune.core.errors import GluontuneError, UsageError
from gluontune.core.files import Closing, PathLike
from gluontune.records.fields import END, split_fields, take_fields
from gluontune.records.layout import (
    IMAGE_HEAD,
    LENGTH_MASK,
    MAX_KEY,
    DamagedRecordError,
    IRHeader,
    join_parts,
    split_image_record,
    starts_record,
)
from gluontune.records.side_files import (
    bounded,
    find_index,
    map_file,
    read_checksums,
    read_index,
    row_is_sound,
    scan,
    side_path,
)


class RecordReader(Closing):
    """Random access to the records of a ``.rec`` file, without copies.

    The file is mapped: the threads of a process and all forked or spawned processes may use one reader at once, since
    no file position is shared (MXNet's reader returns wrong records then). A view stays valid after :meth:`close`. The
    file must not be truncated while it is open.

    Args:
        path: the ``.rec`` file.
        index: path of its ``.idx``; None: the one beside it, or else a scan for records; False: always a scan.
            Positions follow the rows of the index, else the file.
        check: compare each record with the ``.crc`` file (one pass over its bytes).

    Raises:
        GluontuneError: no such file, an unreadable index, an index row beyond the end, a scan that meets damage.
        DamagedRecordError: on reading, no whole record at its offset.

    >>> import pathlib, tempfile
    >>> from gluontune.records import RecordWriter
    >>> out = pathlib.Path(tempfile.mkdtemp()) / "two.rec"
    >>> with RecordWriter(out) as w:
    ...     w.write(b"first", label=0)
    ...     w.write(b"second", label=1)
    >>> with RecordReader(out) as r:
    ...     len(r), bytes(r.payload(1)), r.header(1).label, r.labels().tolist()
    (2, b'second', 1.0, [0.0, 1.0])
    """

    def __init__(self, path: PathLike, index: PathLike | bool | None = None, check: bool = False):
        self.path = os.fspath(path)
        self.check = check
        self._map, self._view = map_file(self.path)
        self.index_path = find_index(self.path, index)
        if self.index_path is None:
            self._offsets = scan(self._view, self.path)
            self._keys: Any = None
        else:
            self._keys, self._offsets = read_index(self.index_path)
            self._check_offsets()
        self._prepare()

    def _prepare(self) -> None:
        """Set the derived attributes, without a lock, so that a fork can never deadlock."""
        self._offsets, self._ends = bounded(self._offsets, len(self._view))
        self._positions: dict[Any, int] | None = None
        self._labels: np.ndarray | None = None
        self._crcs: dict[int, tuple[int, int]] | None = None
        if self.check:
            _, rows = read_checksums(side_path(self.path, ".crc"))
            rows = rows[row_is_sound(rows)]
            pairs = zip(rows["length"].tolist(), rows["crc"].tolist())
            self._crcs = dict(zip(rows["offset"].tolist(), pairs))

    def _check_offsets(self) -> None:
        if not len(self._offsets):
            return
        low, high = int(self._offsets.min()), int(self._offsets.max())
        if low < 0 or high + 8 > len(self._view):
            raise GluontuneError(
                f"{self.index_path}: a row points to byte {high if low >= 0 else low:,}, but {self.path} has "
                f"{len(self._view):,} bytes: the file was cut or the index belongs to another one; "
                "run `gluontune verify` on it"
            )

    def __len__(self) -> int:
        return len(self._offsets)

    def __getitem__(self, index: int) -> memoryview:
        return self.read(index)

    def __iter__(self) -> Iterator[memoryview]:
        return (self.read(i) for i in range(len(self)))

    def read(self, index: int) -> memoryview:
        """The raw record at a position (image header included), as a read-only view.

        Raises:
            IndexError: no such position.
            DamagedRecordError: no whole record at this position.
        """
        try:
            index = operator.index(index)
            offset, end = int(self._offsets[index]), int(self._ends[index])
        except IndexError:
            raise IndexError(f"{self.path}: no record {index}: there are {len(self):,}") from None
        try:
            record = self._join(offset, end)
            if self._crcs is not None:
                self._compare(record, offset)
        except DamagedRecordError as error:
            raise self._damaged(index, offset, error) from None
        return record if isinstance(record, memoryview) else memoryview(record)

    def _join(self, offset: int, end: int) -> Any:
        try:
            return join_parts(self._view, offset, end)[0]
        except DamagedRecordError:
            # A record that reaches beyond the next indexed one is damaged, unless that row is wrong.
            if end == len(self._view) or (end % 4 == offset % 4 and starts_record(self._view, end)):
                raise
            return join_parts(self._view, offset, len(self._view))[0]

    def _damaged(self, index: int, offset: int, error: Exception) -> DamagedRecordError:
        message = f"{self.path}: record {index} is damaged: {error}; `gluontune verify` lists all damage"
        return DamagedRecordError(message, index, offset)

    def _compare(self, record: Any, offset: int) -> None:
        row = (self._crcs or {}).get(offset)
        if row is None:
            raise DamagedRecordError("the .crc file has no sound row for it", offset=offset)
        if row != (len(record), zlib.crc32(record)):
            raise DamagedRecordError("its checksum differs", offset=offset)

    def read_key(self, key: Any) -> memoryview:
        """The raw record with this key (see :attr:`keys`)."""
        return self.read(self.position(key))

    def position(self, key: Any) -> int:
        """The position of a key.

        Raises:
            UsageError: no record has it.
        """
        if self._positions is None:
            keys = self.keys
            self._positions = dict(zip(keys.tolist() if isinstance(keys, np.ndarray) else keys, range(len(keys))))
        try:
            return self._positions[key]
        except (KeyError, TypeError):
            raise UsageError(f"{self.path}: no record has the key {key!r} ({len(self):,} records)") from None

    @property
    def keys(self) -> Any:
        """(N,) int64: the keys of the index in its order (a list of str if they are no numbers).

        Without an index: the ids in the image headers, which every packer sets to the key, or the positions if these
        are not unique.
        """
        if self._keys is None:
            found = (IMAGE_HEAD.unpack_from(r)[2] if len(r) >= IMAGE_HEAD.size else MAX_KEY + 1 for r in self)
            ids = np.fromiter(found, np.uint64, len(self))
            unique = len(np.unique(ids)) == len(ids) and bool((ids <= MAX_KEY).all())
            self._keys = ids.astype(np.int64) if unique else np.arange(len(self))
        elif isinstance(self._keys, range):
            self._keys = np.arange(len(self))
        return self._keys

    def header(self, index: int) -> IRHeader:
        """The image header at a position: ``label`` is a float, or float32 of shape (flag,)."""
        return self.unpack(index)[0]

    def payload(self, index: int) -> memoryview:
        """The image bytes behind the header, as a read-only view."""
        return self.unpack(index)[1]

    def unpack(self, index: int) -> tuple[IRHeader, memoryview]:
        """Header and image bytes at a position, by one read, without other fields (see :meth:`fields`)."""
        record = self.read(index)
        try:
            header, payload = split_image_record(record)
            return header, split_fields(payload)[0] if payload[-8:] == END else payload
        except GluontuneError as error:
            raise self._damaged(index, int(self._offsets[index]), error) from None

    def fields(self, index: int, names: Iterable[str] | None = None) -> dict[str, Any]:
        """The named fields of a record: see :func:`gluontune.records.fields.take_fields`.

        Args:
            index: its position. names: the wanted ones; None: all.

        Raises:
            GluontuneError: damage, or no such field; names record and field.
        """
        record = self.read(index)
        try:
            return take_fields(*split_image_record(record), names)
        except GluontuneError as error:
            if isinstance(error, DamagedRecordError):
                raise self._damaged(index, int(self._offsets[index]), error) from None
            raise GluontuneError(f"{self.path}, record {index}: {error}") from None

    def locate(self, positions: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray] | None:
        """The addresses of the image bytes of many records, without Python code for each.

        Args:
            positions: int64 (n,), each a position of this file.

        Returns:
            addresses and lengths, uintp (n,), and the mapped file, uint8: hold it as long as the addresses are used
            (this reader may be deleted meanwhile). Length 0 for a record that :meth:`payload` must read (several parts,
            or damage). None without a compiled codec, or if records are compared with their checksums.

        Raises:
            IndexError: no such position.
        """
        library = None if self.check else native.load()
        # close() in another thread changes none of these
        view, offsets, ends = self._view, self._offsets, self._ends
        if library is None or not len(view):
            return None
        positions = np.ascontiguousarray(positions, np.int64)
        count = min(len(offsets), len(ends))
        wrong = positions[(positions < 0) | (positions >= count)]
        if len(wrong):
            raise IndexError(f"{self.path}: no record {wrong[0]}: there are {count:,}")
        offsets, ends = np.ascontiguousarray(offsets, np.int64), np.ascontiguousarray(ends, np.int64)
        whole = np.frombuffer(view, np.uint8)
        addresses, lengths = np.empty(len(positions), np.uintp), np.empty(len(positions), np.uintp)
        library.gt_records(
            len(positions), whole.ctypes.data, whole.size, offsets.ctypes.data, ends.ctypes.data,
            positions.ctypes.data, addresses.ctypes.data, lengths.ctypes.data,
        )  # fmt: skip
        return addresses, lengths, whole

    def labels(self) -> np.ndarray:
        """(N,) float32, or (N, k) if records have k labels; computed once.

        Raises:
            GluontuneError: records have different numbers of labels (read them by :meth:`header`).
        """
        if self._labels is None:
            flat = self._single_labels()
            self._labels = self._any_labels() if flat is None else flat
            self._labels.flags.writeable = False
        return self._labels

    def _single_labels(self) -> np.ndarray | None:
        """All labels at once if each record is one part with one label, else None."""
        if not len(self) or int((self._ends - self._offsets).min()) < 32:
            return None
        raw = np.frombuffer(self._view, np.uint8)
        found = np.zeros(len(self), np.float32)
        for start in range(0, len(self), 65536):
            offsets = self._offsets[start : start + 65536]
            heads = raw[offsets[:, None] + np.arange(16)].view("<u4")
            lengths = heads[:, 1].astype(np.int64)
            sound = (heads[:, 0] == 0xCED7230A) & (lengths >= 24) & (lengths <= LENGTH_MASK) & (heads[:, 2] == 0)
            sound &= offsets + 8 + lengths <= self._ends[start : start + 65536]
            if not sound.all():
                return None
            found[start : start + 65536] = heads[:, 3].copy().view("<f4")
        return found

    def _any_labels(self) -> np.ndarray:
        rows = [self.header(i).label for i in range(len(self))]
        widths = sorted({np.size(row) if np.ndim(row) else 0 for row in rows})
        if len(widths) > 1:
            raise GluontuneError(
                f"{self.path}: records carry {max(widths[0], 1)} to {widths[-1]} labels; read each by header(i).label"
            )
        return np.array(rows, np.float32)

    def close(self) -> None:
        """Release the file. Views in use keep the mapping alive."""
        self._view = memoryview(b"")
        self._offsets, self._ends = self._offsets[:0], self._ends[:0]
        if self._map is not None:
            with contextlib.suppress(BufferError):
                self._map.close()
            self._map = None

    def __repr__(self) -> str:
        return f"RecordReader({self.path!r}: {len(self):,} records)"

    def __getstate__(self) -> dict[str, Any]:
        scanned = self._offsets if self.index_path is None else None
        size = len(self._view)
        return {"path": self.path, "index": self.index_path, "check": self.check, "scanned": scanned, "size": size}

    def __setstate__(self, state: dict[str, Any]) -> None:
        if state["scanned"] is None:
            self.__init__(state["path"], state["index"], state["check"])  # type: ignore[misc]
            return
        self.path, self.check, self.index_path, self._keys = state["path"], state["check"], None, None
        self._map, self._view = map_file(self.path)
        same = len(self._view) == state["size"]
        self._offsets = state["scanned"] if same else scan(self._view, self.path)
        self._prepare()
