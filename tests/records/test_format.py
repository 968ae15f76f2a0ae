"""Reader and writer: byte for byte what MXNet reads and writes, from threads, forks and pickles."""

from __future__ import annotations

import multiprocessing
import pickle
import threading
import zlib

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings, strategies as st

from gluontune.core.errors import GluontuneError, UsageError
from gluontune.records import DamagedRecordError, RecordReader, RecordWriter
from gluontune.records.layout import MAGIC, frame
from gluontune.runtime import mxnet

# Payloads with the magic number at every alignment, at the ends, doubled, and in the label's place.
pieces = st.lists(st.one_of(st.just(MAGIC), st.binary(max_size=7), st.just(MAGIC[:2])), max_size=8)
payloads = pieces.map(b"".join)
magic_float = float(np.frombuffer(MAGIC, "<f4")[0])
numbers = st.one_of(st.integers(-1000, 1 << 20), st.floats(-1e6, 1e6, width=32), st.just(magic_float))
labels = st.one_of(numbers, st.lists(numbers, min_size=1, max_size=5))
images = st.lists(st.tuples(payloads, labels), max_size=6)


def write_ours(path, items, keys=None):
    with RecordWriter(path) as writer:
        for i, (payload, label) in enumerate(items):
            writer.write(payload, label, key=None if keys is None else keys[i])


def write_theirs(path, items, keys=None):
    recordio = mxnet().recordio
    record = recordio.MXIndexedRecordIO(str(path.with_suffix(".idx")), str(path), "w")
    for i, (payload, label) in enumerate(items):
        key = i if keys is None else keys[i]
        record.write_idx(key, recordio.pack(recordio.IRHeader(0, label, key, 0), payload))
    record.close()


def assert_same_items(reader, items):
    assert len(reader) == len(items)
    for i, (payload, label) in enumerate(items):
        assert bytes(reader.payload(i)) == payload
        assert np.array_equal(reader.header(i).label, np.float32(label))


@pytest.mark.mxnet
@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(items=images)
def test_bytes_equal_mxnets_in_both_directions(tmp_path, items):
    ours, theirs = tmp_path / "ours.rec", tmp_path / "theirs.rec"
    write_ours(ours, items)
    write_theirs(theirs, items)
    assert ours.read_bytes() == theirs.read_bytes()
    assert ours.with_suffix(".idx").read_bytes() == theirs.with_suffix(".idx").read_bytes()
    with RecordReader(theirs) as reader:
        assert_same_items(reader, items)
    with RecordReader(theirs, index=False) as reader:
        assert_same_items(reader, items)
    recordio = mxnet().recordio
    record = recordio.MXIndexedRecordIO(str(ours.with_suffix(".idx")), str(ours), "r")
    for i, (payload, label) in enumerate(items):
        header, got = recordio.unpack(record.read_idx(i))
        assert got == payload and np.array_equal(header.label, np.float32(label)) and header.id == i
    record.close()


@pytest.mark.mxnet
@pytest.mark.parametrize("shift", range(9))
def test_magic_at_every_alignment_splits_as_mxnet_does(tmp_path, shift):
    items = [(b"x" * shift + MAGIC * n + b"y" * tail, 1.0) for n in (1, 2, 3) for tail in range(4)]
    ours, theirs = tmp_path / "ours.rec", tmp_path / "theirs.rec"
    write_ours(ours, items)
    write_theirs(theirs, items)
    assert ours.read_bytes() == theirs.read_bytes()
    assert_same_items(RecordReader(ours, index=False, check=True), items)


def test_an_aligned_magic_number_is_always_a_header():
    framed = frame(b"abcd" + MAGIC + b"abc" + MAGIC)
    starts = [i for i in range(0, len(framed), 4) if framed[i : i + 4] == MAGIC]
    assert [int.from_bytes(framed[i + 4 : i + 8], "little") >> 29 for i in starts] == [1, 3]


def test_keys_positions_and_labels(tmp_path):
    path = tmp_path / "a.rec"
    keys = [40, 7, 99, 8]
    write_ours(path, [(bytes([k]), k) for k in keys], keys)
    for index in (None, False):
        with RecordReader(path, index=index) as reader:
            assert list(reader.keys) == keys
            assert bytes(reader.read_key(99))[24:] == b"c"
            assert reader.labels().tolist() == keys and reader.labels().dtype == np.float32
            assert bytes(reader[-1]) == bytes(reader.read_key(8))
            with pytest.raises(UsageError, match="no record has the key 5"):
                reader.read_key(5)
            with pytest.raises(IndexError, match="no record 4"):
                reader[4]
    with RecordReader(path) as reader:
        assert [bytes(r)[24:] for r in reader] == [bytes([k]) for k in keys]


