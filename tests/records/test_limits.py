"""Fields, boxes and the writer at their limits: the last value that is taken and the first that is refused."""

from __future__ import annotations

import json
import math
import struct
import zlib

import cv2
import numpy as np
import pytest

from gluontune.core.errors import GluontuneError, UsageError
from gluontune.records import RecordReader, RecordWriter, boxes_of, boxes_to_label
from gluontune.records.fields import END, Field, join_fields, split_fields, take_fields
from gluontune.records.layout import IRHeader
from gluontune.records.writer import index_text


def with_directory(rows, body=b""):
    directory = rows if isinstance(rows, bytes) else json.dumps(rows).encode()
    return body + directory + struct.pack("<II8s", len(directory), zlib.crc32(directory), END)


def fields_of(payload, names=None, label=1.0):
    return take_fields(IRHeader(0, label, 0, 0), payload, names)


def test_the_bytes_of_a_record_with_fields():
    label, payload = join_fields(
        {"image": b"IMG", "label": 2, "note": "hé", "n": 7, "b": b"\1\2", "v": np.float32([1, 2])}
    )
    directory = b'[["note","text",3,"",[]],["n","array",8,"<i8",[]],["b","bytes",2,"",[]],["v","array",8,"<f4",[2]]]'
    body = "hé".encode() + struct.pack("<q", 7) + b"\1\2" + struct.pack("<ff", 1, 2)
    foot = struct.pack("<II", len(directory), zlib.crc32(directory)) + b"\x93GTFLD\r\n"
    assert (label, payload) == (2, b"IMG" + body + directory + foot)
    assert join_fields({"image": memoryview(b"x")}) == (0, b"x") and join_fields({}) == (0, b"")
    found = fields_of(payload, ["v", "note"])
    assert list(found) == ["v", "note"] and found["v"].flags.writeable
    image, fields = split_fields(payload)
    assert bytes(image) == b"IMG" and [f.name for f in fields] == ["note", "n", "b", "v"]
    assert fields[3] == Field("v", "array", struct.pack("<ff", 1, 2), "<f4", (2,))


@pytest.mark.parametrize(
    ("name", "fits"), [("n" * 255, True), ("n" * 256, False), ("", False), (5, False), ("n", True)]
)
def test_names_of_fields(name, fits):
    if fits:
        assert fields_of(join_fields({name: "text"})[1])[name] == "text"
    else:
        with pytest.raises(UsageError, match="a name is a text of 1 to 255 characters"):
            join_fields({name: "text"})


@pytest.mark.parametrize(
    ("rows", "body", "fits"),
    [
        ([["a", "text", 4, "", []]], b"four", True),
        ([["a", "text", 5, "", []]], b"four", False),  # more than there is
        ([["a", "text", 0, "", []]], b"", True),
        ([["a", "text", -1, "", []]], b"four", False),
        ([["a", "text", True, "", []]], b"four", False),
        ([["a", "text", 4.0, "", []]], b"four", False),
        ([["a", "text", 1 << 32, "", []]], b"four", False),
        ([["a", "bytes", 2, "", [(1 << 32) - 1]]], b"four", True),
        ([["a", "bytes", 2, "", [1 << 32]]], b"four", False),
        ([["a", "bytes", 2, "", [-1]]], b"four", False),
        ([["a", "bytes", 2, "", [True]]], b"four", False),
        ([["a", "array", 4, "<f4", [1] * 32]], b"four", True),
        ([["a", "array", 4, "<f4", [1] * 33]], b"four", False),  # numpy has no more axes
        ([["a", "array", 4, "<f4", [2]]], b"four", False),
        ([["a", "array", 4, "<i2", [2]]], b"four", True),
        ([["a", "array", 4, "<i2", [2, 1, 1]]], b"four", True),
        ([["a", "array", 4, "|u1", [4]]], b"four", True),
        ([["a", "array", 4, "|O", [4]]], b"four", False),
        ([["a", "array", 0, "<f8", [0, 3]]], b"", True),
        ([["a", "text", 2, "", []], ["a", "text", 2, "", []]], b"four", False),
        ([["a", "text", 2, "", []], ["b", "text", 2, "", []]], b"four", True),
        ([["a", "odd", 2, "", []]], b"four", False),
        ([[7, "text", 2, "", []]], b"four", False),
        ([["a", "text", 2, ""]], b"four", False),
        ([7], b"four", False),
    ],
)
def test_rows_of_a_directory(rows, body, fits):
    payload = with_directory(rows, b"image" * (not fits) + body)[5 * (not fits) :]
    if fits:
        image, fields = split_fields(payload)
        assert sum(len(f.data) for f in fields) + len(image) == len(body)
        assert b"".join([image, *(f.data for f in fields)]) == body
    else:
        with pytest.raises(GluontuneError, match="directory of its fields"):
            split_fields(payload)


