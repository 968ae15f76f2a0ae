"""What is said of damaged record files, a line for each damage: ``python tests/record_sayings.py`` writes it anew.

The damages are a list and not drawn, so that each change of what ``verify``, ``repair`` and the reader make of one
shows as a changed line of ``record_sayings.txt``. Whether nothing whole is lost is asked by ``record_fuzz.py``.
"""

from __future__ import annotations

import itertools
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Callable

import numpy as np

from gluontune.codec.raw import pixels_to_raw
from gluontune.errors import GluontuneError
from gluontune.records import RecordReader, RecordWriter, repair, verify
from gluontune.records.layout import MAGIC

__all__ = ["SAID", "sayings"]

SAID = Path(__file__).with_suffix(".txt")
SIDES = {"all": "", "no crc": ".crc", "no idx": ".idx", "bare": ".crc .idx"}
Harm = Callable[[bytearray], None]  # of the records, the index or the checksums
Damage = tuple[str, str, Harm]  # its name, the suffix of the file, what happens to it

#: Keys that are no positions; a record in two parts, one of two labels, an empty one, one that ends with zeros.
BYTES: list[tuple[int, Any, bytes]] = [
    (30, 1.0, b"first pay"),
    (11, 2.0, b"abcd" + MAGIC + b"behind it"),
    (25, [3.0, 4.0], b"of two labels..."),
    (7, 5.0, b""),
    (40, 6.0, b"it ends with zeros" + bytes(7)),
    (12, 7.0, b"." * 61 + MAGIC + b"off by one"),
]
#: Whether a record ends where it says is told by its padding and by how often its bytes are zero.
ENDS = [
    (k, float(k), bytes(range(1, 251))[:size] * many)
    for k, (size, many) in enumerate([(109, 1), (5, 1), (50, 1), (150, 2), (1, 0), (250, 1), (31, 1), (4, 1)])
]
ENDS[4] = (4, 4.0, bytes(61))
IMAGES = [(20 + k, float(k), pixels_to_raw(np.full((1, 1 + k, 3), 50 * k, np.uint8))) for k in range(4)]

#: Damages of the side files that come with a piece that is gone.
IN_TWOS = (
    "index, two exchanged", "index, a line less", "index, cut", "index, a key's digit", "index, words as keys",
    "checksums, a row less", "checksums, last row", "checksums, half a row", "checksums, key", "checksums, two bytes",
)  # fmt: skip
FILES = {"bytes": BYTES, "images": IMAGES, "ends": ENDS}


def _put(at: int, new: bytes) -> Harm:
    def harm(data: bytearray) -> None:
        data[at : at + len(new)] = new

    return harm


def _flip(at: int, mask: int = 1) -> Harm:
    def harm(data: bytearray) -> None:
        if len(data):
            data[at % len(data)] ^= mask

    return harm


def _cut(start: int, size: int | None = None) -> Harm:
    def harm(data: bytearray) -> None:
        del data[start : len(data) if size is None else start + size]

    return harm


def _insert(at: int, new: bytes) -> Harm:
    def harm(data: bytearray) -> None:
        data[at:at] = new

    return harm


def _lines(change: Callable[[list[bytes]], object]) -> Harm:
    def harm(data: bytearray) -> None:
        lines = bytes(data).splitlines(keepends=True)
        change(lines)
        data[:] = b"".join(lines)

    return harm


def _swapped(lines: list[bytes]) -> None:
    (one, _, here), (two, _, there) = lines[1].partition(b"\t"), lines[3].partition(b"\t")
    lines[1], lines[3] = one + b"\t" + there, two + b"\t" + here


def _numbered(lines: list[bytes]) -> None:
    lines[:] = [b"%d\t" % n + line.partition(b"\t")[2] for n, line in enumerate(lines)]