def test_labels_of_several_numbers_and_of_different_lengths(tmp_path):
    path = tmp_path / "a.rec"
    write_ours(path, [(b"a", [1, 2]), (b"b", [3, 4])])
    assert RecordReader(path).labels().tolist() == [[1, 2], [3, 4]]
    write_ours(path, [(b"a", [5]), (b"b", [6])])
    assert RecordReader(path).labels().shape == (2, 1)
    write_ours(path, [(b"a", 1), (b"b", [1, 2])])
    with pytest.raises(GluontuneError, match="1 to 2 labels"):
        RecordReader(path).labels()
    write_ours(path, [(b"", magic_float), (b"", 2.0)])  # the label itself is split away
    assert RecordReader(path).labels().tolist() == [magic_float, 2.0]


def test_views_are_read_only_not_copied_and_outlive_the_reader(tmp_path):
    path = tmp_path / "a.rec"
    write_ours(path, [(b"payload", 0)])
    reader = RecordReader(path)
    view = reader.payload(0)
    assert view.readonly and np.shares_memory(np.frombuffer(view, np.uint8), np.frombuffer(reader[0], np.uint8))
    reader.close()
    assert bytes(view) == b"payload"
    with pytest.raises(IndexError):
        reader[0]


@pytest.mark.mxnet
def test_strings_as_keys_and_records_without_header(tmp_path):
    path = tmp_path / "t.rec"
    record = mxnet().recordio.MXIndexedRecordIO(str(path.with_suffix(".idx")), str(path), "w", key_type=str)
    record.write_idx("cat one", b"text")
    record.write_idx("dog", b"more text")
    record.close()
    reader = RecordReader(path)
    assert reader.keys == ["cat one", "dog"] and bytes(reader.read_key("dog")) == b"more text"
    scanned = RecordReader(path, index=False)
    assert list(scanned.keys) == [0, 1]
    with pytest.raises(DamagedRecordError, match="no image header"):
        scanned.payload(0)


@pytest.mark.parametrize(
    "label", [16777217, 25130987, -16777217, float("nan"), float("inf"), 1e39, 1e-60, [1, 16777219], [], "cat"]
)
def test_labels_that_float32_cannot_hold_are_refused(tmp_path, label):
    with pytest.raises(UsageError, match="label"), RecordWriter(tmp_path / "a.rec") as writer:
        writer.write(b"x", label)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("label", [16777216, 25130988, 0.1, 1e38, True, np.float32(0.5), np.int64(3), [0.1, 2**24]])
def test_labels_that_float32_holds_are_kept(tmp_path, label):
    write_ours(tmp_path / "a.rec", [(b"x", label)])
    assert np.array_equal(RecordReader(tmp_path / "a.rec").header(0).label, np.float32(label))


def test_a_record_over_the_limit_is_refused(tmp_path):
    big = bytes((1 << 29) - 24)
    with pytest.raises(UsageError, match="2\\^29"), RecordWriter(tmp_path / "a.rec") as writer:
        writer.write(big, 0)


def test_wrong_keys_are_refused(tmp_path):
    with pytest.raises(UsageError, match="already"), RecordWriter(tmp_path / "a.rec") as writer:
        writer.write(b"x", 0, key=5)
        writer.write(b"x", 0, key=3)
        writer.write(b"x", 0, key=5)
    for key in (-1, 1 << 63, "a"):
        with pytest.raises(UsageError, match="record key"), RecordWriter(tmp_path / "b.rec") as writer:
            writer.write(b"x", 0, key=key)


def test_an_interrupted_writer_leaves_the_old_file_alone(tmp_path):
    path = tmp_path / "a.rec"
    write_ours(path, [(b"old", 1)])
    before = {p.name: p.read_bytes() for p in tmp_path.iterdir()}
    with pytest.raises(RuntimeError), RecordWriter(path) as writer:
        writer.write(b"new", 2)
        raise RuntimeError
    abandoned = RecordWriter(path)
    abandoned.write(b"new", 2)
    del abandoned
    assert {p.name: p.read_bytes() for p in tmp_path.iterdir()} == before
    with RecordWriter(path, index=False, checksums=False) as writer:
        writer.write(b"new", 2)
    assert [p.name for p in tmp_path.iterdir()] == ["a.rec"]  # no side file of the old one is left


@pytest.mark.mxnet
def test_files_above_4_gib(tmp_path):
    path = tmp_path / "big.rec"
    filler = 500 << 20
    with open(path, "wb") as stream:  # a sparse file: ten records of zeros
        for i in range(10):
            stream.seek(i * (8 + filler))
            stream.write(MAGIC + filler.to_bytes(4, "little"))
        stream.seek(10 * (8 + filler))
        offset = stream.tell()
        stream.write(frame(b"h" * 24 + b"last"))
    path.with_suffix(".idx").write_text(f"1\t{offset}\n")
    assert offset > 4 << 30
    assert bytes(RecordReader(path, index=False)[10])[24:] == b"last"
    assert bytes(RecordReader(path).read_key(1))[24:] == b"last"
    record = mxnet().recordio.MXIndexedRecordIO(str(path.with_suffix(".idx")), str(path), "r")
    assert record.read_idx(1)[24:] == b"last"


