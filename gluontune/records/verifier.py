"""``verify``: is every record of a file what was written? ``repair``: keep all that is."""

from __future__ import annotations

import contextlib
import os
import zlib
from collections import Counter, deque
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Callable, Optional, Union

import numpy as np

from gluontune.codec.header import ImageError, inspect, kind_of
from gluontune.codec.raw import raw_to_pixels
from gluontune.codec.recode import incomplete
from gluontune.errors import GluontuneError, UsageError
from gluontune.records.checksums import HEAD_SIZE, ROW, mended_rows, read_checksums, row_is_sound, side_path
from gluontune.records.fields import Field, split_fields
from gluontune.records.fileindex import map_file
from gluontune.records.keys import KeyScheme
from gluontune.records.layout import IMAGE_HEAD, MAX_KEY, DamagedRecordError, split_image_record
from gluontune.records.structure import Broken, Found, joined, walk

__all__ = ["Damage", "Progress", "Survey", "VerifyReport", "verify"]

PathLike = Union[str, "os.PathLike[str]"]
Progress = Callable[[int, int], None]  # bytes done, bytes in all
BATCH = 128


@dataclass(frozen=True)
class Damage:
    """One fault. ``index`` is the record's position (row of the index, else order in the file) or None."""

    index: Optional[int]
    offset: int
    reason: str

    def to_dict(self) -> dict[str, Any]:
        return {"index": self.index, "offset": self.offset, "reason": self.reason}


@dataclass
class VerifyReport:
    """What :func:`verify` found.

    Args:
        records: records that the file should have: those of the checksums, else of the index, else those found.
        whole: records that are what was written, as far as can be told, and that the index leads to.
        damaged: faults of records and index rows, by offset.
        unchecked: records without a checksum: their framing and image were looked at, their bytes are not proven.
        incomplete: whole records of images whose data end early or are damaged inside: they were packed so, and
            decoders fill in grey. Only the compiled codec knows.
        problems: faults that harm no record: of the side files, of padding.
        path: the file.
    """

    path: str
    records: int = 0
    whole: int = 0
    damaged: list[Damage] = field(default_factory=list)
    unchecked: int = 0
    incomplete: list[Damage] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        """No fault at all."""
        return not self.damaged and not self.problems

    @property
    def no_record_file(self) -> bool:
        """Nothing in it begins as a record does, and no index or checksums say otherwise: some other file."""
        if not self.damaged or self.whole or any("no record starts" not in d.reason for d in self.damaged):
            return False
        return not any(Path(self.path).with_suffix(suffix).exists() for suffix in (".idx", ".crc"))

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return {
            "path": self.path,
            "ok": self.ok,
            "records": self.records,
            "whole": self.whole,
            "damaged": [d.to_dict() for d in self.damaged],
            "unchecked": self.unchecked,
            "incomplete": [d.to_dict() for d in self.incomplete],
            "problems": self.problems,
        }


@dataclass
class Checked:
    """A record that was found, and what its bytes say."""

    found: Found
    length: int
    crc: int
    key: int  # the id in its image header; -1 without one
    kind: str | None
    fault: str | None  # of the image
    padding: bool  # zeros, as they should be
    incomplete: str = ""
    row: int = -1  # of the checksums
    whole: bool = False
    reason: str = ""


def verify(
    path: PathLike,
    index: PathLike | bool | None = None,
    *,
    decode: bool = True,
    workers: int | None = None,
    progress: Progress | None = None,
) -> VerifyReport:
    """Check every record of a ``.rec`` file against its framing, checksums, index and image format.

    Args:
        path: the ``.rec`` file; ``.crc`` and ``.idx`` beside it are used if they are there.
        index: another index file, or False for none.
        decode: decode every image (needs cv2); else only its headers, end and checksums are looked at.
        workers: threads; None: one for each usable core.
        progress: called with (bytes done, bytes in all).

    Raises:
        GluontuneError: the file cannot be read.

    >>> import pathlib, tempfile
    >>> from gluontune.records import RecordWriter
    >>> out = pathlib.Path(tempfile.mkdtemp()) / "a.rec"
    >>> with RecordWriter(out) as w:
    ...     w.write(b"12345678", 0)
    ...     w.write(b"abcdefgh", 1)
    >>> data = bytearray(out.read_bytes())
    >>> data[-1] ^= 1
    >>> _ = out.write_bytes(data)
    >>> report = verify(out)
    >>> report.records, report.whole, report.damaged
    (2, 1, [Damage(index=1, offset=40, reason='its bytes differ from their checksum')])
    """
    with Survey(path, index, decode=decode, workers=workers, progress=progress) as survey:
        return survey.report


