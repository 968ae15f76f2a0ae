"""``repair``: a new file with every record that is whole, and those that the checksums can bring back."""

from __future__ import annotations

import os
import shutil
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Union

from gluontune.errors import GluontuneError, UsageError
from gluontune.records.checksums import side_path
from gluontune.records.structure import joined
from gluontune.records.verifier import Checked, Progress, Survey, VerifyReport
from gluontune.records.writer import RecordWriter

__all__ = ["RepairReport", "repair"]

PathLike = Union[str, "os.PathLike[str]"]


@dataclass(frozen=True)
class RepairReport:
    """What :func:`repair` kept.

    Args:
        out: the new file. kept: its records.
        restored: those of them whose framing was broken but whose bytes their checksum proves.
        lost: records of the old file that are not in the new one.
        uncertain: keys of records that are whole, but whose key may have been another one: id and index disagree
            and neither is proven, or nothing tells it.
        verified: what was found in the old file.
    """

    out: str
    kept: int
    restored: int
    lost: int
    uncertain: list[int]
    verified: VerifyReport

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return {
            "out": self.out,
            "kept": self.kept,
            "restored": self.restored,
            "lost": self.lost,
            "uncertain": self.uncertain,
        }


def repair(
    path: PathLike,
    out: PathLike,
    index: PathLike | bool | None = None,
    *,
    decode: bool = True,
    workers: int | None = None,
    progress: Progress | None = None,
) -> RepairReport:
    """Write all whole records of ``path`` to ``out``, in their order and with their keys.

    A record whose framing is broken, but whose bytes still lie where the ``.crc`` file says and have the
    checksum that it says, is whole too. Wrong index rows are made right.

    Args:
        path: the damaged file. out: the new one; it must be another.
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
    with Survey(path, index, decode=decode, workers=workers, progress=progress) as survey:
        records = _whole_records(survey)
        if not records:
            raise GluontuneError(f"{path}: not one record is whole: nothing to keep")
        keys, uncertain = _Keys(survey).of(records)
        with RecordWriter(out) as writer:
            for (_, row, checked), key in zip(records, keys):
                record = joined(survey.view, checked.found) if checked else _restored(survey, row)
                writer.write_record(bytes(record), key)
        classes = side_path(path, ".classes")
        if classes.is_file():
            shutil.copyfile(classes, side_path(out, ".classes"))
        restored = sum(checked is None for _, _, checked in records)
        lost = max(survey.report.records, len(records)) - len(records)
        return RepairReport(os.fspath(Path(out)), len(records), restored, lost, uncertain, survey.report)


def _whole_records(survey: Survey) -> list[tuple[int, int, Checked | None]]:
    """(offset, checksum row, what was found) in the order of the file; None for a record to restore."""
    found: list[tuple[int, int, Checked | None]] = []
    found += [(c.found.offset, c.row, c) for c in survey.checked if c.whole]
    present = {c.row for c in survey.checked if c.row >= 0}
    offsets = survey.rows["offset"].tolist()
    missing = (row for row in range(len(offsets)) if row not in present)
    found += [(offsets[row], row, None) for row in missing if _restored(survey, row) is not None]
    # A piece that was cut out has moved what follows; where the checksums know the order, it is theirs.
    return sorted(found, key=lambda f: (offsets[f[1]] if f[1] >= 0 else f[0], f[0]))


def _restored(survey: Survey, row: int) -> Any:
    """The bytes of a one-part record at its old place, if the checksum proves them, else None."""
    _, offset, length, crc, _ = survey.rows[row].tolist()
    body = survey.view[offset + 8 : offset + 8 + length]
    return body if len(body) == length and zlib.crc32(body) == crc else None


class _Keys:
    """A unique key for each record that is kept: the one it had, as far as that is known.

    Bytes that were damaged can look like a record and carry another one's id. So a key goes to the record with
    the best claim to it: proven by a checksum, named by index and id alike, by the index, by its id alone.
    """

    def __init__(self, survey: Survey):
        self.of_row = survey.rows["key"].tolist()
        self.doubtful = survey.keys.doubtful
        rows = survey.index.rows
        self.of_offset = {offset: key for _, key, offset in rows if isinstance(key, int)}
        wrong = {(d.index, d.offset) for d in survey.report.damaged}
        for number, key, offset in rows:
            if (number, offset) in wrong and self.of_offset.get(offset) == key:
                del self.of_offset[offset]
        known = [*self.of_row, *self.of_offset.values(), *(c.key for c in survey.checked)]
        self.next = max([len(survey.checked), *(k for k in known if k < 1 << 62)]) + 1
        # An id alone says less in a record that overlaps another one, or that bytes without a record stand before.
        starts = {0, *(c.found.behind for c in survey.checked)}
        self.linked = {c.found.offset for c in survey.checked if c.found.offset in starts and not c.found.doubtful}

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