def make_checked(path, n=500):
    rng = np.random.default_rng(0)
    with RecordWriter(path) as writer:
        for i in range(n):
            body = rng.bytes(int(rng.integers(1, 300)))
            writer.write(zlib.crc32(body).to_bytes(4, "little") + body, i)


def wrong_reads(reader, seed, n):
    rng = np.random.default_rng(seed)
    wrong = 0
    for i in rng.integers(0, len(reader), n).tolist():
        header, payload = reader.unpack(i)
        wrong += header.id != i or zlib.crc32(payload[4:]).to_bytes(4, "little") != bytes(payload[:4])
    return wrong


def _child(reader, seed, queue):
    queue.put(wrong_reads(reader, seed, 2000))


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_threads_and_processes_share_one_reader(tmp_path, method):
    path = tmp_path / "a.rec"
    make_checked(path)
    reader = RecordReader(path)
    results = []
    threads = [threading.Thread(target=lambda s=s: results.append(wrong_reads(reader, s, 2000))) for s in range(8)]
    context = multiprocessing.get_context(method)
    queue = context.Queue()
    children = [context.Process(target=_child, args=(reader, 100 + s, queue)) for s in range(2)]
    for worker in threads + children:
        worker.start()
    results += [queue.get(timeout=30) for _ in children]
    for worker in threads + children:
        worker.join()
    assert results == [0] * 10


@pytest.mark.parametrize("index", [None, False])
def test_pickled_readers_read_the_same(tmp_path, index):
    path = tmp_path / "a.rec"
    make_checked(path, 20)
    reader = pickle.loads(pickle.dumps(RecordReader(path, index=index, check=True)))
    assert wrong_reads(reader, 0, 50) == 0 and len(reader) == 20
    small = pickle.dumps(RecordReader(path, index=False))
    make_checked(path, 30)  # the file was replaced in between: the table of the old one must not be used
    assert len(pickle.loads(small)) == 30


def test_checked_reading_finds_a_flipped_bit(tmp_path):
    path = tmp_path / "a.rec"
    make_checked(path, 10)
    data = bytearray(path.read_bytes())
    data[-9] ^= 1
    path.write_bytes(data)
    RecordReader(path)[9]
    with pytest.raises(DamagedRecordError, match=r"a\.rec: record 9 is damaged: its checksum differs") as caught:
        RecordReader(path, check=True)[9]
    assert caught.value.index == 9


def test_bad_files_and_indexes(tmp_path):
    path = tmp_path / "a.rec"
    with pytest.raises(GluontuneError, match="no such file"):
        RecordReader(path)
    path.write_bytes(b"")
    assert len(RecordReader(path)) == 0 and RecordReader(path).labels().shape == (0,)
    path.write_bytes(b"not a record file at all")
    with pytest.raises(DamagedRecordError, match="damaged at byte 0"):
        RecordReader(path)
    make_checked(path, 5)
    whole = path.read_bytes()
    path.write_bytes(whole[:-40])
    with pytest.raises(GluontuneError, match=r"verify"):
        [bytes(r) for r in RecordReader(path)]
    with pytest.raises(DamagedRecordError, match="repair"):
        RecordReader(path, index=False)
    path.write_bytes(whole)
    path.with_suffix(".idx").write_text("0\t0\nfoo\n")
    with pytest.raises(GluontuneError, match="line 2"):
        RecordReader(path)
    path.with_suffix(".idx").write_text("0\t999999\n")
    with pytest.raises(GluontuneError, match="points to byte 999,999"):
        RecordReader(path)
    path.with_suffix(".idx").write_text("0\t0\n1\t4\n")
    with pytest.raises(DamagedRecordError, match="broken magic"):
        RecordReader(path)[1]


def test_index_and_records_are_named_as_mxnet_names_them(tmp_path):
    from gluontune.records import RecordReader, RecordWriter

    with RecordWriter(tmp_path / "other.idx", tmp_path / "records.bin") as writer:
        writer.write(b"one", label=1, key=4)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["other.idx", "records.bin", "records.crc"]
    with RecordReader(tmp_path / "records.bin", tmp_path / "other.idx") as reader:
        assert bytes(reader.read_key(4))[-3:] == b"one"
    with pytest.raises(UsageError, match="not of a record file"):
        RecordWriter(tmp_path / "a.idx")
