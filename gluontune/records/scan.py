"""The immutable evidence in a record file and its side files."""

from __future__ import annotations

import contextlib
import os
import zlib
from collections import Counter, deque
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Callable, NamedTuple, Optional

import numpy as np

from gluontune.codec.header import ImageError, inspect, kind_of
from gluontune.codec.image import decode_image, raw_to_pixels
from gluontune.codec.native import incomplete
from gluontune.core.errors import GluontuneError, UsageError
from gluontune.core.files import PathLike
from gluontune.core.forking import at_work
from gluontune.records.fields import Field, split_fields
from gluontune.records.layout import IMAGE_HEAD, MAX_KEY, DamagedRecordError, split_image_record
from gluontune.records.side_files import HEAD_SIZE, ROW, mended_rows, read_checksums, row_is_sound, side_path, viewed
from gluontune.records.structure import Broken, Found, joined, walk
from gluontune.runtime import usable_cores

Progress = Callable[[int, int], None]  # bytes done, bytes in all
BATCH = 128


class Checked(NamedTuple):
    """A record and its checked bytes.

    Args:
        key: the id in its image header; -1 without one. fault: of the image. padding: zeros, as it should be.
        row: of the checksums, or -1. reason: of its damage, "" if it is whole; None: not judged yet.
    """

    found: Found
    length: int
    crc: int
    key: int
    kind: Optional[str]
    fault: Optional[str]
    padding: bool
    incomplete: str = ""
    row: int = -1
    reason: Optional[str] = None

    @property
    def whole(self) -> bool:
        return self.reason == ""


@dataclass(frozen=True)
class Checksums:
    """The sound rows of a ``.crc`` file. ``complete``: no row is lost, except perhaps at the end."""

    rows: np.ndarray
    complete: bool = False
    exist: bool = False
    problems: tuple[str, ...] = ()

    @classmethod
    def read(cls, path: str) -> Checksums:
        side, none = side_path(path, ".crc"), np.zeros(0, ROW)
        if not side.is_file():
            return cls(none)
        try:
            _, rows = read_checksums(side, lenient=True)
        except GluontuneError as error:
            return cls(none, exist=True, problems=(str(error),))
        hurt = int((~row_is_sound(rows)).sum())
        rows = mended_rows(rows)
        sound = row_is_sound(rows)
        lost = int((~sound).sum())
        whole = side.stat().st_size == HEAD_SIZE + len(rows) * ROW.itemsize
        problems: tuple[str, ...] = ()
        if hurt or not whole:
            what = f"{hurt} damaged rows" if hurt else "its last row is cut"
            mended = f", {hurt - lost} of them put right by their check words" if hurt > lost else ""
            problems = (f"{side}: {what}{mended}; the other rows are used",)
        return cls(rows[sound], not lost and whole, True, problems)


@dataclass(frozen=True)
class Index:
    """The rows of an index, with the broken ones.

    Args:
        rows: row number, key, offset. faults: row number, reason.
        keys: of each line, None if unreadable.
    """

    path: Path | None = None
    rows: tuple[tuple[int, Any, int], ...] = ()
    faults: tuple[tuple[int, str], ...] = ()
    keys: tuple[Any, ...] = ()

    @classmethod
    def read(cls, path: str, index: PathLike | bool | None) -> Index:
        chosen = side_path(path, ".idx") if index is None or index is True else index
        if chosen is False or (index is None and not Path(chosen).is_file()):
            return cls()
        if not Path(chosen).is_file():
            raise UsageError(f"{chosen}: no such index file")
        lines = Path(chosen).read_bytes().split(b"\n")
        if not lines[-1]:
            lines.pop()
        rows, faults, keys = [], [], []
        for number, line in enumerate(lines):
            key, tab, offset = line.rstrip(b"\r").rpartition(b"\t")
            text = key.decode("utf-8", "replace")
            countable = text.isascii() and text.isdigit() and len(text) < 20 and int(text) <= MAX_KEY
            number_key = int(text) if countable else text
            keys.append(number_key if tab else None)
            if not tab or not offset.isdigit() or len(offset) > 18:
                faults.append((number, f"index line {number + 1} is not 'key<TAB>offset': {line[:40]!r}"))
            else:
                rows.append((number, number_key, int(offset)))
        return cls(Path(chosen), tuple(rows), tuple(faults), tuple(keys))


