"""Many records found in one call: what lies there is what is read one by one, and the rest is left to reading."""

from __future__ import annotations

import ctypes
import pathlib

import cv2
import numpy as np
import pytest

from gluontune.codec import native
from gluontune.datasets.split import RecordSplit
from gluontune.errors import GluontuneError
from gluontune.loading import ThreadedLoader
from gluontune.records import RecordReader, RecordWriter
from gluontune.records.layout import MAGIC

needs_codec = pytest.mark.skipif(not native.compilers(), reason="wants a C compiler: each record is read")


def jpeg(k: int) -> bytes:
    pixels = np.full((32, 32, 3), 20 * k, np.uint8)
    pixels[8 * (k % 4) :, 5:] += 30
    return cv2.imencode(".jpg", pixels)[1].tobytes()


@pytest.fixture
def path(tmp_path):
    """One label, several, a record in two parts, other fields behind the image, an empty one; then plain ones."""
    out = tmp_path / "a.rec"
    with RecordWriter(out) as writer:
        writer.write(jpeg(0), label=1)
        writer.write(jpeg(1), label=[1.0, 2.0, 3.0])
        writer.write(jpeg(2)[:-3] + b"\0" * (-(len(jpeg(2)) - 3 + 24) % 4) + MAGIC + b"\xff\xd9", label=3)
        writer.write_fields({"image": jpeg(3), "label": 4, "caption": "a box"})
        writer.write(b"", label=5)
        for k in range(4):
            writer.write(jpeg(k), label=k)
    return out


@needs_codec
def test_what_is_located_is_what_is_read(path):
    with RecordReader(path) as reader:
        places = np.array([8, 0, 1, 2, 3, 4, 5])
        addresses, lengths, _ = reader.locate(places)
        assert (lengths[3:6] == 0).all() and (lengths[[0, 1, 2, 6]] > 0).all()
        for place, address, length in zip(places.tolist(), addresses.tolist(), lengths.tolist()):
            if length:
                assert ctypes.string_at(address, length) == bytes(reader.payload(place))
        with pytest.raises(IndexError, match="no record 9: there are 9"):
            reader.locate(np.array([0, 9]))
        with pytest.raises(IndexError, match="no record -1"):
            reader.locate(np.array([0, -1]))


@needs_codec
def test_the_file_stays_mapped_while_its_addresses_are_held(path):
    """Two threads may each open a split's reader, and one of the two is dropped at once."""
    found = RecordReader(path).locate(np.arange(2))
    wanted = [bytes(RecordReader(path).payload(k)) for k in range(2)]
    mapped = pathlib.Path("/proc/self/maps")
    assert str(path) in mapped.read_text()
    assert [ctypes.string_at(*place) for place in zip(found[0].tolist(), found[1].tolist())] == wanted
    del found
    assert str(path) not in mapped.read_text()


@needs_codec
def test_threads_that_open_a_reader_each_decode_what_they_located(path):
    class Racing(RecordSplit):
        def _open(self):
            return RecordReader(self._path)

    split = Racing("records", "all", path, np.arange(4), [], [5, 6, 7, 8])
    still = RecordSplit("records", "all", path, np.arange(4), [], [5, 6, 7, 8])
    asked = {"batch_size": 2, "image_shape": (32, 32, 3), "num_workers": 2}
    with ThreadedLoader(split, **asked) as loader, ThreadedLoader(still, **asked) as other:
        for (images, _), (wanted, _) in zip(loader, other):
            assert np.array_equal(images, wanted)


@needs_codec
def test_a_closed_reader_has_no_places(path):
    reader = RecordReader(path)
    reader.close()
    assert reader.locate(np.arange(1)) is None


@needs_codec
def test_damage_is_left_to_the_reading_that_says_what_it_is(path):
    with RecordReader(path) as reader:
        at = [int(o) for o in reader._offsets]
    data = bytearray(path.read_bytes())
    data[at[5]] ^= 1  # the magic number
    data[at[6] + 4 : at[6] + 8] = (1 << 28).to_bytes(4, "little")  # a length beyond the end
    data[at[7] + 8 : at[7] + 12] = (1 << 31).to_bytes(4, "little")  # labels that no record could hold
    path.write_bytes(data)
    with RecordReader(path) as reader:
        assert (reader.locate(np.array([5, 6, 7, 8]))[1] > 0).tolist() == [False, False, False, True]
    split = RecordSplit("records", "all", path, np.zeros(9), [])
    with (
        pytest.raises(GluontuneError, match="record 5 is damaged"),
        ThreadedLoader(split.subset([8, 5]), batch_size=2, image_shape=(32, 32, 3)) as loader,
    ):
        next(iter(loader))


@needs_codec
def test_batches_are_those_of_a_split_that_reads_each(path):
    class Reading(RecordSplit):
        def _read(self, index):
            return super()._read(index)

    places = [0, 1, 5, 6, 7, 8]
    whole, reading = (kind("records", "all", path, np.arange(6), [], places) for kind in (RecordSplit, Reading))
    assert whole.locate(np.arange(6)) is not None and reading.locate(np.arange(6)) is None
    asked = {"batch_size": 6, "image_shape": (32, 32, 3), "augment": "pad-crop-flip", "shuffle": True, "seed": 3}
    for workers in (0, 2):
        first, second = (next(iter(ThreadedLoader(split, num_workers=workers, **asked))) for split in (whole, reading))
        assert np.array_equal(first[0], second[0]) and first[1].tolist() == second[1].tolist()


@needs_codec
def test_records_that_are_checked_are_read_one_by_one(tmp_path):
    out = tmp_path / "b.rec"
    with RecordWriter(out) as writer:
        writer.write(jpeg(1), label=1)
    assert RecordReader(out, check=True).locate(np.array([0])) is None
