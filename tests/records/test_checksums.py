"""The ``.crc`` file: its bytes, and which damaged rows their check words put right."""

from __future__ import annotations

import numpy as np
import pytest

from gluontune.core.errors import GluontuneError
from gluontune.records import RecordReader, RecordWriter
from gluontune.records.side_files import head, make_rows, mended_rows, read_checksums, row_is_sound


def rows_of(*places):
    """A row of each (offset, length)."""
    offsets, lengths = ([place[k] for place in places] for k in range(2))
    return make_rows(list(range(len(places))), offsets, lengths, [7 * k for k in range(len(places))])


def hurt(rows, place, column="crc", mask=64):
    found = rows.copy()
    found[column][place : place + 1] ^= found[column].dtype.type(mask)
    return found


def test_the_bytes_are_those_of_files_that_are_there():
    assert head(b"job").hex() == b"GLUONTUNE-CRC-2\njob".ljust(32, b"\0").hex()
    assert head(b"longer than eight") == head(b"longer t")
    rows = make_rows([7, (1 << 63) - 1], [0, 1 << 40], [100, 3], [0xDEADBEEF, 1])
    assert [row.tobytes().hex() for row in rows] == [
        "0700000000000000000000000000000064000000efbeaddebae01422",
        "ffffffffffffff7f00000000000100000300000001000000ca931e59",
    ]


def test_each_word_counts_in_the_check_word():
    rows = rows_of((0, 100), (108, 40))
    assert row_is_sound(rows).tolist() == [True, True] and row_is_sound(rows[:0]).tolist() == []
    for column in ("key", "offset", "length", "crc", "check"):
        for bit in range(32):
            assert row_is_sound(hurt(rows, 1, column, 1 << bit)).tolist() == [True, False]
    both = hurt(hurt(rows, 0, "length", 4), 0, "offset", 4)
    assert row_is_sound(both).tolist() == [False, True]


@pytest.mark.parametrize("column", ["key", "offset", "length", "crc", "check"])
def test_one_altered_byte_of_a_row_is_put_right(column):
    rows = rows_of((0, 100), (108, 40), (156, 8))
    for place in range(3):
        for mask in (1, 255, 0x8000):
            damaged = hurt(rows, place, column, mask)
            assert not row_is_sound(damaged)[place]
            assert mended_rows(damaged).tolist() == rows.tolist()
            assert damaged.tolist() != rows.tolist(), "what was given is left alone"
    two = hurt(rows, 1, column, 0x0101)
    assert mended_rows(two).tolist() == two.tolist()
    every = hurt(hurt(hurt(rows, 0), 1), 2)
    assert mended_rows(every).tolist() == rows.tolist()
    assert mended_rows(every, limit=2).tolist() == [*rows.tolist()[:2], every.tolist()[2]]


@pytest.mark.parametrize(
    ("places", "damaged", "mended"),
    [
        ([(0, 92), (100, 92), (200, 92)], 1, True),  # records that touch
        ([(0, 93), (100, 92), (200, 92)], 1, False),  # it would begin in the one before
        ([(0, 92), (100, 93), (200, 92)], 1, False),  # it would end in the one behind
        ([(0, 8), (400, 8), (100, 8), (200, 8), (300, 8)], 2, False),  # the nearest one counts
        ([(0, 8), (100, 8), (200, 150), (300, 8), (400, 8)], 2, False),
        ([(0, 8), (100, 8), (200, 92), (300, 8), (150, 8)], 2, True),
        ([(250, 8), (100, 8), (200, 92), (300, 8)], 2, True),
        ([(0, 8), (102, 8)], 1, False),  # no record starts there
        ([(0, 8), ((1 << 48) - 16, 8)], 1, True),
        ([(0, 8), ((1 << 48) - 16, 9)], 1, False),  # no file is so large
        ([((1 << 48) - 4, 8)], 0, False),
    ],
)
def test_what_a_row_is_put_right_to_lies_between_its_neighbours(places, damaged, mended):
    rows = rows_of(*places)
    found = mended_rows(hurt(rows, damaged))
    assert (found.tolist() == rows.tolist()) == mended
    assert (found.tolist() == hurt(rows, damaged).tolist()) != mended


def test_neighbours_that_are_damaged_themselves_say_nothing():
    rows = rows_of((0, 92), (100, 92), (200, 92))
    broken = hurt(hurt(rows, 0, "offset", 0x0104_0000), 2, "length", 0x0101)
    found = mended_rows(hurt(broken, 1))
    assert found[1].tolist() == rows[1].tolist()


def test_files_that_are_read(tmp_path):
    path = tmp_path / "a.rec"
    with RecordWriter(path) as writer:
        writer.write(b"one", 0, key=5)
        writer.write(b"two", 0, key=9)
    side = path.with_suffix(".crc")
    data = side.read_bytes()
    fingerprint, rows = read_checksums(side)
    assert fingerprint == bytes(8) and rows["key"].tolist() == [5, 9] and rows["offset"].tolist() == [0, 36]
    side.write_bytes(head(b"the job!") + data[32:])
    assert read_checksums(side)[0] == b"the job!"
    for length, count in ((88, 2), (87, 1), (60, 1), (59, 0), (32, 0), (16, 0)):
        side.write_bytes(data[:length])
        assert len(read_checksums(side)[1]) == count
    for bad in (b"", data[:15], b"?" + data[1:], data[:15] + b"?" + data[16:]):
        side.write_bytes(bad)
        with pytest.raises(GluontuneError, match="not a checksum file of gluontune"):
            read_checksums(side)
        if len(bad) > 32:
            assert len(read_checksums(side, lenient=True)[1]) == 2
        else:
            with pytest.raises(GluontuneError, match="not a checksum file"):
                read_checksums(side, lenient=True)
    side.write_bytes(bytes(32) + bytes(28))  # no row in it is sound
    with pytest.raises(GluontuneError, match="not a checksum file"):
        read_checksums(side, lenient=True)
    side.unlink()
    with pytest.raises(GluontuneError, match=r"a\.crc.*no such file"):
        RecordReader(path, check=True)
    assert np.array_equal(RecordReader(path).keys, [5, 9])
