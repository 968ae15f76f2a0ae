"""What verifying and repairing tell beside the damages: progress, counts, keys, and files that are none of ours."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from gluontune.codec.image import pixels_to_raw
from gluontune.core.errors import GluontuneError, UsageError
from gluontune.records import RecordReader, RecordWriter, repair, verify
from gluontune.records.blocks import Skip
from gluontune.records.fields import join_fields
from gluontune.records.formats import FormatRow
from gluontune.records.layout import MAGIC, frame, image_record
from gluontune.records.sources import Source
from gluontune.records.transform import Transform


def write(path, keys, **options):
    with RecordWriter(path, **options) as writer:
        for key in keys:
            writer.write(b"%04d" % (key % 10000), 1.0, key)
    return path


@pytest.mark.parametrize("workers", [1, 3])
def test_progress_is_told_by_batches(tmp_path, workers):
    path = write(tmp_path / "a.rec", range(700))
    told = []
    report = verify(path, workers=workers, progress=lambda done, total: told.append((done, total)))
    assert told == [(36 * n, 36 * 700) for n in (128, 256, 384, 512, 640, 700, 700)]
    assert report.ok and report.to_dict() == {
        "path": str(path), "ok": True, "records": 700, "whole": 700, "damaged": [], "unchecked": 0,
        "incomplete": [], "problems": [],
    }  # fmt: skip
    told.clear()
    repair(path, tmp_path / "b.rec", workers=workers, progress=lambda done, total: told.append(done))
    assert told[-1] == 36 * 700


def test_progress_of_a_file_without_a_record(tmp_path):
    path = tmp_path / "a.rec"
    path.write_bytes(bytes(100))
    told = []
    report = verify(path, progress=lambda done, total: told.append((done, total)))
    assert told == [(100, 100)] and not report.ok and report.no_record_file
    assert report.to_dict()["damaged"] == [
        {"index": 0, "offset": 0, "reason": "no record starts at byte 0 (broken magic number)"}
    ]


@pytest.mark.parametrize(
    ("data", "suffix", "none"),
    [
        (bytes(100), None, True),
        (bytes(100), ".idx", False),
        (bytes(100), ".crc", False),
        (bytes(40) + frame(b"a record"), None, False),
        (frame(b"a record"), None, False),
        (MAGIC + bytes([255, 255, 0, 0]), None, False),  # a header, and no record
        (bytes(100) + MAGIC, None, True),
    ],
)
def test_some_other_file(tmp_path, data, suffix, none):
    path = tmp_path / "a.rec"
    path.write_bytes(data)
    if suffix:
        path.with_suffix(suffix).write_bytes(b"")
    assert verify(path).no_record_file == none


@pytest.mark.parametrize("key", [0, 10**18 - 1, 10**18, (1 << 63) - 1])
@pytest.mark.parametrize("checksums", [True, False])
def test_keys_of_any_length_are_sound(tmp_path, key, checksums):
    path = write(tmp_path / "a.rec", [key, 5], checksums=checksums)
    assert verify(path).ok
    done = repair(path, tmp_path / "b.rec")
    assert (done.kept, done.lost, done.uncertain) == (2, 0, [])
    assert RecordReader(tmp_path / "b.rec").keys.tolist() == [key, 5]


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("7\t36", None),
        ("007\t36", None),
        ("7\t36\r", None),
        ("7\t000036", None),
        ("7 36", "index line 2 is not 'key<TAB>offset': b'7 36'"),
        ("7\t+36", "index line 2 is not"),
        ("7\t" + "9" * 18, "index row 1: key 7 points beyond the end of the file"),
        ("7\t" + "9" * 19, "index line 2 is not"),
        ("7\t40", "index row 1: key 7 points to where no record starts"),
        ("7\t72", "index row 1: key 7 points beyond the end of the file"),
        ("x\t36", "index row 1: key x points to the record of key 7"),
        ("9223372036854775808\t36", "index row 1: key 9223372036854775808 points to the record of key 7"),
        ("\u00b2\t36", "index row 1: key \u00b2 points to the record of key 7"),
        ("3\t36", "index row 1: the key 3 is used by row 0 already"),
    ],
)
@pytest.mark.parametrize("end", ["\n", ""])
def test_rows_of_an_index(tmp_path, line, reason, end):
    path = write(tmp_path / "a.rec", [3, 7])
    path.with_suffix(".idx").write_bytes(f"3\t0\n{line}{end}".encode())
    report = verify(path)
    said = [d.reason for d in report.damaged if "no row for key 7" not in d.reason]
    if reason is None:
        assert report.ok
    elif "used by row" in reason:
        assert len(said) == 1 and "key 3" in said[0]
    else:
        assert len(said) == 1 and said[0].startswith(reason)
    repair(path, tmp_path / "b.rec")
    assert RecordReader(tmp_path / "b.rec").keys.tolist() == [3, 7]


def test_which_index_is_used(tmp_path):
    path = write(tmp_path / "a.rec", [3, 7])
    other = tmp_path / "other.idx"
    other.write_text("3\t0\n7\t4\n")
    assert verify(path, False).ok and verify(path, True).ok and not verify(path, other).ok
    path.with_suffix(".idx").unlink()
    assert verify(path).ok
    for missing in (True, tmp_path / "none.idx"):
        with pytest.raises(UsageError, match="no such index file"):
            verify(path, missing)


def images(path, payloads):
    with RecordWriter(path, checksums=False) as writer:
        for k, payload in enumerate(payloads):
            writer.write(payload, 1.0, k)
    return [(d.index, d.reason) for d in verify(path, decode=False).damaged]


def test_what_is_no_image_is_named_where_most_are_images(tmp_path):
    raw = pixels_to_raw(np.zeros((2, 2, 3), np.uint8))
    text = join_fields({"caption": "no image"})[1]
    path = tmp_path / "a.rec"
    assert images(path, [raw, raw, raw, b"no image at all"]) == [(3, "not an image (begins with b'no image at ')")]
    assert images(path, [raw, raw, b"none", b"none"]) == []  # half of them is not most
    assert images(path, [raw, raw, raw, text]) == []  # a record may have fields and no image
    assert [k for k, _ in images(path, [raw, raw[:-1], raw])] == [1]
    assert images(path, [raw, raw, raw, b""]) == [(3, "not an image (begins with b'')")]


def test_an_id_that_is_no_key_says_nothing(tmp_path):
    path = tmp_path / "a.rec"
    path.write_bytes(frame(image_record(b"one", 1.0, 1 << 63)) + frame(image_record(b"two", 1.0, 9)) + frame(b"short"))
    assert verify(path).ok
    done = repair(path, tmp_path / "b.rec")
    keys = RecordReader(tmp_path / "b.rec").keys.tolist()
    assert keys[1] == 9 and len(set(keys)) == 3 and sorted(done.uncertain) == sorted([keys[0], keys[2]])
    assert done.to_dict() == {
        "out": str(tmp_path / "b.rec"), "kept": 3, "restored": 0, "lost": 0, "uncertain": done.uncertain,
    }  # fmt: skip


def test_an_id_that_two_records_carry_goes_to_the_one_that_follows_another(tmp_path):
    path = tmp_path / "a.rec"
    first, second = (frame(image_record(body, 1.0, 5)) for body in (b"one", b"two"))
    path.write_bytes(bytes(16) + first + second)  # what stands before the first is no record
    done = repair(path, tmp_path / "b.rec")
    with RecordReader(tmp_path / "b.rec") as reader:
        assert [bytes(reader.payload(k)) for k in range(2)] == [b"one", b"two"]
        assert reader.keys.tolist() == [6, 5] and done.uncertain == [6]


def test_names_of_classes_go_along_and_nothing_is_repaired_into_itself(tmp_path):
    path = write(tmp_path / "a.rec", [0, 1])
    repair(path, tmp_path / "b.rec")
    assert not (tmp_path / "b.classes").exists()
    path.with_suffix(".classes").write_text("cat\ndog\n")
    repair(path, tmp_path / "b.rec")
    assert (tmp_path / "b.classes").read_text() == "cat\ndog\n"
    (tmp_path / "link.rec").symlink_to(path)
    for same in (path, tmp_path / "link.rec"):
        with pytest.raises(UsageError, match="repair into another file"):
            repair(path, same)
    (tmp_path / "none.rec").write_bytes(b"rubbish")
    with pytest.raises(GluontuneError, match="not one record is whole"):
        repair(tmp_path / "none.rec", tmp_path / "c.rec")
    assert not (tmp_path / "c.rec").exists()


def test_what_is_reported_is_not_altered(tmp_path):
    path = write(tmp_path / "a.rec", [0, 1])
    path.write_bytes(path.read_bytes()[:-2])
    done, rows = repair(path, tmp_path / "b.rec"), (Skip(0, "a.jpg", "empty file"), FormatRow("files", "ok"))
    for value in (done, done.verified.damaged[0], Transform(), Source([], None, "list"), *rows):
        name = dataclasses.fields(value)[0].name
        with pytest.raises(dataclasses.FrozenInstanceError):
            setattr(value, name, None)
