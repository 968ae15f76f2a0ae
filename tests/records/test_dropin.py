"""MXNet's record classes over our reader and writer: the same files, places, keys and positions."""

from __future__ import annotations

import os
import pickle
import threading

import pytest

from gluontune.core.errors import GluontuneError, UsageError
from gluontune.core.files import atomic_write
from gluontune.records import DamagedRecordError, MXIndexedRecordIO, MXRecordIO, RecordReader, RecordWriter
from gluontune.records.layout import MAGIC
from gluontune.runtime import mxnet

RECORDS = [b"", b"one", MAGIC + b"two" + MAGIC, b"\0" * 37]


def write(classes, folder):
    """A sequential and an indexed file by the classes of a module, and where its writer stood."""
    plain = classes.MXRecordIO(str(folder / "plain.rec"), "w")
    for record in RECORDS:
        plain.write(record)
    plain.close()
    keyed = classes.MXIndexedRecordIO(str(folder / "k.idx"), str(folder / "k.rec"), "w")
    told = []
    for key, record in enumerate(RECORDS):
        keyed.write_idx(key * 7, record)
        told.append(keyed.tell())
    keyed.close()
    return told


class Ours:
    MXRecordIO, MXIndexedRecordIO = MXRecordIO, MXIndexedRecordIO


@pytest.fixture
def keyed(tmp_path):
    write(Ours, tmp_path)
    return MXIndexedRecordIO(tmp_path / "k.idx", tmp_path / "k.rec", "r")


@pytest.mark.mxnet
def test_files_and_what_is_read_equal_mxnets(tmp_path):
    folders = tmp_path / "ours", tmp_path / "theirs"
    modules = Ours, mxnet().recordio
    for folder in folders:
        folder.mkdir()
    assert write(modules[0], folders[0]) == write(modules[1], folders[1])
    names = ["k.idx", "k.rec", "plain.rec"]
    for name in names:
        assert (folders[0] / name).read_bytes() == (folders[1] / name).read_bytes()
    assert sorted(os.listdir(folders[0])) == names
    seen = []
    for module, folder in zip(modules, reversed(folders)):  # each reads the other's
        reader = module.MXIndexedRecordIO(str(folder / "k.idx"), str(folder / "k.rec"), "r")
        steps = [reader.keys, reader.idx, reader.read_idx(14), reader.read(), reader.is_open]
        reader.seek(7)  # (once it has met the end, MXNet's would give None from here on)
        steps += [reader.read(), pickle.loads(pickle.dumps(reader)).read()]
        reader.reset()
        steps += [reader.read(), reader.keys, reader.writable]
        reader.seek(21)
        steps += [reader.read(), reader.read()]
        reader.close()
        seen.append([*steps, reader.is_open])
    assert seen[0] == seen[1]
    assert seen[0][-2] is None


def test_a_writer_puts_its_file_in_place_when_it_is_closed_or_gone(tmp_path):
    path = tmp_path / "a.rec"
    writer = MXRecordIO(path, "w")
    writer.write(b"lost")
    writer.reset()
    writer.write(b"kept")
    assert not path.exists()
    del writer
    assert [bytes(r) for r in RecordReader(path)] == [b"kept"]


