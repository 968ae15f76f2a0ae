"""An unfinished record file, which survives a kill at any byte and is continued by ``--resume``.

Three files are beside ``OUT.rec`` until all is done:

- ``OUT.rec.part``: the records so far;
- ``OUT.crc.part``: a row for each (the later ``OUT.crc``), written after the record;
- ``OUT.plan.part``: a first line with the fingerprint of the job, then a line for each skipped image.

After a kill the checksums decide: records are valid as far as rows, bytes and plan agree without a gap, the rest is cut
off and packed again.
"""

from __future__ import annotations

import contextlib
import fcntl
import glob
import json
import os
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import IO, Any

import numpy as np

from gluontune.core.errors import GluontuneError
from gluontune.core.files import atomic_write, begin_writing_back, sync_together
from gluontune.core.reading import explained, parse_json
from gluontune.records.blocks import Block, Skip
from gluontune.records.layout import DamagedRecordError, join_parts
from gluontune.records.side_files import (
    HEAD_SIZE,
    ROW,
    head,
    make_rows,
    read_checksums,
    row_is_sound,
    side_path,
    viewed,
)
from gluontune.records.sources import Item
from gluontune.records.writer import index_text, remove_side_files

WRITE_BACK = 8 << 20  # bytes between starts of writing back, so that the end need not wait for the disk


