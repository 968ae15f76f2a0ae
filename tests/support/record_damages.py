"""One trial of ``verify`` and ``repair``: a record file, its random damage, and the truth about each record."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

import numpy as np

from gluontune.core.errors import GluontuneError
from gluontune.records.layout import MAGIC, padded
from gluontune.records.reader import RecordReader
from gluontune.records.side_files import side_path
from gluontune.records.structure import joined
from gluontune.records.verifier import repair, survey
from gluontune.records.writer import RecordWriter

__all__ = ["DamageTrial"]


class DamageTrial:
    """One file, its damage, and the truth about each of its records."""

    def __init__(self, folder: Path, rng: np.random.Generator):
        self.rng = rng
        self.path, self.out = folder / "t.rec", folder / "repaired.rec"
        for old in folder.iterdir():
            old.unlink()
        self._write()
        self.data = bytearray(self.path.read_bytes())
        sound = np.frombuffer(bytes(self.data), np.uint8)
        self.origin = np.arange(len(self.data))  # where each byte of the damaged file came from; -1: altered
        self.wrong_keys = 0
        for _ in range(int(rng.integers(1, 4))):
            self._damage()
        # What a second damage has put back as it was is not altered: the same bit, flipped twice.
        same = np.frombuffer(bytes(self.data), np.uint8) == sound[self.origin]
        self.origin = np.where(same, self.origin, -1)
        self.path.write_bytes(self.data)

    def _write(self) -> None:
        rng = self.rng
        count = int(rng.integers(2, 40))
        keys = rng.permutation(count * 2)[:count].tolist()
        self.records: dict[int, bytes] = {}
        with RecordWriter(self.path) as writer:
            for key in keys:
                label: Any = float(key) if rng.random() < 0.7 else rng.random(3).tolist()
                writer.write(self._payload(), label, key)
        with RecordReader(self.path) as reader:
            self.records = {key: bytes(record) for key, record in zip(keys, reader)}
            offsets = [int(o) for o in reader._offsets]
            ends = [*offsets[1:], self.path.stat().st_size]
        self.places = {k: (o, self._end(o, e, k)) for k, o, e in zip(keys, offsets, ends)}

    def _end(self, offset: int, behind: int, key: int) -> int:
        """The record's last byte, padding left out."""
        length = len(self.records[key])
        return behind - (padded(length) - length)

    def _payload(self) -> bytes:
        rng = self.rng
        body = bytearray(rng.bytes(int(rng.integers(0, 400))))
        for _ in range(int(rng.integers(0, 3)) if rng.random() < 0.4 else 0):
            at = int(rng.integers(0, len(body) + 1))
            body[at:at] = MAGIC
        return bytes(body)

    def _damage(self) -> None:
        names = (
            "flip",
            "flip",
            "header",
            "burst",
            "cut_end",
            "cut_middle",
            "swap",
            "index",
            "index_cut",
            "crc",
            "crc_cut",
        )
        getattr(self, "_" + str(self.rng.choice(names)))()

    def _alter(self, start: int, new: bytes) -> None:
        for i, byte in enumerate(new, start):
            if i < len(self.data):
                self.data[i] = byte

    def _at(self, size: int) -> int:
        return int(self.rng.integers(0, max(1, size)))

    def _flip(self) -> None:
        if self.data:
            at = self._at(len(self.data))
            self._alter(at, bytes([self.data[at] ^ 1 << self._at(8)]))

    def _header(self) -> None:
        """A byte of a record's magic number or length."""
        offsets = [place[0] for place in self.places.values()]
        at = offsets[self._at(len(offsets))] + self._at(8)
        if at < len(self.data):
            self._alter(at, bytes([self._at(256)]))

    def _burst(self) -> None:
        size = self._at(600)
        self._alter(self._at(len(self.data)), bytes(size) if self.rng.random() < 0.5 else self.rng.bytes(size))

    def _cut_end(self) -> None:
        self._remove(self._at(len(self.data)), len(self.data))

    def _cut_middle(self) -> None:
        start = self._at(len(self.data))
        self._remove(start, start + self._at(300))

    def _remove(self, start: int, stop: int) -> None:
        del self.data[start:stop]
        self.origin = np.delete(self.origin, slice(start, stop))

    def _side(self, suffix: str) -> tuple[Path, bytearray]:
        side = side_path(self.path, suffix)
        return side, bytearray(side.read_bytes())

    def _swap(self) -> None:
        """Two rows of the index exchange their offsets."""
        side, data = self._side(".idx")
        lines = data.decode("latin-1").splitlines()
        if len(lines) < 2:
            return
        a, b = (int(i) for i in self.rng.choice(len(lines), 2, replace=False))
        (key_a, _, offset_a), (key_b, _, offset_b) = lines[a].partition("\t"), lines[b].partition("\t")
        lines[a], lines[b] = f"{key_a}\t{offset_b}", f"{key_b}\t{offset_a}"
        side.write_bytes("".join(f"{line}\n" for line in lines).encode("latin-1"))

    def _index(self) -> None:
        self._flip_side(".idx")

    def _crc(self) -> None:
        self._flip_side(".crc")

    def _flip_side(self, suffix: str) -> None:
        side, data = self._side(suffix)
        if data:
            data[self._at(len(data))] ^= 1 << self._at(8)
            side.write_bytes(data)

    def _index_cut(self) -> None:
        side, data = self._side(".idx")
        side.write_bytes(data[: self._at(len(data))])

    def _crc_cut(self) -> None:
        side, data = self._side(".crc")
        side.write_bytes(data[: self._at(len(data))])

    def _is_whole(self, key: int) -> bool:
        start, end = self.places[key]
        at = np.flatnonzero(self.origin == start)
        if not len(at):
            return False
        piece = self.origin[at[0] : at[0] + end - start]
        return len(piece) == end - start and bool((piece == np.arange(start, end)).all())

    def run(self) -> dict[str, int]:
        """``silently_wrong``, ``lost_by_repair``, ``missed``; a file cut down to nothing must be refused as empty."""
        if not self.data:
            return {"silently_wrong": 0, "lost_by_repair": 0, "missed": int(not self._refused_as_empty())}
        whole = {key for key in self.records if self._is_whole(key)}
        with survey(self.path, decode=False) as (evidence, _, report):
            unproven = {bytes(joined(evidence.view, c.found)) for c in evidence.checked if c.row < 0}
            proven = {c.found.offset for c in evidence.checked if c.row >= 0}
        wrong = self._read_what_is_called_whole(report, proven) + self._read_checked()
        missed = report.ok and len(whole) < len(self.records)
        kept: dict[int, bytes] = {}
        uncertain: set[int] = set()
        with contextlib.suppress(GluontuneError):
            uncertain = set(repair(self.path, self.out, decode=False).uncertain)
            with RecordReader(self.out) as reader:
                kept = {int(k): bytes(r) for k, r in zip(reader.keys, reader)}
        wrong += sum(self.records.get(k) != r and r not in unproven and k not in uncertain for k, r in kept.items())
        gone = {key for key in whole if kept.get(key) != self.records[key]}
        # Whole and kept, under a key that repair itself calls uncertain: told, so not lost.
        told = {kept[key] for key in uncertain if key in kept}
        moved = {key for key in gone if self.records[key] in told}
        self.wrong_keys = len(moved)
        return {"silently_wrong": wrong, "lost_by_repair": len(gone - moved), "missed": int(missed)}

    def _refused_as_empty(self) -> bool:
        try:
            with survey(self.path, decode=False):
                return False
        except GluontuneError as error:
            return "the file is empty" in str(error)

    def _read_what_is_called_whole(self, report: Any, proven: set[int]) -> int:
        """Wrong or unreadable records at positions about which ``verify`` said nothing."""
        try:
            reader = RecordReader(self.path)
        except GluontuneError:
            return int(report.ok)
        wrong = 0
        with reader:
            called_damaged = {d.index for d in report.damaged}
            for i, key in enumerate(reader.keys):
                if i in called_damaged or int(reader._offsets[i]) not in proven:
                    continue
                try:
                    wrong += bytes(reader[i]) != self.records.get(int(key))
                except GluontuneError:
                    wrong += 1
        return wrong

    def _read_checked(self) -> int:
        """Wrong records that a reader with ``check=True`` gives out, by key."""
        try:
            reader = RecordReader(self.path, check=True)
        except GluontuneError:
            return 0
        wrong = 0
        with reader:
            for i in range(len(reader)):
                with contextlib.suppress(GluontuneError):
                    wrong += bytes(reader[i]) not in self.records.values()
        return wrong
