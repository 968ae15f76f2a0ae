"""``verify``: whether every record of a file is undamaged; ``repair``: a new file of all whole records."""

from __future__ import annotations

import bisect
import contextlib
import os
import shutil
import zlib
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, Optional

from gluontune.core.errors import GluontuneError, UsageError
from gluontune.core.files import PathLike
from gluontune.records.judging import KeyScheme, decide_keys, judge
from gluontune.records.scan import Checked, Evidence, Progress, scan
from gluontune.records.side_files import side_path
from gluontune.records.structure import joined
from gluontune.records.writer import RecordWriter

Damages = dict[tuple[Optional[int], int], str]  # position and offset: reason


@dataclass(frozen=True)
class Damage:
    """One fault. ``index`` is the record's position (row of the index, else order in the file) or None."""

    index: Optional[int]
    offset: int
    reason: str


@dataclass(frozen=True)
class VerifyReport:
    """The result of :func:`verify`.

    Args:
        records: expected records: those of the checksums, else of the index, else of the file.
        whole: undamaged records, as far as known, that the index leads to.
        damaged: faults of records and index rows, by offset.
        unchecked: records without a checksum: framing and image are checked, the bytes are not proven.
        incomplete: whole records of images that were packed with incomplete or damaged data, which decoders fill with
            grey; only the compiled codec detects them.
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
        """Whether it is another kind of file: without any start of a record, index or checksums."""
        if not self.damaged or self.whole or any("no record starts" not in d.reason for d in self.damaged):
            return False
        return not any(Path(self.path).with_suffix(suffix).exists() for suffix in (".idx", ".crc"))

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return {"path": self.path, "ok": self.ok, **asdict(self)}


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
        path: the ``.rec`` file; ``.crc`` and ``.idx`` beside it are used if they exist.
        index: another index file, or False for none.
        decode: decode every image (needs cv2); else only its headers, end and checksums are checked.
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
    with survey(path, index, decode=decode, workers=workers, progress=progress) as (_, _, report):
        return report


class Survey(NamedTuple):
    """A file's judged evidence, its records' keys, and its faults."""

    evidence: Evidence
    keys: KeyScheme
    report: VerifyReport


@contextlib.contextmanager
def survey(path: PathLike, index: PathLike | bool | None = None, **how: Any) -> Iterator[Survey]:
    """Scan, judge, decide the keys, diagnose; valid inside the block. Arguments: see :func:`verify`."""
    with scan(path, index, **how) as found:
        evidence = judge(found)
        keys = decide_keys(evidence)
        yield Survey(evidence, keys, diagnose(evidence, keys))


def diagnose(evidence: Evidence, keys: KeyScheme) -> VerifyReport:
    """The faults of a file, from its judged evidence and its records' keys."""
    damages: Damages = {}
    positions = _positions(evidence)
    _list_records(evidence, positions, damages)
    _list_index(evidence, keys.true, positions, damages)
    found = [Damage(i, max(offset, 0), reason) for (i, offset), reason in damages.items()]
    damaged = sorted(found, key=lambda d: (d.offset, -1 if d.index is None else d.index))
    alone = sum(d.index is None for d in damaged)
    if len(evidence.rows) and evidence.checksums.complete:
        records = len(evidence.rows)
    elif evidence.index.path is not None:
        records = max(len(evidence.index.rows) + len(evidence.index.faults), len(evidence.rows)) + alone
    else:
        records = sum(c.whole for c in evidence.checked) + len(damaged)
    places = {d.index for d in damaged if d.index is not None}
    lacking = [(c.found.offset, c.incomplete) for c in evidence.checked if c.whole and c.incomplete]
    return VerifyReport(
        evidence.path, records, whole=max(0, records - len(places) - alone), damaged=damaged,
        unchecked=sum(c.whole and c.row < 0 for c in evidence.checked),
        incomplete=[Damage(positions.get(offset), offset, lacks) for offset, lacks in lacking],
        problems=list(evidence.problems),
    )  # fmt: skip


def _positions(evidence: Evidence) -> dict[int, int]:
    """Positions of records for the report, by offset."""
    if evidence.index.path is not None:
        return {offset: number for number, _, offset in reversed(evidence.index.rows)}
    if len(evidence.rows):
        return {offset: i for i, offset in enumerate(evidence.rows["offset"].tolist())}
    pieces = [c.found.offset for c in evidence.checked] + [b.offset for b in evidence.broken]
    return {offset: i for i, offset in enumerate(sorted(pieces))}