class PartialFile:
    """One unfinished ``.rec``.

    Args:
        path: the final ``OUT.rec``. items: its images in packing order. start: position of the first in the whole job.
        fingerprint: 8 bytes that identify the job (sources, order, options).
        resume: continue an interrupted job with the same fingerprint.
        classes: names of the labels for ``OUT.classes``, one a line; None: no such file.
    """

    def __init__(
        self, path: Path, items: Sequence[Item], start: int, fingerprint: bytes, resume: bool,
        classes: list[str] | None = None,
    ):  # fmt: skip
        self.path, self.items, self.start, self.fingerprint = path, items, start, fingerprint
        self.classes = classes
        self.rec = Path(f"{path}.part")
        self.crc = side_path(path, ".crc.part")
        self.plan_path = side_path(path, ".plan.part")
        self.skips: list[Skip] = []
        self.packed = self.resumed = 0
        self.size = 0
        self.complete = False
        self._streams: list[IO[bytes]] = []
        self._rows: list[np.ndarray] = []
        try:
            with explained(path):
                self._open(resume)
        except BaseException:
            self.close()
            raise

    @property
    def done(self) -> int:
        """Images packed or skipped so far."""
        return self.packed + len(self.skips)

    def _open(self, resume: bool) -> None:
        if resume and not self.plan_path.exists() and self._is_complete():
            return
        self.path.parent.mkdir(parents=True, exist_ok=True)
        plan = open(self.plan_path, "a+b")  # noqa: SIM115 (closed by close())
        self._streams.append(plan)
        try:
            fcntl.flock(plan, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise GluontuneError(f"{self.path}: another process is packing into it") from None
        plan.seek(0)
        lines = plan.read().split(b"\n")[:-1]  # without a line that a kill cut short
        if resume and lines:
            self._check_job(lines[0])
            plan.truncate(sum(len(line) + 1 for line in lines))
            self._take_up(lines[1:])
        else:
            for part in (self.rec, self.crc):
                part.unlink(missing_ok=True)
            plan.truncate(0)
            plan.write(json.dumps({"job": self.fingerprint.hex()}).encode() + b"\n")
            plan.flush()
        for part in (self.rec, self.crc):
            self._streams.append(open(part, "ab"))  # noqa: SIM115 (closed by close())
        crc = self._streams[-1]
        if not crc.tell():
            crc.write(head(self.fingerprint))

    def _check_job(self, line: bytes) -> None:
        with contextlib.suppress(ValueError, TypeError, KeyError):
            if parse_json(line)["job"] == self.fingerprint.hex():
                return
        raise GluontuneError(
            f"{self.plan_path}: the interrupted job had other images, another order or other options; "
            "leave out --resume to start anew"
        )

    def _is_complete(self) -> bool:
        """Whether the file is finished: its checksums name the job."""
        side = side_path(self.path, ".crc")
        if not (self.path.exists() and side.exists()):
            return False
        fingerprint, rows = read_checksums(side)
        if fingerprint != self.fingerprint or self._whole(rows[-1:], self.path, anywhere=True) < len(rows[-1:]):
            return False
        present = set(rows["key"].tolist())
        left_out = [(i, item) for i, item in enumerate(self.items) if item.key not in present]
        self.skips = [Skip(self.start + i, item.path, "left out by the earlier run") for i, item in left_out]
        self.packed = self.resumed = len(rows)
        self.complete = True
        return True

    def _take_up(self, lines: list[bytes]) -> None:
        """Keep the records as far as rows and plan agree; cut off the rest."""
        noted = {skip[0]: Skip(*skip) for skip in map(parse_json, lines)}
        # A kill while the files were put in place: the records are complete under their final name.
        placed = not self.rec.exists() and self.path.exists()
        crc = self.crc if self.crc.exists() else side_path(self.path, ".crc")
        rows = np.zeros(0, ROW)
        if crc.exists() and (crc == self.crc or placed):
            with contextlib.suppress(GluontuneError):  # cut within its first line: nothing to continue
                fingerprint, found = read_checksums(crc)
                rows = found if fingerprint == self.fingerprint else rows
        source = self.path if placed else self.rec
        rows = rows[: self._whole(rows, source)] if source.exists() else rows[:0]
        position, count = self.start, 0
        stop = self.start + len(self.items)
        keys = rows["key"].tolist()
        while position < stop:
            if count < len(keys) and keys[count] == self.items[position - self.start].key:
                count += 1
            elif position in noted:
                self.skips.append(noted[position])
            else:
                break
            position += 1
        if placed and position < stop:  # the file with the final name is an older one
            count, self.skips = 0, []
        self._keep(rows[:count], placed and position == stop)

    def _whole(self, rows: np.ndarray, source: Path, anywhere: bool = False) -> int:
        """The number of rows, from the first, that match the file without a gap; ``anywhere``: from any offset on."""
        expected = int(rows["offset"][0]) if anywhere and len(rows) else 0
        whole = 0
        with viewed(str(source)) as view, contextlib.suppress(DamagedRecordError):
            for row, sound in zip(rows.tolist(), row_is_sound(rows).tolist()):
                _, offset, length, crc, _ = row
                if not sound or offset != expected:
                    break
                record, expected = join_parts(view, offset, len(view))
                if expected > len(view) or len(record) != length or zlib.crc32(record) != crc:
                    break
                whole += 1
                del record
        return whole

    def _keep(self, rows: np.ndarray, finished: bool) -> None:
        """Cut the parts to ``rows``. A kill at any step leaves parts that the next run can continue."""
        size = HEAD_SIZE + rows.nbytes
        if len(rows) and self.crc.exists():
            os.truncate(self.crc, size)
        else:
            self.crc.write_bytes(head(self.fingerprint) + rows.tobytes())
        if finished:
            os.replace(self.path, self.rec)  # back to the parts, for the usual end
        if len(rows):
            with viewed(str(self.rec)) as view:
                self.size = join_parts(view, int(rows["offset"][-1]), len(view))[1]
        with open(self.rec, "ab") as stream:
            stream.truncate(self.size)
        self._rows = [rows]
        self.packed = self.resumed = len(rows)

    def add(self, block: Block) -> None:
        """Append a block: records, then skips, then the rows that prove the records."""
        plan, rec, crc = self._streams
        ends = np.cumsum([self.size, *block.sizes])
        rows = make_rows(block.keys, ends[:-1].tolist(), block.lengths, block.crcs)
        with explained(self.path):
            rec.write(block.data)
            rec.flush()
            for skip in block.skips:
                plan.write(json.dumps([skip.position, skip.path, skip.reason]).encode() + b"\n")
            plan.flush()
            crc.write(rows.tobytes())
            crc.flush()
        self._rows.append(rows)
        if int(ends[-1]) // WRITE_BACK > self.size // WRITE_BACK:
            begin_writing_back(rec.fileno())
        self.size = int(ends[-1])
        self.packed += len(block.keys)
        self.skips += block.skips

    def finish(self) -> None:
        """Put the file and its side files in place; old side files are removed first, so none is ever stale."""
        if self.complete:
            return
        streams: list[IO[Any]] = self._streams[1:]
        rows = np.concatenate([np.zeros(0, ROW), *self._rows])
        texts = {".idx": index_text(rows["key"].tolist(), rows["offset"].tolist())}
        if self.classes is not None:
            texts[".classes"] = "".join(f"{name}\n" for name in self.classes)
        with explained(self.path):
            for suffix in (".idx", ".classes"):  # temporary files of killed runs
                for left in self.path.parent.glob(f".{glob.escape(side_path(self.path, suffix).name)}.*.part"):
                    left.unlink()
            with contextlib.ExitStack() as placed:  # moved into place at its end, after the records
                for suffix, text in texts.items():
                    streams.append(placed.enter_context(atomic_write(side_path(self.path, suffix), "w")))
                    streams[-1].write(text)
                sync_together(streams)
                remove_side_files(self.path)
                side_path(self.path, ".classes").unlink(missing_ok=True)
                os.replace(self.rec, self.path)
            os.replace(self.crc, side_path(self.path, ".crc"))
            self.plan_path.unlink()
        self.close()
        self.complete = True

    def close(self) -> None:
        """Close the files and leave the parts for ``--resume``."""
        while self._streams:
            with contextlib.suppress(OSError):
                self._streams.pop().close()

    def discard(self) -> None:
        """Remove the parts."""
        self.close()
        for part in (self.rec, self.crc, self.plan_path):
            with contextlib.suppress(OSError):
                part.unlink()