def test_a_foot_alone_and_one_that_is_cut():
    empty = with_directory([])
    assert split_fields(empty) == (b"", [])
    foot = struct.pack("<II8s", 0, zlib.crc32(b""), END)
    with pytest.raises(GluontuneError, match="cannot be read"):
        split_fields(foot)
    assert split_fields(foot[1:]) == (foot[1:], [])  # fifteen bytes are an image
    with pytest.raises(GluontuneError, match="directory of its fields is damaged"):
        split_fields(struct.pack("<II8s", 1, zlib.crc32(b""), END))
    with pytest.raises(GluontuneError, match="directory of its fields is damaged"):
        split_fields(empty[:-16] + struct.pack("<II8s", 2, 1, END))


def test_fields_that_cannot_be_read_are_named():
    _, payload = join_fields({"image": b"i", "mask": np.full((3, 4), 9, np.uint8), "label": 4})
    found = fields_of(payload, label=4.0)
    assert found["mask"].tolist() == [[9] * 4] * 3 and found["label"] == 4.0 and bytes(found["image"]) == b"i"
    png = bytes(split_fields(payload)[1][0].data)
    colour = cv2.imencode(".png", np.zeros((2, 2, 3), np.uint8))[1].tobytes()
    for data, words in ((png[:-1], "no whole PNG file"), (b"", "no whole"), (colour, "no PNG file of one channel")):
        with pytest.raises(GluontuneError, match=f"field 'mask' cannot be read: {words}"):
            fields_of(with_directory([["mask", "mask", len(data), "", []]], data))
    with pytest.raises(GluontuneError, match="field 'a' cannot be read"):
        fields_of(with_directory([["a", "text", 1, "", []]], b"\xff"))
    with pytest.raises(GluontuneError, match="no field 'b': the record has image, label, a"):
        fields_of(with_directory([["a", "text", 1, "", []]], b"x"), ["a", "b"])


@pytest.mark.parametrize(
    "mask",
    [np.zeros((0, 4), np.uint8), np.zeros(4, np.uint8), np.zeros((2, 2, 1), np.uint8), np.zeros((2, 2), np.int16)],
)
def test_masks_are_of_two_axes_and_no_sign(mask):
    for name in ("mask", "a_mask"):
        with pytest.raises(UsageError, match=f"field '{name}': .* a mask is uint8 or uint16"):
            join_fields({name: mask})
    assert fields_of(join_fields({"masked": mask})[1])["masked"].shape == mask.shape  # an array of that name


def test_boxes_in_a_record_with_fields_and_without():
    label, payload = join_fields({"image": b"i", "boxes": np.zeros((0, 5)), "a": 1})
    assert label == [2.0, 5.0]
    assert fields_of(payload, label=label)["boxes"].shape == (0, 5)
    with pytest.raises(GluontuneError, match="no boxes"):
        fields_of(b"image", ["boxes"], label=[2.0, 5.0])  # without a directory it is a label of two numbers
    assert fields_of(b"image", ["boxes"], label=[2, 5, 1, 0, 0, 1, 1])["boxes"].tolist() == [[1, 0, 0, 1, 1]]
    assert sorted(fields_of(b"image", label=[2, 5, 1, 0, 0, 1, 1])) == ["image", "label"]
    own = with_directory([["boxes", "text", 1, "", []]], b"x")  # somebody's text of that name
    assert fields_of(own)["boxes"] == "x"


@pytest.mark.parametrize(
    ("label", "boxes"),
    [
        ([2, 5, 1, 0, 0, 1, 1], [[1, 0, 0, 1, 1]]),
        ([2, 6, 1, 0, 0, 1, 1, 9], [[1, 0, 0, 1, 1, 9]]),
        ([4, 5, 640, 480, 1, 0, 0, 1, 1, 2, 0, 0, 0, 0], [[1, 0, 0, 1, 1], [2, 0, 0, 0, 0]]),
        ([2, 5, 1, 0, 0, 1, 1, 2], None),  # half a second one
        ([2, 4, 1, 0, 0, 1], None),
        ([1, 5, 1, 0, 0, 1], None),
        ([2, 5, 1, 0, 0, 1], None),
        ([2, 5], None),
        ([2], None),
        ([], None),
        ([3, 5, 1, 0, 0, 1, 1], None),
        ([2, math.inf, 1, 0, 0, 1, 1], None),
    ],
)
def test_labels_that_are_boxes(label, boxes):
    if boxes is None:
        with pytest.raises(GluontuneError, match=f"no boxes: a label of {len(label)} numbers that begins"):
            boxes_of(label)
    else:
        assert boxes_of(label).tolist() == boxes
        start = int(label[0])
        assert boxes_to_label(boxes, header=label[2:start]).tolist() == label