def _list_records(evidence: Evidence, positions: dict[int, int], damages: Damages) -> None:
    """Lists damaged records, rows of the checksums without a record, and breaks."""
    present = {checked.row for checked in evidence.checked if checked.row >= 0}
    expected = sorted((offset, row) for row, offset in enumerate(evidence.rows["offset"].tolist()))
    starts = [offset for offset, _ in expected]
    explained: list[tuple[int, int]] = []  # spans of the file with a listed damage
    reasons = {c.found.offset: c.reason or "" for c in evidence.checked if not c.whole}
    breaks = {b.offset: b.reason for b in evidence.broken}
    for place, (offset, row) in enumerate(expected):
        if row in present:
            continue
        behind = starts[place + 1] if place + 1 < len(starts) else max(len(evidence.view), offset + 1)
        explained.append((offset, behind))
        gone = "missing: the file is cut" if offset >= len(evidence.view) else "no whole record lies there"
        damages[positions.get(offset), offset] = reasons.get(offset) or breaks.get(offset) or gone
    # Breaks, except the rests of records with a wrong length.
    damaged_ends = {c.found.behind for c in evidence.checked if not c.whole}
    further = [(offset, reason) for offset, reason in breaks.items() if offset not in damaged_ends]
    for offset, reason in [*reasons.items(), *further]:
        known = (positions.get(offset), offset) in damages
        if not known and not _lies_in(explained, offset):
            damages[positions.get(offset), offset] = reason


def _lies_in(spans: list[tuple[int, int]], offset: int) -> bool:
    at = bisect.bisect_right(spans, (offset, 1 << 63)) - 1
    return at >= 0 and spans[at][0] <= offset < spans[at][1]


def _list_index(evidence: Evidence, true_keys: dict[int, int], positions: dict[int, int], damages: Damages) -> None:
    """Lists index rows that lead to no record or to another one, and records without a row."""
    index = evidence.index
    if index.path is None:
        return
    for number, reason in index.faults:
        damages[number, -1] = reason
    starts = {c.found.offset: c for c in evidence.checked}
    seen: dict[Any, int] = {}
    for number, key, offset in index.rows:
        if key in seen:
            damages[number, offset] = f"index row {number}: the key {key} is used by row {seen[key]} already"
        seen.setdefault(key, number)
        if offset in starts:
            true = true_keys.get(offset)
            if true is not None and true != key:
                damages[number, offset] = f"index row {number}: key {key} points to the record of key {true}"
        elif (number, offset) not in damages:
            where = "beyond the end of the file" if offset >= len(evidence.view) else "to where no record starts"
            damages[number, offset] = f"index row {number}: key {key} points {where}"
    keys = evidence.rows["key"].tolist()
    for key, offset in zip(keys, evidence.rows["offset"].tolist()):
        if key not in seen:
            damages.setdefault((positions.get(offset), offset), f"the index has no row for key {key}")


@dataclass(frozen=True)
class RepairReport:
    """The result of :func:`repair`.

    Args:
        out: the new file. kept: its records.
        restored: of these, with broken framing but proven bytes.
        lost: records missing in the new file.
        uncertain: keys of whole records that may have had another key: id and index disagree without proof, or both are
            missing.
        verified: the report on the old file.
    """

    out: str
    kept: int
    restored: int
    lost: int
    uncertain: list[int]
    verified: VerifyReport

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return {name: getattr(self, name) for name in ("out", "kept", "restored", "lost", "uncertain")}


def repair(
    path: PathLike,
    out: PathLike,
    index: PathLike | bool | None = None,
    *,
    decode: bool = True,
    workers: int | None = None,
    progress: Progress | None = None,
) -> RepairReport:
    """Write all whole records of ``path`` to ``out``, in order and with their keys, and a correct index.

    A record with broken framing is whole, too, if the bytes at the offset in the ``.crc`` file have their checksum.

    Args:
        path: the damaged file. out: the new one, not the same.
        index, decode, workers, progress: as for ``verify``.

    Raises:
        GluontuneError: no record is whole; cannot read or write.

    >>> import pathlib, tempfile
    >>> from gluontune.records import RecordWriter, verify
    >>> folder = pathlib.Path(tempfile.mkdtemp())
    >>> with RecordWriter(folder / "a.rec") as w:
    ...     for i in range(3):
    ...         w.write(b"x" * 100, label=i)
    >>> _ = (folder / "a.rec").write_bytes((folder / "a.rec").read_bytes()[:-50])
    >>> report = repair(folder / "a.rec", folder / "b.rec")
    >>> report.kept, report.lost, verify(folder / "b.rec").ok
    (2, 1, True)
    """
    if os.path.realpath(path) == os.path.realpath(out):
        raise UsageError(f"{out}: repair into another file than the damaged one")
    with survey(path, index, decode=decode, workers=workers, progress=progress) as found:
        evidence, report = found.evidence, found.report
        records = _whole_records(evidence)
        if not records:
            raise GluontuneError(f"{path}: not one record is whole: nothing to keep")
        keys, uncertain = _Keys(found).of(records)
        with RecordWriter(out) as writer:
            for (_, row, checked), key in zip(records, keys):
                record = joined(evidence.view, checked.found) if checked else _restored(evidence, row)
                writer.write_record(bytes(record), key)
        classes = side_path(path, ".classes")
        if classes.is_file():
            shutil.copyfile(classes, side_path(out, ".classes"))
        restored = sum(checked is None for _, _, checked in records)
        lost = max(report.records, len(records)) - len(records)
        return RepairReport(os.fspath(Path(out)), len(records), restored, lost, uncertain, report)


