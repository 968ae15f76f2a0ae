"""Records with named fields: the layout, what MXNet makes of it, and bytes that somebody has changed."""

from __future__ import annotations

import json
import struct
import zlib

import cv2
import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from hypothesis.extra import numpy as arrays

from gluontune.core.errors import GluontuneError, UsageError
from gluontune.loading import RecordDataset, from_records
from gluontune.records import RecordReader, RecordWriter, repair, verify
from gluontune.records.fields import END, join_fields, split_fields, take_fields
from gluontune.records.layout import IRHeader, image_record, split_image_record
from gluontune.runtime import mxnet

IMAGE = cv2.imencode(".jpg", np.full((40, 60, 3), 90, np.uint8))[1].tobytes()
MASK = np.arange(40 * 60, dtype=np.uint16).reshape(40, 60)
BOXES = [[3, 0.25, 0.5, 0.75, 1.0], [0, 0.0, 0.0, 1.0, 1.0]]
FULL = {
    "image": IMAGE, "boxes": BOXES, "mask": MASK, "caption": "ein Rotkehlchen — 🐦", "exif": b"\0\1\2", "age": 7,
    "weight": 0.1, "tags": [True, False], "depth": np.arange(6, dtype=">f4").reshape(2, 3),
}  # fmt: skip
TOLD = (GluontuneError,)


def read(label, payload, names=None):
    """Through the bytes of a record."""
    return take_fields(*split_image_record(image_record(payload, label, 5)), names)


def same(made, given) -> bool:
    if isinstance(given, (str, bytes)):
        return made == given if isinstance(given, str) else bytes(made) == given
    return np.array_equal(np.asarray(made), np.asarray(given), equal_nan=np.asarray(given).dtype.kind == "f")


def write(path, *records):
    with RecordWriter(path) as writer:
        for fields in records:
            writer.write_fields(fields)
    return path


def test_all_kinds_of_fields_come_back():
    found = read(*join_fields(FULL))
    assert list(found) == ["image", "label", *(n for n in FULL if n != "image")]
    for name, value in FULL.items():
        wanted = np.float32(value) if name == "boxes" else value
        assert same(found[name], wanted), name
    assert found["mask"].dtype == np.uint16 and found["depth"].dtype == np.dtype("<f4")
    assert isinstance(found["age"], int) and isinstance(found["weight"], float)


NAMES = st.text(min_size=1, max_size=20).filter(
    lambda n: n not in ("image", "label", "boxes") and n != "mask" and not n.endswith("_mask")
)
ARRAYS = arrays.arrays(
    st.sampled_from(["b1", "i1", "u1", "<i2", ">u2", "<f2", "<i4", ">f4", "<i8", "<u8", ">f8"]),
    arrays.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=5),
)
VALUES = st.one_of(
    st.text(st.characters(blacklist_categories=["Cs"])), st.binary(max_size=200), st.booleans(),
    st.integers(-(2**63), 2**63 - 1), st.floats(), ARRAYS,
)  # fmt: skip


@settings(deadline=None, max_examples=60)
@given(fields=st.dictionaries(NAMES, VALUES, max_size=6), image=st.binary(max_size=60), boxes=st.integers(-1, 3))
def test_whatever_is_written_is_read(fields, image, boxes):
    given_ = {"image": image, **fields}
    if boxes >= 0:
        given_["boxes"] = np.float32([[k, 0, 0.25, 0.5, 1] for k in range(boxes)]).reshape(-1, 5)
    found = read(*join_fields(given_))
    assert set(found) == {"image", "label", *given_} - ({"boxes"} if boxes > 0 and not fields else set())
    assert all(same(found[name], value) for name, value in given_.items() if name in found)


@settings(deadline=None, max_examples=80)
@given(data=st.data())
def test_changed_bytes_give_fields_or_a_sentence(data):
    label, payload = join_fields(FULL)
    spoilt = bytearray(payload)
    for _ in range(data.draw(st.integers(1, 4))):
        where = len(spoilt) - 1 - data.draw(st.integers(0, min(900, len(spoilt) - 1)))
        spoilt[where] = data.draw(st.integers(0, 255))
    spoilt = spoilt[: len(spoilt) - data.draw(st.sampled_from([0, 0, 1, 9]))]
    try:
        read(label, bytes(spoilt))
    except GluontuneError as error:
        assert 10 < len(str(error)) < 600 and "\n" not in str(error)


def foot(directory: bytes) -> bytes:
    return directory + struct.pack("<II8s", len(directory), zlib.crc32(directory), END)


ROWS = st.lists(
    st.one_of(
        st.tuples(
            st.sampled_from(["a", "mask", "boxes", "image", ""]),
            st.sampled_from(["array", "text", "bytes", "mask", "boxes", "pickle"]),
            st.one_of(st.integers(-2, 40), st.sampled_from([2**31, 2**40, 1.5, True, None])),
            st.sampled_from(["<f4", "|u1", "|O", "<U4", "", None, "<f99999999"]),
            st.lists(st.one_of(st.integers(-1, 5), st.sampled_from([2**31, "x"])), max_size=40),
        ),
        st.sampled_from([None, 7, "text", [], {}]),
    ),
    max_size=3,
)