class Survey:
    """All that is known about a file; :attr:`report` is made from it, and ``repair`` works from it."""

    def __init__(
        self,
        path: PathLike,
        index: PathLike | bool | None = None,
        *,
        decode: bool = True,
        workers: int | None = None,
        progress: Progress | None = None,
    ):
        self.path = os.fspath(path)
        self.decode = decode
        self.report = VerifyReport(self.path)
        self._map, self.view = map_file(self.path)
        if not len(self.view):
            raise GluontuneError(f"{self.path}: the file is empty: there is no record in it")
        self.rows = self._read_rows()
        self.index = _Index(self.path, index)
        self._known = Counter(zip(self.rows["length"].tolist(), self.rows["crc"].tolist()))
        self._key_set = {key for _, key, _ in self.index.rows} | set(self.rows["key"].tolist())
        self._lengths = {length for length, _ in self._known}
        self.checked: list[Checked] = []
        self.broken: list[Broken] = []
        self.keys = KeyScheme()
        self._check_all(workers, progress or (lambda done, total: None))
        self._judge()

    def _read_rows(self) -> np.ndarray:
        """Sound rows of the checksums. ``self.all_rows`` tells whether none was lost, but at the end."""
        side = side_path(self.path, ".crc")
        self.all_rows, self.has_checksums = False, side.is_file()
        if not side.is_file():
            return np.zeros(0, ROW)
        try:
            _, rows = read_checksums(side, lenient=True)
        except GluontuneError as error:
            self.report.problems.append(str(error))
            return np.zeros(0, ROW)
        hurt = int((~row_is_sound(rows)).sum())
        rows = mended_rows(rows)
        sound = row_is_sound(rows)
        lost = int((~sound).sum())
        whole = side.stat().st_size == HEAD_SIZE + len(rows) * ROW.itemsize
        self.all_rows = not lost and whole
        if hurt or not whole:
            what = f"{hurt} damaged rows" if hurt else "its last row is cut"
            mended = f", {hurt - lost} of them put right by their check words" if hurt > lost else ""
            self.report.problems.append(f"{side}: {what}{mended}; the other rows are used")
        return rows[sound]

    def _is_known(self, found: Found) -> bool:
        record = joined(self.view, found)
        return len(record) in self._lengths and (len(record), zlib.crc32(record)) in self._known

    def _is_familiar(self, found: Found) -> bool:
        record = joined(self.view, found)
        return len(record) >= IMAGE_HEAD.size and IMAGE_HEAD.unpack_from(record)[2] in self._key_set

    def _check_all(self, workers: int | None, progress: Progress) -> None:
        from gluontune.runtime import usable_cores

        threads = workers or usable_cores()
        waiting: deque[Future[list[Checked]]] = deque()
        with ThreadPoolExecutor(threads, thread_name_prefix="gluontune-verify") as pool:

            def collect(leave: int) -> None:
                while len(waiting) > leave:
                    self.checked += waiting.popleft().result()
                    if self.checked:
                        progress(self.checked[-1].found.behind, len(self.view))

            for batch in self._batches():
                waiting.append(pool.submit(self._check_batch, batch))
                collect(4 * threads)
            collect(0)
        progress(len(self.view), len(self.view))

    def _batches(self) -> Iterator[list[Found]]:
        batch: list[Found] = []
        for piece in walk(self.view, self._is_known, self._is_familiar):
            if isinstance(piece, Broken):
                self.broken.append(piece)
                continue
            batch.append(piece)
            if len(batch) == BATCH:
                yield batch
                batch = []
        yield batch

    def _check_batch(self, batch: list[Found]) -> list[Checked]:
        return [self._check(found) for found in batch]

    def _check(self, found: Found) -> Checked:
        record = joined(self.view, found)
        padding = not any(self.view[found.spans[-1][1] : found.behind]) and found.behind <= len(self.view)
        key, kind, fault, lacks = -1, None, None, ""
        with contextlib.suppress(DamagedRecordError):
            header, payload = split_image_record(record)
            key = header.id if header.id < 1 << 63 else -1
            fields: list[Field] = []
            try:
                payload, fields = split_fields(payload)
            except GluontuneError as error:
                fault = str(error)
            kind = kind_of(payload)
            if fault is None and (len(payload) or not fields):  # a record may have fields and no image
                fault, lacks = self._image_fault(payload, kind)
        return Checked(found, len(record), zlib.crc32(record), key, kind, fault, padding, lacks)

    def _image_fault(self, payload: Any, kind: str | None) -> tuple[str | None, str]:
        """Why an image cannot be decoded, and what it lacks where it can."""
        if kind is None:
            return f"not an image (begins with {bytes(payload[:12])!r})", ""
        lacks: str | None = ""
        try:
            if kind == "npy":
                raw_to_pixels(payload)
                return None, ""
            data = bytes(payload)
            info = inspect(data)
            if self.decode:
                from gluontune.codec.image import decode_image

                lacks = incomplete(data)
                if lacks != "":  # else the codec has decoded all of it
                    decode_image(data, info)
        except ImageError as error:
            return f"undecodable image: {error}", ""
        return None, lacks or ""

    def _judge(self) -> None:
        from gluontune.records.diagnosis import judge

        judge(self)

    def close(self) -> None:
        self.view = memoryview(b"")
        if self._map is not None:
            with contextlib.suppress(BufferError):
                self._map.close()

    def __enter__(self) -> Survey:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


class _Index:
    """The rows of an index as they are, the broken ones too."""

    def __init__(self, path: str, index: PathLike | bool | None):
        chosen = side_path(path, ".idx") if index is None or index is True else index
        self.path: Path | None = None
        self.rows: list[tuple[int, Any, int]] = []  # row number, key, offset
        self.faults: list[tuple[int, str]] = []
        self.keys: list[Any] = []  # of each line, as far as it can be read: None where not
        if chosen is False or (index is None and not Path(chosen).is_file()):
            return
        if not Path(chosen).is_file():
            raise UsageError(f"{chosen}: no such index file")
        self.path = Path(chosen)
        lines = self.path.read_bytes().split(b"\n")
        cut = lines.pop()
        for number, line in enumerate(lines):
            self._read(number, line)
        if cut:
            self._read(len(lines), cut)

    def _read(self, number: int, line: bytes) -> None:
        key, tab, offset = line.rstrip(b"\r").rpartition(b"\t")
        text = key.decode("utf-8", "replace")
        countable = text.isascii() and text.isdigit() and len(text) < 20 and int(text) <= MAX_KEY
        number_key = int(text) if countable else text
        self.keys.append(number_key if tab else None)
        if not tab or not offset.isdigit() or len(offset) > 18:
            self.faults.append((number, f"index line {number + 1} is not 'key<TAB>offset': {line[:40]!r}"))
            return
        self.rows.append((number, number_key, int(offset)))