def _whole_records(evidence: Evidence) -> list[tuple[int, int, Checked | None]]:
    """(offset, checksum row, checked record) in the order of the file; None for a record to restore."""
    found: list[tuple[int, int, Checked | None]] = []
    found += [(c.found.offset, c.row, c) for c in evidence.checked if c.whole]
    present = {c.row for c in evidence.checked if c.row >= 0}
    offsets = evidence.rows["offset"].tolist()
    missing = (row for row in range(len(offsets)) if row not in present)
    found += [(offsets[row], row, None) for row in missing if _restored(evidence, row) is not None]
    # A cut moves the records behind it; the checksums' order is the right one.
    return sorted(found, key=lambda f: (offsets[f[1]] if f[1] >= 0 else f[0], f[0]))


def _restored(evidence: Evidence, row: int) -> Any:
    """The bytes of a one-part record at its old offset, if the checksum proves them, else None."""
    _, offset, length, crc, _ = evidence.rows[row].tolist()
    body = evidence.view[offset + 8 : offset + 8 + length]
    return body if len(body) == length and zlib.crc32(body) == crc else None


class _Keys:
    """A unique key for each kept record: its old key if known.

    Damaged bytes can look like a record and have another one's id. So a key goes to the record with the best claim:
    proven by a checksum, named by index and id, by the index, by its id alone.
    """

    def __init__(self, survey: Survey):
        self.of_row = survey.evidence.rows["key"].tolist()
        self.doubtful = survey.keys.doubtful
        evidence = survey.evidence
        rows = evidence.index.rows
        self.of_offset = {offset: key for _, key, offset in rows if isinstance(key, int)}
        wrong = {(d.index, d.offset) for d in survey.report.damaged}
        for number, key, offset in rows:
            if (number, offset) in wrong and self.of_offset.get(offset) == key:
                del self.of_offset[offset]
        known = [*self.of_row, *self.of_offset.values(), *(c.key for c in evidence.checked)]
        self.next = max([len(evidence.checked), *(k for k in known if k < 1 << 62)]) + 1
        # An id alone is weaker in a record that overlaps another one, or follows bytes without a record.
        starts = {0, *(c.found.behind for c in evidence.checked)}
        self.linked = {c.found.offset for c in evidence.checked if c.found.offset in starts and not c.found.doubtful}

    def of(self, records: list[tuple[int, int, Checked | None]]) -> tuple[list[int], list[int]]:
        """The keys of ``records``, in their order, and those of them that are uncertain."""
        claims = []
        for place, (offset, row, checked) in enumerate(records):
            own, listed = checked.key if checked else -1, self.of_offset.get(offset, -1)
            if row >= 0:
                claims.append((0, place, self.of_row[row]))
                continue
            claims.append((1 if own == listed else 2, place, listed))
            claims.append((3 if offset in self.linked else 4, place, own))
        keys: dict[int, int] = {}
        used: set[int] = set()
        for _, place, key in sorted(claims):
            if key >= 0 and key not in used and place not in keys:
                keys[place] = key
                used.add(key)
        made = {place: self._new(used) for place in range(len(records)) if place not in keys}
        doubtful = {place for place, (offset, row, _) in enumerate(records) if row < 0 and offset in self.doubtful}
        found = {**keys, **made}
        return [found[place] for place in range(len(records))], sorted(found[place] for place in {*made, *doubtful})

    def _new(self, used: set[int]) -> int:
        while self.next in used:
            self.next += 1
        used.add(self.next)
        return self.next
