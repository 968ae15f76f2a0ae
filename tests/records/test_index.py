"""Where records start and end: chains of headers made by hand, indexes of any text, ids, labels, the last byte."""

from __future__ import annotations

import struct
from unittest import mock

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings, strategies as st

from gluontune.core.errors import GluontuneError, UsageError
from gluontune.records import DamagedRecordError, RecordReader, RecordWriter, side_files
from gluontune.records.layout import MAGIC, frame, image_record, join_parts, label_bytes, split_image_record
from gluontune.records.side_files import bounded, find_index, index_rows, map_file, read_index, scan


def part(flag, body=b"four", magic=0xCED7230A):
    return struct.pack("<II", magic, flag << 29 | len(body)) + body + bytes(-len(body) % 4)


@pytest.mark.parametrize(
    ("flags", "starts", "broken"),
    [
        ([0, 0], [0, 12], None),
        ([0, 1, 3, 0], [0, 12, 36], None),
        ([1, 2, 2, 3, 1, 3], [0, 48], None),
        ([0, 3], [0], 12),  # a last part of nothing
        ([0, 2], [0], 12),
        ([1, 3, 3], [0], 24),
        ([0, 1, 0], [0, 12], 12),  # not ended: the record that is open is the damaged one
        ([0, 1, 1], [0, 12], 12),
        ([0, 1, 2], [0, 12], 12),
        ([1], [0], 0),
        ([0, 4], [0], 12),
        ([1, 4], [0], 0),
        ([0, 7], [0], 12),
    ],
)
def test_a_chain_of_parts(flags, starts, broken):
    data = b"".join(map(part, flags))
    if broken is None:
        assert scan(memoryview(data), "a.rec").tolist() == starts
        return
    said = f"a.rec: damaged at byte {broken} of {len(data)}, after {len(starts)} records"
    with pytest.raises(DamagedRecordError, match=said) as caught:
        scan(memoryview(data), "a.rec")
    assert caught.value.offset == broken


@pytest.mark.parametrize("magic", [0xCED7230B, 0xCED72309, 0x4ED7230A, 0])
def test_any_other_magic_number_ends_the_chain(magic):
    data = part(0) + part(0, magic=magic)
    with pytest.raises(DamagedRecordError, match="at byte 12 of 24, after 1 records"):
        scan(memoryview(data), "a.rec")
    with pytest.raises(DamagedRecordError, match="broken magic number"):
        join_parts(memoryview(data), 12, len(data))


def test_the_last_padding_may_be_missing_and_no_byte_of_the_record(tmp_path):
    path = tmp_path / "a.rec"
    whole = part(0) + part(0, b"fives")
    for gone in range(9):
        data = memoryview(whole[: len(whole) - gone])
        path.write_bytes(data)
        if gone <= 3:
            assert scan(data, "a.rec").tolist() == [0, 12]
            assert bytes(join_parts(data, 12, len(data))[0]) == b"fives"
        else:
            with pytest.raises(DamagedRecordError, match=f"at byte 12 of {len(data)}, after 2 records"):
                scan(data, "a.rec")
            with pytest.raises(DamagedRecordError, match="claims 5 bytes, more than there are"):
                join_parts(data, 12, len(data))
    for length in range(13, 20):  # a header that is cut itself is no record
        with pytest.raises(DamagedRecordError, match=f"at byte 12 of {length}, after 1 records"):
            scan(memoryview(whole[:length]), "a.rec")
        with pytest.raises(DamagedRecordError, match="the file ends inside the record at byte 12"):
            join_parts(memoryview(whole), 12, length)
    assert scan(memoryview(part(0, b"")), "a.rec").tolist() == [0]
    assert len(scan(memoryview(b""), "a.rec")) == 0


KEYS = st.one_of(st.integers(-5, 1 << 62).map(str), st.sampled_from(["a", "two words", "7up", "", "9" * 25]))


@settings(deadline=None, max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    rows=st.lists(st.tuples(KEYS, st.integers(0, (1 << 63) - 1), st.sampled_from(["\n", "\n\n", "\r\n"])), max_size=4),
    ended=st.booleans(),
)
def test_an_index_is_read_as_its_lines_say(tmp_path, rows, ended):
    for piece in (7, 1 << 22):
        with mock.patch.object(side_files, "_PIECE", piece):
            read_as_its_lines_say(tmp_path, rows, ended)