def test_each_record_is_read_by_one_thread(tmp_path):
    with RecordWriter(tmp_path / "a.rec") as writer:
        for i in range(2000):
            writer.write_record(b"%d" % i)
    reader = MXIndexedRecordIO(tmp_path / "a.idx", tmp_path / "a.rec", "r")
    read, wrong = [], []

    def work():
        while (record := reader.read()) is not None:
            read.append(int(record))

    def at_random():
        for key in range(0, 2000, 7):
            if own.read_idx(key) != b"%d" % key:
                wrong.append(key)

    own = MXIndexedRecordIO(tmp_path / "a.idx", tmp_path / "a.rec", "r")
    threads = [threading.Thread(target=target) for target in (work, work, at_random, at_random)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(read) == list(range(2000))
    assert not wrong


def in_fork(function):
    """What ``function`` returns, or raises, in a forked process that ends as a plain Python process does."""
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            answer = function()
        except Exception as error:
            answer = error
        os.write(write, pickle.dumps(answer))
        os._exit(0)
    os.close(write)
    with os.fdopen(read, "rb") as stream:
        answer = pickle.loads(stream.read())
    os.waitpid(pid, 0)
    return answer


def test_a_forked_process_reads_from_the_start_and_leaves_the_parents_place(keyed):
    keyed.seek(14)
    assert keyed._lock.acquire()  # as if another thread were reading while the process forks
    assert in_fork(lambda: (keyed.read(), keyed.read_idx(21), keyed.read())) == (RECORDS[0], RECORDS[3], None)
    keyed._lock.release()
    assert keyed.read() == RECORDS[2]


def test_a_forked_process_cannot_harm_a_writer(tmp_path):
    writers = [MXRecordIO(tmp_path / "a.rec", "w")]
    writers[0].write(b"before")

    def harm():
        with pytest.raises(UsageError, match=r"a\.rec: opened in process \d+; a forked process cannot write"):
            writers[0].write(b"child")
        writers[0].close()
        writers.clear()

    assert in_fork(harm) is None
    writers[0].write(b"after")
    writers[0].close()
    assert [bytes(r) for r in RecordReader(tmp_path / "a.rec")] == [b"before", b"after"]


def test_a_forked_process_cannot_harm_a_file_that_is_being_written(tmp_path):
    block = atomic_write(tmp_path / "a.txt", "w")
    stream = block.__enter__()
    stream.write("before ")

    def leave():
        stream.write("child ")
        block.__exit__(None, None, None)

    assert in_fork(leave) is None
    stream.write("after")
    block.__exit__(None, None, None)
    assert (tmp_path / "a.txt").read_text() == "before after"


def test_keys_are_made_of_the_indexs_text(tmp_path):
    writer = MXIndexedRecordIO(tmp_path / "a.idx", tmp_path / "a.rec", "w", key_type=str)
    for key in ("007", "cat one"):
        writer.write_idx(key, key.encode())
    with pytest.raises(UsageError, match=r"record key .*a tab or line end"):
        writer.write_idx("a\nb", b"")
    writer.close()
    reader = MXIndexedRecordIO(tmp_path / "a.idx", tmp_path / "a.rec", "r", str)
    assert reader.keys == ["007", "cat one"]
    assert reader.read_idx("007") == b"007"
    with pytest.raises(GluontuneError, match=r"a\.idx.*key_type"):
        MXIndexedRecordIO(tmp_path / "a.idx", tmp_path / "a.rec", "r")


def test_what_is_refused(tmp_path, keyed):
    writer = MXIndexedRecordIO(tmp_path / "b.idx", tmp_path / "b.rec", "w")
    writer.write_idx(1, b"x")
    with pytest.raises(UsageError, match=r"record key 1: it is in .*b\.rec already"):
        writer.write_idx(1, b"y")
    with pytest.raises(UsageError, match="a writer cannot be pickled"):
        pickle.dumps(writer)
    with pytest.raises(UsageError, match="flag='w', which cannot read"):
        writer.read_idx(1)
    with pytest.raises(UsageError, match="flag='r', which cannot write"):
        keyed.write_idx(1, b"x")
    with pytest.raises(UsageError, match="flag='a': give 'r'"):
        MXRecordIO(tmp_path / "a.rec", "a")
    with pytest.raises(GluontuneError, match=r"none\.rec"):
        MXRecordIO(tmp_path / "none.rec", "r")
    with pytest.raises(KeyError):
        keyed.read_idx(5)
    keyed.close()
    with pytest.raises(UsageError, match="it is closed"):
        keyed.read()
    (tmp_path / "k.rec").write_bytes((tmp_path / "k.rec").read_bytes()[:-4])
    with pytest.raises(DamagedRecordError, match=r"k\.rec: .*gluontune verify"):
        MXIndexedRecordIO(tmp_path / "k.idx", tmp_path / "k.rec", "r").read_idx(21)


def test_mxnets_classes_at_the_end_of_a_file(tmp_path):
    record = MXIndexedRecordIO(tmp_path / "a.idx", tmp_path / "a.rec", "w")
    for key in (5, 7):
        record.write_idx(key, b"%d" % key)
    assert record.tell() == 24 and record.keys == [5, 7] and record.idx == {5: 0, 7: 12}
    for odd in ("1\t2", "1\n", "1\r2"):
        with pytest.raises((UsageError, ValueError)):
            MXIndexedRecordIO(tmp_path / "b.idx", tmp_path / "b.rec", "w", str).write_idx(odd, b"")
    record.reset()  # a writer begins anew
    assert record.tell() == 0 and record.keys == [] and record.idx == {}
    record.write_idx(9, b"nine")
    record.close()
    record.close()
    record.reset()  # it is closed: open() again, and what was there is lost only when it is closed
    assert record.is_open and record.tell() == 0
    del record
    assert (tmp_path / "a.rec").read_bytes() == b"" and (tmp_path / "a.idx").read_text() == ""
    plain = MXRecordIO(tmp_path / "p.rec", "w")
    plain.write(b"one")
    plain.close()
    reader = MXRecordIO(tmp_path / "p.rec", "r")
    assert [reader.read() for _ in range(3)] == [b"one", None, None]
    reader.reset()
    assert reader.read() == b"one" and isinstance(reader.uri, str)


def test_a_file_whose_last_padding_is_missing_ends_with_its_last_record(tmp_path):
    with RecordWriter(tmp_path / "a.rec") as writer:
        writer.write_record(b"one")
        writer.write_record(b"fives")
    path = tmp_path / "a.rec"
    path.write_bytes(path.read_bytes()[:-2])
    reader = MXRecordIO(path, "r")
    assert [reader.read() for _ in range(4)] == [b"one", b"fives", None, None]