@dataclass(frozen=True)
class Evidence:
    """All knowledge of a file: its bytes, its side files, its records and the breaks between them."""

    path: str
    view: memoryview
    index: Index
    checksums: Checksums
    checked: tuple[Checked, ...]
    broken: tuple[Broken, ...]
    problems: tuple[str, ...]

    @property
    def rows(self) -> np.ndarray:
        """The rows of the checksums."""
        return self.checksums.rows


@contextlib.contextmanager
def scan(
    path: PathLike,
    index: PathLike | bool | None = None,
    *,
    decode: bool = True,
    workers: int | None = None,
    progress: Progress | None = None,
) -> Iterator[Evidence]:
    """The evidence of a whole file, valid inside the block. Arguments: see ``verify``."""
    name = os.fspath(path)
    with viewed(name) as view:
        if not len(view):
            raise GluontuneError(f"{name}: the file is empty: there is no record in it")
        checksums = Checksums.read(name)
        lines = Index.read(name, index)
        checked, broken = _check_all(view, _Known(view, checksums, lines), decode, workers, progress)
        yield Evidence(name, view, lines, checksums, checked, broken, checksums.problems)


class _Known:
    """The records known from checksums and index."""

    def __init__(self, view: memoryview, checksums: Checksums, index: Index):
        rows = checksums.rows
        self._view = view
        self._content = Counter(zip(rows["length"].tolist(), rows["crc"].tolist()))
        self._lengths = {length for length, _ in self._content}
        self._keys = {key for _, key, _ in index.rows} | set(rows["key"].tolist())

    def content(self, found: Found) -> bool:
        record = joined(self._view, found)
        return len(record) in self._lengths and (len(record), zlib.crc32(record)) in self._content

    def key(self, found: Found) -> bool:
        record = joined(self._view, found)
        return len(record) >= IMAGE_HEAD.size and IMAGE_HEAD.unpack_from(record)[2] in self._keys


def _check_all(
    view: memoryview, known: _Known, decode: bool, workers: int | None, progress: Progress | None
) -> tuple[tuple[Checked, ...], tuple[Broken, ...]]:
    threads = workers or usable_cores()
    checked: list[Checked] = []
    broken: list[Broken] = []
    waiting: deque[Future[list[Checked]]] = deque()
    with ThreadPoolExecutor(threads, thread_name_prefix="gluontune-verify") as pool:

        def collect(leave: int) -> None:
            while len(waiting) > leave:
                checked.extend(waiting.popleft().result())
                if checked and progress is not None:
                    progress(checked[-1].found.behind, len(view))

        for batch in _batches(view, known, broken):
            waiting.append(pool.submit(at_work()(lambda found: [_check(view, one, decode) for one in found]), batch))
            collect(4 * threads)
        collect(0)
    if progress is not None:
        progress(len(view), len(view))
    return tuple(checked), tuple(broken)


def _batches(view: memoryview, known: _Known, broken: list[Broken]) -> Iterator[list[Found]]:
    batch: list[Found] = []
    for piece in walk(view, known.content, known.key):
        if isinstance(piece, Broken):
            broken.append(piece)
            continue
        batch.append(piece)
        if len(batch) == BATCH:
            yield batch
            batch = []
    yield batch


def _check(view: memoryview, found: Found, decode: bool) -> Checked:
    record = joined(view, found)
    padding = not any(view[found.spans[-1][1] : found.behind]) and found.behind <= len(view)
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
            fault, lacks = _image_fault(payload, kind, decode)
    return Checked(found, len(record), zlib.crc32(record), key, kind, fault, padding, lacks)


def _image_fault(payload: Any, kind: str | None, decode: bool) -> tuple[str | None, str]:
    """The reason why an image cannot be decoded, and why a decoded one is incomplete."""
    if kind is None:
        return f"not an image (begins with {bytes(payload[:12])!r})", ""
    lacks: str | None = ""
    try:
        if kind == "npy":
            raw_to_pixels(payload)
            return None, ""
        data = bytes(payload)
        info = inspect(data)
        if decode:
            lacks = incomplete(data)
            if lacks != "":  # else the codec has decoded it completely
                decode_image(data, info)
    except ImageError as error:
        return f"undecodable image: {error}", ""
    return None, lacks or ""