def read_as_its_lines_say(tmp_path, rows, ended):
    path = tmp_path / "a.idx"
    text = "".join(f"{key}\t{offset}{end}" for key, offset, end in rows)
    path.write_bytes((text if ended else text.rstrip()).encode())
    keys, offsets = [key for key, _, _ in rows], [offset for _, offset, _ in rows]
    assert index_rows(path) == (keys, offsets)
    found, places = read_index(path)
    assert places.dtype == np.int64 and places.tolist() == offsets
    if all(key.lstrip("-").isdigit() and len(key) < 20 for key in keys):
        assert isinstance(found, range) or found.dtype == np.int64
        assert list(found) == [int(key) for key in keys]
    else:
        assert found == keys


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("0\t0\n1 5\n", 2),
        ("0\t0\n\n1\t\n", 3),
        ("0\t4x\n", 1),
        ("0\t0\n1\t9223372036854775808\n", 2),
        ("0\t0\n1\t2\t\n", 2),
    ],
)
def test_a_line_that_is_no_row_is_named(tmp_path, text, line):
    path = tmp_path / "a.idx"
    path.write_text(text)
    for read in (index_rows, read_index):
        with pytest.raises(GluontuneError, match=f"line {line} is not 'key<TAB>offset'"):
            read(path)


def test_a_long_line_is_named_by_its_first_sixty_bytes(tmp_path):
    (tmp_path / "a.idx").write_text("x" * 70)
    with pytest.raises(GluontuneError, match=f"offset': b'{'x' * 60}'; delete the index to scan instead"):
        read_index(tmp_path / "a.idx")


@given(offsets=st.lists(st.integers(0, 50), max_size=8))
def test_a_bounded_where_the_next_indexed_one_starts(offsets):
    starts, ends = bounded(np.array(offsets, np.int64), 60)
    assert starts.tolist() == offsets
    assert ends.tolist() == [min([o for o in offsets if o > at], default=60) for at in offsets]


def test_the_index_to_use(tmp_path):
    path, beside, other = tmp_path / "a.rec", tmp_path / "a.idx", tmp_path / "b.idx"
    assert find_index(str(path), None) is None and find_index(str(path), False) is None
    with pytest.raises(GluontuneError, match=r"a\.idx: no such file; leave out index=True"):
        find_index(str(path), True)
    assert find_index(str(path), other) == str(other)
    beside.write_text("")
    assert find_index(str(path), None) == find_index(str(path), True) == str(beside)
    assert find_index(str(path), False) is None
    path.write_bytes(b"")
    assert map_file(str(path))[0] is None and len(map_file(str(path))[1]) == 0


def test_an_index_may_point_to_the_last_header_and_not_behind_it(tmp_path):
    path = tmp_path / "a.rec"
    path.write_bytes(part(0) + part(0, b""))
    index = path.with_suffix(".idx")
    index.write_text("0\t0\n1\t12\n")
    assert bytes(RecordReader(path)[1]) == b""
    for row, said in (("1\t13", "a row points to byte 13, but .* has 20 bytes"), ("1\t-4", "line 2 is not 'key")):
        index.write_text(f"0\t0\n{row}\n")
        with pytest.raises(GluontuneError, match=said):
            RecordReader(path)
    index.write_text("")
    assert len(RecordReader(path)) == 0


def test_a_row_too_near_bounds_a_record_only_where_a_record_starts(tmp_path):
    path = tmp_path / "a.rec"
    body = b"body" * 5
    path.write_bytes(part(0, body) + part(0))
    for inside in (4, 8, 13, 24):
        path.with_suffix(".idx").write_text(f"0\t0\n1\t{inside}\n2\t28\n")
        with RecordReader(path) as reader:
            assert bytes(reader[0]) == body and bytes(reader[2]) == b"four"
    longer = bytearray(part(0, body) + part(0))
    longer[4] += 12  # claims the next record as well
    path.write_bytes(longer)
    path.with_suffix(".idx").write_text("0\t0\n1\t28\n")
    with RecordReader(path) as reader, pytest.raises(DamagedRecordError, match="record 0 is damaged"):
        reader[0]


def test_a_record_without_a_row_of_the_checksums_is_not_checked_by_silence(tmp_path):
    path = tmp_path / "a.rec"
    with RecordWriter(path) as writer:
        writer.write(b"one", 0)
        writer.write(b"two", 1)
    side = path.with_suffix(".crc")
    side.write_bytes(side.read_bytes()[:-28])
    with RecordReader(path, check=True) as reader:
        assert bytes(reader.payload(0)) == b"one"
        with pytest.raises(DamagedRecordError, match=r"record 1 is damaged: the \.crc file has no sound row") as caught:
            reader.payload(1)
    assert (caught.value.index, caught.value.offset) == (1, 36)


@pytest.mark.parametrize(
    ("records", "keys"),
    [
        ([image_record(b"", 0, 7), image_record(b"x", 0, 0)], [7, 0]),
        ([image_record(b"", 0, (1 << 63) - 1)], [(1 << 63) - 1]),
        ([image_record(b"", 0, 1 << 63), image_record(b"", 0, 9)], [0, 1]),
        ([image_record(b"", 0, 9), image_record(b"x", 0, 9)], [0, 1]),
        ([image_record(b"", 0, 9), image_record(b"", 0, 9)[:23]], [0, 1]),
    ],
)
def test_ids_are_keys_where_all_have_one_and_no_two_the_same(tmp_path, records, keys):
    path = tmp_path / "a.rec"
    path.write_bytes(b"".join(map(frame, records)))
    with RecordReader(path) as reader:
        assert reader.keys.tolist() == keys and repr(reader) == f"RecordReader({str(path)!r}: {len(keys)} records)"
        assert bytes(reader.read_key(keys[0])) == records[0]
        for wrong in (5, "a", [keys[0]]):
            with pytest.raises(UsageError, match="no record has the key"):
                reader.read_key(wrong)