@pytest.mark.parametrize(
    ("box", "sound"),
    [
        ([0, 0, 0, 1, 1], True),
        ([0, 0.5, 0.5, 0.5, 0.5], True),
        ([-0.1, 0, 0, 1, 1], False),
        ([0, -0.1, 0, 1, 1], False),
        ([0, 0, -0.1, 1, 1], False),
        ([0, 0, 0, 1.1, 1], False),
        ([0, 0, 0, 1, 1.1], False),
        ([0, 0.6, 0, 0.5, 1], False),
        ([0, 0, 0.6, 1, 0.5], False),
        ([0, math.nan, 0, 1, 1], False),
        ([0, 0, 0, 1, 1, -5], True),  # what else an object has is its own
    ],
)
def test_boxes_that_are_sound(box, sound):
    good = [3, 0, 0, 1, 1, 0][: len(box)]
    if sound:
        assert boxes_to_label([good, box])[2 + len(box) :] == pytest.approx(box)
    else:
        with pytest.raises(UsageError, match=r"box 1: \[[^,]*(, [^,]*){4}\]: class, then corners of 0 to 1 in order"):
            boxes_to_label([[*good, 7], [*box, 7]])
    for shape in ((0, 5), (2, 4), (5,), (1, 1, 5)):
        with pytest.raises(UsageError, match="boxes of shape"):
            boxes_to_label(np.zeros(shape))


def test_keys_of_a_writer(tmp_path):
    path = tmp_path / "a.rec"
    with RecordWriter(path) as writer:
        writer.write(b"a", 0)  # its position
        writer.write(b"b", 0, key=(1 << 63) - 1)
        writer.write(b"c", 0)
        writer.write(b"d", 0, key=np.int64(1))
        for key, words in (
            (0, "record key 0: it is in .*a.rec already"),
            (1, "record key 1: it is in"),
            ((1 << 63) - 1, "it is in"),
            (1 << 63, "give a whole number from 0 to 2"),
            (-1, "give a whole number from 0"),
            ("x", "record key 'x': give a whole number"),
            (1.0, "give a whole number"),
        ):
            with pytest.raises(UsageError, match=words):
                writer.write(b"x", 0, key=key)
        assert len(writer) == 4 and writer.position == 4 * 36
    with pytest.raises(UsageError, match=r"a\.rec: the writer is closed"):
        writer.write(b"x", 0)
    writer.close()
    with RecordReader(path, check=True) as reader:
        assert reader.keys.tolist() == [0, (1 << 63) - 1, 2, 1]
        assert [bytes(reader.payload(k)) for k in range(4)] == [b"a", b"b", b"c", b"d"]
    assert path.with_suffix(".idx").read_text() == index_text(reader.keys, [0, 36, 72, 108])


def test_side_files_as_they_were_asked_for(tmp_path):
    def names():
        return sorted(p.name for p in tmp_path.iterdir())

    with RecordWriter(tmp_path / "a.rec", index=tmp_path / "b.idx") as writer:
        writer.write_record(bytearray(b"raw"), key=3)
    assert names() == ["a.crc", "a.rec", "b.idx"] and (tmp_path / "b.idx").read_text() == "3\t0\n"
    with RecordWriter(tmp_path / "a.rec", checksums=False):
        pass
    assert names() == ["a.idx", "a.rec", "b.idx"] and (tmp_path / "a.rec").read_bytes() == b""
    with RecordWriter(tmp_path / "a.rec", index=False) as writer:
        writer.write_record(b"raw")
    assert names() == ["a.crc", "a.rec", "b.idx"]
    for path, index in ((tmp_path / "a.idx", True), (tmp_path / "a.crc", True), (tmp_path / "x", tmp_path / "x")):
        with pytest.raises(UsageError, match="the name of an index, not of a record file"):
            RecordWriter(path, index)
    writer = RecordWriter(tmp_path / "c.rec")
    writer.write(b"x", 0)
    writer.abort()
    writer.abort()
    writer.close()
    assert names() == ["a.crc", "a.rec", "b.idx"]
    with pytest.raises(GluontuneError, match=r"a\.rec/c\.rec"):
        RecordWriter(tmp_path / "a.rec" / "c.rec")