def _of_records(offsets: list[int], size: int) -> Iterator[Damage]:
    """Headers, payloads, cuts, pieces that are gone, holes and strange bytes."""
    for n, at in enumerate(offsets):
        for name, harm in (
            ("magic", _flip(at + 1, 2 << n % 2)),  # a smaller one, a larger one
            ("magic of nothing", _put(at, bytes(4))),
            ("length 4 more", _flip(at + 4, 4)),
            ("length one bit of 256", _flip(at + 5)),
            ("length of nothing", _put(at + 4, bytes(3))),
            ("flag", _flip(at + 7, 0x20 << n % 3)),
            ("id", _flip(at + 16, 2)),
            ("payload", _flip(at + 33, 8)),
        ):
            yield f"record {n}, {name}", ".rec", harm
    for at in range(size - 1, 8, -size // 11):
        yield f"cut at {at}", ".rec", _cut(at)
    for at, length in itertools.product(range(0, size, size // 9), (3, 40, 100)):
        yield f"{length} bytes gone from {at}", ".rec", _cut(at, length)
    for at in range(5, size, size // 7):
        yield f"16 zeros at {at}", ".rec", _put(at, bytes(16))
        yield f"5 bytes more at {at}", ".rec", _insert(at, b"\0more")
    for n, at in enumerate(offsets[1:3], 1):
        yield f"record {n} is gone", ".rec", _cut(at, offsets[n + 1] - at)
        yield f"last byte before record {n}", ".rec", _flip(at - 1, 64)
        yield f"a header more before record {n}", ".rec", _insert(at, MAGIC + bytes(4))
    yield "bytes behind the end", ".rec", _insert(size, b"behind")


def _cuts(at: list[int]) -> list[tuple[str, Harm]]:
    """Pieces that are gone, and what that moves."""
    return [
        ("record 2 is gone", _cut(at[2], at[3] - at[2])),
        (
            "records 1 and 3 are gone",
            lambda data: (_cut(at[3], at[4] - at[3])(data), _cut(at[1], at[2] - at[1])(data))[0],
        ),
        ("a header is gone", _cut(at[4] - 5, 14)),
        ("three bytes are gone", _cut(at[1] + 20, 3)),
        ("one byte more", _insert(at[3] + 30, b"x")),
        ("the end is gone", _cut(at[5] + 50)),
        ("a header of nothing", _put(at[2], bytes(8))),
    ]


def _of_ends(offsets: list[int]) -> Iterator[Damage]:
    """Headers that are gone, but for some bytes of their magic number; padding that is not zero."""
    for n, at in enumerate(offsets[1:], 1):
        for left in (0, 1, 2):
            yield f"header {n}, {left} bytes left", ".rec", _put(at + left, b"12345678"[left:])
        for size in (2, 3):
            yield (
                f"{size} bytes of padding and header {n}",
                ".rec",
                _put(at - size, b"x" + bytes(size - 1) + b"12345678"),
            )


def _of_index() -> Iterator[Damage]:
    yield "index, a key's digit", ".idx", _flip(0, 4)
    yield "index, an offset's digit", ".idx", _flip(-2, 1)
    yield "index, no tab", ".idx", _lines(lambda lines: lines.__setitem__(2, lines[2].replace(b"\t", b" ")))
    yield "index, two exchanged", ".idx", _lines(_swapped)
    yield "index, other order", ".idx", _lines(lambda lines: lines.reverse())
    yield "index, a line twice", ".idx", _lines(lambda lines: lines.insert(2, lines[0]))
    yield "index, a line less", ".idx", _lines(lambda lines: lines.pop(1))
    yield ("index, a key twice", ".idx", _lines(lambda lines: lines.__setitem__(1, lines[0][:2] + lines[1][2:])))
    yield "index, words as keys", ".idx", _lines(lambda lines: lines.__setitem__(0, b"one" + lines[0][2:]))
    yield "index, beyond the end", ".idx", _lines(lambda lines: lines.__setitem__(1, b"11\t99999\n"))
    yield "index, far beyond", ".idx", _lines(lambda lines: lines.__setitem__(1, b"11\t" + b"9" * 19 + b"\n"))
    yield "index, cut", ".idx", _cut(12)
    yield "index, numbered", ".idx", _lines(_numbered)
    yield "index, empty", ".idx", _cut(0)


def _of_checksums() -> Iterator[Damage]:
    for column, at in (("key", 0), ("offset", 8), ("length", 16), ("crc", 20), ("check", 24)):
        yield f"checksums, {column}", ".crc", _flip(32 + 28 + at, 16)
    yield "checksums, two bytes", ".crc", _put(32 + 28 + 8, b"\xff\xfe")
    yield "checksums, name", ".crc", _flip(3)
    yield "checksums, a row less", ".crc", _cut(32 + 28 * 2, 28)
    yield "checksums, last row", ".crc", _cut(-28)
    yield "checksums, half a row", ".crc", _cut(-9)
    yield "checksums, head alone", ".crc", _cut(32)
    yield "checksums, other records", ".crc", _put(32, bytes(28 * 3))


def _write(path: Path, records: list[tuple[int, Any, bytes]]) -> list[int]:
    offsets = []
    with RecordWriter(path) as writer:
        for key, label, payload in records:
            offsets.append(writer.position)
            writer.write(payload, label, key)
    return offsets


def _read(path: Path, **options: Any) -> str:
    """A letter for each record that is read: its payload's first byte, ``_`` without one, ``!`` for damage."""
    try:
        reader = RecordReader(path, **options)
    except GluontuneError as error:
        told = str(error).partition(";")[0].rpartition("/")[2]
        return f"({told.replace('a.rec: damaged at byte ', '').replace(' records', '')})"
    found = ""
    with reader:
        for n in range(len(reader)):
            try:
                payload = bytes(reader.payload(n))
                found += chr(payload[-1]) if payload and 33 <= payload[-1] < 127 else "_"
            except GluontuneError:
                found += "!"
    return found


def say(path: Path) -> str:
    """All that verifying, reading and repairing tell of a file."""
    try:
        report = verify(path, decode=False, workers=1)
    except GluontuneError as error:
        return str(error).replace(str(path.parent), "")
    said = [f"{report.whole} of {report.records}, {report.unchecked} unchecked"]
    said += [f"{d.index}@{d.offset} {d.reason}" for d in report.damaged]
    said += [problem.rpartition("/")[2] for problem in report.problems]
    try:
        done = repair(path, path.with_name("out.rec"), decode=False, workers=1)
        with RecordReader(done.out) as reader:
            kept = " ".join(f"{key}:{len(record)}" for key, record in zip(reader.keys, reader))
        said.append(f"kept {kept}; {done.restored} restored, {done.lost} lost, uncertain {done.uncertain}")
    except GluontuneError as error:
        said.append(str(error).rpartition("/")[2])
    reads = [_read(path), _read(path, index=False)]
    reads += [_read(path, check=True)] if path.with_suffix(".crc").exists() else []
    return " | ".join([*said, "read " + " ".join(reads)])


def _say_damaged(path: Path, whole: dict[str, bytes], harms: dict[str, Harm], gone: str) -> str:
    for suffix, data in whole.items():
        changed = bytearray(data)
        harms.get(suffix, lambda data: None)(changed)
        path.with_suffix(suffix).write_bytes(changed)
        if suffix in gone:
            path.with_suffix(suffix).unlink()
    return say(path)


def sayings() -> Iterator[str]:
    """A line for each damage of each file, with some of its side files or all; then some damages in twos."""
    with tempfile.TemporaryDirectory(prefix="gluontune-sayings-") as folder:
        path = Path(folder) / "a.rec"
        for turn, (name, records) in enumerate(FILES.items()):
            offsets = _write(path, records)
            whole = {suffix: path.with_suffix(suffix).read_bytes() for suffix in (".rec", ".idx", ".crc")}
            damages: list[Damage] = [("none", ".rec", lambda data: None)]
            if name == "ends":
                damages += _of_ends(offsets)
            else:
                damages += [*_of_records(offsets, len(whole[".rec"])), *_of_index(), *_of_checksums()]
            turns = [pair for pair in SIDES.items() if name != "ends" or pair[0] == "bare"]
            turned = itertools.islice(itertools.cycle(turns), turn + 1, None)
            for (damage, suffix, harm), (sides, gone) in zip(damages, turned):
                if suffix in gone:  # it is there to be damaged
                    sides, gone = "all", ""
                yield f"{name}, {damage}, {sides}: {_say_damaged(path, whole, {suffix: harm}, gone)}"
        offsets = _write(path, BYTES)
        whole = {suffix: path.with_suffix(suffix).read_bytes() for suffix in whole}
        of_sides = {damage: (suffix, harm) for damage, suffix, harm in (*_of_index(), *_of_checksums())}
        for (one, first), two in itertools.product(_cuts(offsets), IN_TWOS):
            suffix, second = of_sides[two]
            yield f"bytes, {one}, {two}: {_say_damaged(path, whole, {'.rec': first, suffix: second}, '')}"


if __name__ == "__main__":
    SAID.write_text("".join(f"{line}\n" for line in sayings()), encoding="utf-8")
    sys.exit(0)