def test_labels_of_more_records_than_are_looked_at_together(tmp_path):
    count = 2 * 65536 + 3
    rows = np.zeros(
        count, np.dtype([("magic", "<u4"), ("length", "<u4"), ("flag", "<u4"), ("label", "<f4"), ("id", "<u8", 2)])
    )
    rows["magic"], rows["length"], rows["label"] = 0xCED7230A, 24, np.arange(count)
    path = tmp_path / "a.rec"
    path.write_bytes(rows.tobytes())
    labels = RecordReader(path).labels()
    assert labels.dtype == np.float32 and np.array_equal(labels, np.arange(count)) and not labels.flags.writeable


def test_labels_of_records_that_are_none(tmp_path):
    path = tmp_path / "a.rec"
    good = image_record(b"x", 3.0, 0)
    for bad in (good[:23], b"", struct.pack("<IfQQ", 2, 0, 0, 0) + b"12345"):
        path.write_bytes(frame(good) + frame(bad))
        with pytest.raises(DamagedRecordError, match="record 1 is damaged"):
            RecordReader(path).labels()
    data = bytearray(frame(good) + frame(good))
    data[36 + 4] = 29  # longer than the file
    path.write_bytes(data)
    path.with_suffix(".idx").write_text("0\t0\n1\t36\n")
    with pytest.raises(DamagedRecordError, match="record 1 is damaged"):
        RecordReader(path).labels()
    data[36 + 4], data[36] = 25, 0
    path.write_bytes(data)
    with pytest.raises(DamagedRecordError, match="broken magic"):
        RecordReader(path).labels()


def test_an_image_record_is_as_long_as_its_header_says():
    record = image_record(b"", [1.0, 2.0], 5)
    header, payload = split_image_record(record)
    assert (header.flag, header.label.tolist(), header.id, header.id2, bytes(payload)) == (2, [1.0, 2.0], 5, 0, b"")
    with pytest.raises(DamagedRecordError, match="a record of 31 bytes cannot hold 2 labels"):
        split_image_record(record[:-1])
    header, payload = split_image_record(image_record(b"", 4.0, 5))
    assert (header.flag, header.label, bytes(payload)) == (0, 4.0, b"")
    with pytest.raises(DamagedRecordError, match="a record of 23 bytes has no image header"):
        split_image_record(bytes(23))


@pytest.mark.parametrize(
    ("label", "held"),
    [
        (16777216.0, True), (16777217.0, False), (-16777216.0, True), (-16777217.0, False), (16777218, True),
        (16777217.5, True),  # no whole number: it may be rounded
        (2.0**53 - 1, False), (2.0**53 + 2, True), (2**53 + 1, False),  # a float that large is a measurement
        (0, True), (0.0, True), (-0.0, True), (1e-37, True), (2e-38, True), (1e-44, True), (1e-46, False),
        (-1e-46, False), (3.4e38, True), (3.5e38, False), (-3.5e38, False), (float("-inf"), False),
        (np.float64(16777217), False),
        ([16777216, 16777217], False), ([2.5, 1e-37], True), (np.zeros(0), False), (np.array(["a"]), False),
        (np.array([True, False]), True), (np.array([1], np.uint8), True), (None, False), ([[1, 2], [3, 4]], True),
    ],
)  # fmt: skip
def test_what_float32_holds_of_a_label(label, held):
    if not held:
        with pytest.raises(UsageError, match="label"):
            label_bytes(label)
        return
    flag, field, extra = label_bytes(label)
    if np.ndim(label):
        assert (flag, field) == (np.size(label), 0.0)
        assert np.array_equal(np.frombuffer(extra, "<f4"), np.float32(label).ravel())
    else:
        assert (flag, field, extra) == (0, float(label), b"")


def test_records_are_framed_at_every_aligned_magic_number():
    body = MAGIC + b"abcd" + MAGIC + MAGIC + b"ef" + MAGIC + b"gh"
    parts = [(1, b""), (2, b"abcd"), (2, b""), (3, b"ef" + MAGIC + b"gh")]
    assert frame(body) == b"".join(part(*p) for p in parts)
    assert frame(b"ab" + MAGIC) == part(0, b"ab" + MAGIC)
    for size in (1 << 29, (1 << 29) + 4):
        with pytest.raises(UsageError, match=f"record of {size:,} bytes: the format's limit is .* = 536,870,911"):
            frame(bytes(size))
    assert bytes(join_parts(memoryview(frame(body)), 0, len(frame(body)))[0]) == body
