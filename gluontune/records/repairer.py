"""``repair``: a new file of all whole records, and those restored by the checksums."""

from __future__ import annotations

import os
import shutil
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gluontune.core.errors import GluontuneError, UsageError
from gluontune.core.files import PathLike
from gluontune.records.scan import Checked, Evidence, Progress
from gluontune.records.side_files import side_path
from gluontune.records.structure import joined
from gluontune.records.verifier import Survey, VerifyReport, survey
from gluontune.records.writer import RecordWriter


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
