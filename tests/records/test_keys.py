"""Ids against index: how likely each explanation is, in the units of its logarithm, and what stays doubtful."""

from __future__ import annotations

import math

import pytest

from gluontune.records import RecordWriter, repair
from gluontune.records.side_files import head
from gluontune.records.verifier import survey

THREE, FOUR, FIVE = [30, 11, 25], [30, 11, 25, 47], [30, 11, 25, 47, 52]


def free(lines):
    """What it costs that keys have nothing to do with ids: each could be any of some."""
    return 4 + lines * math.log(4 * lines + 8)


def at(*keys):
    """Index lines of these keys, a record apart."""
    return [(key, 36 * n) for n, key in enumerate(keys)]


def write(path, ids, lines):
    with RecordWriter(path, checksums=False) as writer:
        for key in ids:
            writer.write(b"four", 0.0, key)
    path.with_suffix(".idx").write_text("".join(f"{key}\t{offset}\n" for key, offset in lines))


@pytest.mark.parametrize(
    ("ids", "lines", "odds", "by_ids", "doubtful"),
    [
        (THREE, at(30, 11, 25), free(3), True, []),
        (THREE, at(30, 12, 25), free(3) - 5, True, []),  # a line that is a byte away
        (THREE, at(30, 777, 25), free(3) - 9, True, [1]),  # one that is altered: hardly settled
        (THREE, at(31, 777, 25), 14 - free(3), False, [0, 1]),
        (FOUR, at(31, 12, 25, 47), free(4) - 10, True, []),
        (FOUR, at(31, 777, 25, 47), free(4) - 14, True, [0, 1]),
        (FIVE, at(31, 777, 25, 47, 52), free(5) - 14, True, []),
        ([30, 25], at(30, 11, 25), free(3) - 1, True, []),  # the record of 11 may have been cut out
        ([30, 25, 47], at(30, 11, 12, 25, 47), free(5) - 2, True, []),
        (FOUR, at(30, 777, 888, 999, 555, 47), free(6) - 2 * 1 - 2 * 9, True, []),
        (FIVE, [(30, 0), (25, 72), (52, 144)], free(3), True, []),  # it lists some records alone
        (THREE, at(11, 30, 25), free(3) - 9, True, [0, 1]),  # two keys exchanged: another order
        (THREE, [(11, 36), (30, 0), (25, 72)], free(3), True, []),  # lines exchanged: altered, whatever keys mean
        (THREE, at(30, 30, 25), 4 + 2 * math.log(20), True, []),
        (THREE, at(0, 1, 2), 27 - 3, False, []),  # numbered anew
        (THREE, at(0, 1, 3), 27 - 3 - 5, False, []),
        (THREE, at(0, 1, 77), 27 - 3 - 9, False, []),
        (THREE, [(0, 36), (1, 0), (2, 72)], 27 - 3 - 9, False, []),
        ([0, 1, 2], at(0, 1, 2), 3.0, True, []),  # both agree
        ([0, 1, 2], at(0, 1, 7), 3.0, True, [2]),
        ([1, 0, 2], at(0, 1, 2), 9 - 3, False, []),
        ([2, 1], at(0, 1), 2.0, False, [0]),
        (THREE, at("cat", "dog", "eel"), 27 - free(3), False, []),
        (THREE, [(5, 72), (60, 36), (7, 0)], 5 + 2 * 9 - 9 - free(3), False, [0, 1, 2]),
        ([30, 11], [], math.inf, True, []),
    ],
)
def test_the_odds_of_each_explanation(tmp_path, ids, lines, odds, by_ids, doubtful):
    path = tmp_path / "a.rec"
    write(path, ids, lines)
    with survey(path) as found:
        assert found.keys.odds == pytest.approx(odds)
        assert found.keys.true == ({36 * n: key for n, key in enumerate(ids)} if by_ids else {})
        assert found.keys.doubtful == {36 * n for n in doubtful}


def test_beside_checksums_ids_are_rather_keys(tmp_path):
    path = tmp_path / "a.rec"
    write(path, THREE, at(30, 777, 25))
    path.with_suffix(".crc").write_bytes(head())
    with survey(path) as found:
        assert found.keys.odds == pytest.approx(free(3) - 9 + 4) and found.keys.doubtful == set()


def test_what_a_row_of_the_checksums_proves_needs_no_odds(tmp_path):
    path = tmp_path / "a.rec"
    with RecordWriter(path) as writer:
        for key in THREE:
            writer.write(b"four", 0.0, key)
    path.with_suffix(".idx").write_text("0\t0\n1\t36\n2\t72\n")
    side = path.with_suffix(".crc")
    side.write_bytes(side.read_bytes()[: 32 + 28])
    with survey(path) as found:  # of one record is proven that its id is its key, so all are
        assert found.keys.odds == math.inf and found.keys.true == {0: 30, 36: 11, 72: 25}


def test_an_id_that_two_records_carry_is_no_key(tmp_path):
    path = tmp_path / "a.rec"
    write(path, [30, 11], at(30, 11))
    path.write_bytes(path.read_bytes() + path.read_bytes()[36:])
    with survey(path) as found:
        assert found.keys.true == {0: 30}


def test_a_new_key_follows_those_that_are_in_use_but_no_odd_one(tmp_path):
    path = tmp_path / "a.rec"
    write(path, [3, (1 << 62) + 7], [])
    path.write_bytes(path.read_bytes() + path.read_bytes()[:36])  # a key that is there already
    done = repair(path, tmp_path / "b.rec")
    assert done.uncertain == [4]
    assert (done.verified.whole, done.verified.unchecked) == (0, 3)  # there are no checksums