@settings(deadline=None, max_examples=100)
@given(rows=ROWS, body=st.binary(max_size=60))
def test_a_directory_of_anybody_gives_fields_or_a_sentence(rows, body):
    payload = body + foot(json.dumps(rows).encode())
    try:
        found = take_fields(IRHeader(0, 1.0, 0, 0), payload)
        assert sum(len(field.data) for field in split_fields(payload)[1]) <= len(body) and "image" in found
    except GluontuneError as error:
        assert 10 < len(str(error)) < 600


@pytest.mark.parametrize("text", [b"[" * 5000 + b"]" * 5000, b"{}", b"7", b"\xff\xfe", b'[["a","text",1e999,"",[]]]'])
def test_a_directory_that_is_none(text):
    try:
        assert split_fields(b"image" + foot(text)) == (b"image", [])  # {}: no field at all
    except GluontuneError as error:
        assert "directory of its fields" in str(error)


def test_an_image_and_a_label_are_mxnets_bytes():
    assert join_fields({"image": IMAGE, "label": 3}) == (3, IMAGE)
    label, payload = join_fields({"image": IMAGE, "boxes": BOXES})
    assert payload == IMAGE and label.tolist()[:2] == [2.0, 5.0]
    assert same(read(label, payload, ["boxes"])["boxes"], np.float32(BOXES))


def test_an_image_without_objects_has_no_boxes():
    found = read(*join_fields({"image": IMAGE, "boxes": np.zeros((0, 5))}))
    assert found["boxes"].shape == (0, 5) and bytes(found["image"]) == IMAGE


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"image": "a.jpg"}, "field 'image': str"),
        ({"image": IMAGE, "boxes": BOXES, "label": 3}, "give 'label' another name"),
        ({"image": IMAGE, "boxes": [[1, 0, 0, 2, 1]]}, "box 0"),
        ({"image": IMAGE, "mask": np.zeros((4, 4, 3), np.uint8)}, "uint8 or uint16"),
        ({"image": IMAGE, "mask": np.zeros((4, 4))}, "uint8 or uint16"),
        ({"image": IMAGE, "names": ["a", "b"]}, "field 'names'"),
        ({"image": IMAGE, "odd": None}, "field 'odd'"),
        ({"image": IMAGE, "odd": 2**70}, "field 'odd'"),
        ({"image": IMAGE, "odd": "\ud800"}, "field 'odd'"),
        ({"image": IMAGE, "": 1}, "1 to 255"),
    ],
)
def test_what_no_field_can_hold_is_refused(fields, words):
    with pytest.raises(UsageError, match=words):
        join_fields(fields)


@pytest.mark.mxnet
def test_mxnet_reads_image_and_boxes_of_a_record_with_fields(tmp_path):
    path = write(tmp_path / "f.rec", FULL)
    mx = mxnet()
    theirs = mx.recordio.MXIndexedRecordIO(str(path.with_suffix(".idx")), str(path), "r")
    header, image = mx.recordio.unpack_img(theirs.read_idx(0))
    assert header.label.tolist() == [2, 5, *np.float32(BOXES).ravel().tolist()]
    assert np.array_equal(image, cv2.imdecode(np.frombuffer(IMAGE, np.uint8), 1))
    found = mx.image.ImageDetIter(1, (3, 40, 60), path_imgrec=str(path), path_imgidx=str(path.with_suffix(".idx")))
    assert np.allclose(next(found).label[0].asnumpy()[0], BOXES)


def test_readers_and_loaders_see_the_image_alone(tmp_path):
    path = write(tmp_path / "f.rec", {"image": IMAGE, "label": 4, "caption": "x"}, {"image": IMAGE, "label": 5})
    with RecordReader(path) as reader:
        assert [bytes(reader.payload(i)) for i in range(2)] == [IMAGE] * 2
        assert reader.labels().tolist() == [4, 5] and reader.fields(0)["caption"] == "x"
        with pytest.raises(GluontuneError, match=r"f\.rec, record 1: no field 'caption': the record has image, label"):
            reader.fields(1, ["caption"])
    assert bytes(from_records(path).read(0)) == IMAGE


def test_record_dataset_gives_fields_by_name(tmp_path):
    path = write(tmp_path / "f.rec", FULL)
    dataset = RecordDataset(path, kind="numpy", fields=["image", "boxes", "mask", "caption"])
    sample = dataset[0]
    assert sample["image"].shape == (40, 60, 3) and sample["caption"] == FULL["caption"]
    assert np.array_equal(sample["mask"], MASK) and same(sample["boxes"], np.float32(BOXES))
    assert RecordDataset(path, kind="bytes", fields=["image"], transform=sorted)[0] == ["image"]


def test_verify_and_repair_know_fields(tmp_path):
    path = write(tmp_path / "f.rec", FULL, {"image": IMAGE, "caption": "two"}, {"caption": "no image"})
    report = verify(path)
    assert report.ok and report.records == report.whole == 3
    data = bytearray(path.read_bytes())
    data[data.index(b'"two"') if b'"two"' in data else data.index(b'"caption"', data.index(b"two")) + 3] ^= 1
    path.write_bytes(data)
    (path.with_suffix(".crc")).unlink()
    report = verify(path)
    assert [(d.index, "directory of its fields" in d.reason) for d in report.damaged] == [(1, True)]
    repair(path, tmp_path / "whole.rec")
    with RecordReader(tmp_path / "whole.rec") as reader:
        assert len(reader) == 2 and same(reader.fields(0)["mask"], MASK) and reader.fields(1)["caption"] == "no image"
    with RecordReader(path) as reader, pytest.raises(GluontuneError, match=r"record 1 .*directory"):
        reader.payload(1)
