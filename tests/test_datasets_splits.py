"""Splits and the embedded sample: reading, subsets, files, records, threads, processes."""

from __future__ import annotations

import hashlib
import multiprocessing
import os
import pickle
import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import cv2
import numpy as np
import pytest

import gluontune as gt
from gluontune.datasets.split import RecordSplit
from gluontune.errors import GluontuneError, UnknownNameError, UsageError
from gluontune.records import RecordReader, RecordWriter

ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("GLUONTUNE_DATA", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture(scope="module")
def sample():
    return gt.datasets.open("sample")


def png(value: int, size: int = 8) -> bytes:
    return cv2.imencode(".png", np.full((size, size, 3), value, np.uint8))[1].tobytes()


@pytest.fixture
def split(tmp_path):
    path = tmp_path / "six.rec"
    with RecordWriter(path) as writer:
        for i in range(6):
            writer.write(png(10 * i), i % 3)
    return RecordSplit("six", "train", path, [0, 1, 2, 0, 1, 2], ["a/b", "..", "c"])


def test_the_sample_is_what_its_readme_says(sample):
    assert (len(sample.train), len(sample.test), len(sample.classes)) == (10_000, 2_000, 10)
    assert np.bincount(sample.train.labels).tolist() == [1000] * 10
    assert np.bincount(sample.test.labels).tolist() == [200] * 10
    assert sample.train.labels.dtype == np.int64 and not sample.train.labels.flags.writeable
    pixels = np.stack([sample.train.decode(i) for i in range(len(sample.train))])
    assert pixels.shape == (10_000, 28, 28, 1) and pixels.dtype == np.uint8
    assert abs(pixels.mean() / 255 - sample.mean[0]) < 0.0001
    assert abs(pixels.std() / 255 - sample.std[0]) < 0.0001


# SHA-256 of the chosen pixels and labels, computed from the official files without this package's code.
PIXELS = {
    "train": "73194a0c06a93deab58b95e00e618cc5c80fb5c9a84df26bbc429eeb3507846a",
    "test": "8e8b02fc2db0ff9ed2d481ff30f8bd7cc5c88205cb131d7f4a0c19448f6957c9",
}


@pytest.mark.parametrize("part", ["train", "test"])
def test_the_sample_holds_the_official_pixels(sample, part):
    split = getattr(sample, part)
    digest = hashlib.sha256()
    for i in range(len(split)):
        digest.update(split.decode(i).tobytes())
    digest.update(split.labels.astype(np.uint8).tobytes())
    assert digest.hexdigest() == PIXELS[part]


def test_the_sample_is_small_licensed_and_alone_in_its_folder():
    names = {p.name for p in (ROOT / "data").iterdir()}
    records = {f"fashion-mnist-sample-{part}.{kind}" for part in ("train", "test") for kind in ("rec", "idx")}
    assert names == records | {"LICENSE", "README.md"}
    assert sum(p.stat().st_size for p in (ROOT / "data").iterdir()) <= 6 * 2**20
    licence = (ROOT / "data" / "LICENSE").read_text()
    assert "Zalando" in licence and "Permission is hereby granted, free of charge" in licence
    assert (
        "gluontune data make sample --source /usr/share/datasets/fashion-mnist"
        in (ROOT / "data" / "README.md").read_text()
    )


def test_the_sample_needs_neither_network_nor_cache_nor_mxnet(cache, run_python):
    code = (
        "import sys, socket\n"
        "socket.socket = None\n"
        "import gluontune as gt\n"
        "d = gt.datasets.open('sample')\n"
        "d.train.decode(9999)\n"
        "assert 'mxnet' not in sys.modules and 'matplotlib' not in sys.modules\n"
        "print(len(d.train))"
    )
    assert run_python(code).strip() == "10000"
    assert not cache.exists()


def test_the_sample_of_the_wheel_and_none_at_all(tmp_path, monkeypatch):
    from gluontune.datasets import fashion

    monkeypatch.setattr(fashion, "__file__", str(tmp_path / "gluontune" / "datasets" / "fashion.py"))
    with pytest.raises(GluontuneError, match="the embedded sample is missing"):
        gt.datasets.open("sample")
    assert not gt.datasets.list_datasets()[0]["present"]
    shutil.copytree(ROOT / "data", tmp_path / "gluontune" / "_data")
    assert gt.datasets.open("sample").train.rec_path.parent == tmp_path / "gluontune" / "_data"


@pytest.fixture
def run_python():
    import subprocess
    import sys

    def run(code: str) -> str:
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
        assert done.returncode == 0, done.stderr
        return done.stdout

    return run


@pytest.mark.parametrize(
    ("name", "nearest"),
    [("cifar", "cifar10"), ("fashon-mnist", "fashion-mnist"), ("sampel", "sample"), ("folders:/x", "folder:PATH")],
)
def test_an_unknown_name_offers_the_nearest(name, nearest):
    with pytest.raises(UnknownNameError, match=f"{name}.*did you mean '{nearest}'"):
        gt.datasets.open(name)


@pytest.mark.parametrize("name", ["folder:", "folder", "records:", "sample:x"])
def test_a_name_with_too_little_or_too_much_is_refused(name):
    with pytest.raises(UsageError, match=name):
        gt.datasets.open(name)


def test_read_gives_the_payload_and_rec_path_only_for_the_whole_file(split, tmp_path):
    assert [bytes(split.read(i)) for i in range(6)] == [png(10 * i) for i in range(6)]
    assert split.rec_path == tmp_path / "six.rec"
    assert split.subset([1, 0]).rec_path is None


def test_a_subset_keeps_order_labels_and_names(split):
    part = split.subset([5, 0, 4]).subset(np.array([2, 0]))
    assert part.labels.tolist() == [1, 2]
    assert [bytes(part.read(i)) for i in range(2)] == [png(40), png(50)]
    assert part.name_of(0).endswith("six.rec, record 4")


@pytest.mark.parametrize("indices", [[6], [-1], [0.5], [[0]]])
def test_a_subset_of_what_is_not_there_is_refused(split, indices):
    with pytest.raises(UsageError, match="subset"):
        split.subset(indices)


def test_files_are_written_once_and_mended(split, cache):
    files = split.files()
    assert [f.read_bytes() for f in files] == [png(10 * i) for i in range(6)]
    assert [f.parent.name for f in files] == ["a_b", "_..", "c"] * 2
    assert all(cache / "six" / "files" / "train" in f.parents for f in files)
    before = [f.stat().st_mtime_ns for f in files]
    files[2].write_bytes(b"cut")
    files[3].unlink()
    assert split.files() == files
    after = [f.stat().st_mtime_ns for f in files]
    assert [f.read_bytes() for f in files] == [png(10 * i) for i in range(6)]
    assert [b == a for b, a in zip(before, after)] == [True, True, False, False, True, True]
    assert not list((cache / "six").rglob("*.part"))


def test_files_of_a_subset_are_those_of_the_whole(split):
    assert split.subset([4, 1]).files() == [split.files()[4], split.files()[1]]


def test_to_records_packs_once_and_again_when_something_changed(split, tmp_path):
    assert split.to_records() == split.rec_path
    part = split.subset([3, 1])
    path = part.to_records()
    with RecordReader(path) as reader:
        assert [bytes(reader.payload(i)) for i in range(2)] == [png(30), png(10)]
        assert reader.labels().tolist() == [0, 1]
    stamp = path.stat().st_mtime_ns
    assert part.to_records() == path and path.stat().st_mtime_ns == stamp
    named = tmp_path / "named.rec"
    assert part.to_records(named) == named
    split.subset([0, 1, 2]).to_records(named)
    with RecordReader(named) as reader:
        assert len(reader) == 3


def test_threads_pickles_and_forks_read_the_same(split):
    wanted = [png(10 * i) for i in range(6)] * 50
    order = list(range(6)) * 50
    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(lambda i: bytes(split.read(i)), order)) == wanted
    again = pickle.loads(pickle.dumps(split))
    assert again.rec_path == split.rec_path and bytes(again.read(3)) == png(30)
    context = multiprocessing.get_context("fork")
    receive, send = context.Pipe(False)
    child = context.Process(target=lambda: send.send_bytes(bytes(split.read(5))))
    child.start()
    assert receive.poll(20) and receive.recv_bytes() == png(50)
    child.join()


def test_a_truncated_image_is_named(tmp_path):
    jpeg = cv2.imencode(".jpg", np.random.default_rng(0).integers(0, 255, (64, 64, 3), np.uint8))[1].tobytes()
    bad = {"jpeg": jpeg[: len(jpeg) // 2], "png": png(3)[:-6], "empty": b"", "text": b"not an image at all"}
    path = tmp_path / "bad.rec"
    with RecordWriter(path) as writer:
        writer.write(jpeg, 0)
        for data in bad.values():
            writer.write(data, 1)
    split = RecordSplit("bad", "train", path, [0, 1, 1, 1, 1], ["a", "b"])
    assert bytes(split.read(0)) == jpeg
    for i, reason in enumerate(("truncated JPEG", "truncated PNG", "empty", "not an image"), 1):
        with pytest.raises(GluontuneError, match=rf"bad\.rec, record {i}: .*{reason}"):
            split.read(i)
    # What only a decoder can find: the ends are there, the middle is not.
    broken = jpeg[:300] + jpeg[-2:]
    whole = png(3)
    for i, data in enumerate((whole[:33] + whole[-12:], broken[:2] + broken[-2:])):
        other = tmp_path / f"decode{i}.rec"
        with RecordWriter(other) as writer:
            writer.write(data, 0)
        with pytest.raises(GluontuneError, match=rf"decode{i}\.rec, record 0: the image cannot be decoded"):
            RecordSplit("x", "train", other, [0], ["a"]).decode(0)


def test_a_full_disk_is_told_and_leaves_nothing(split, cache, monkeypatch):
    def full(self, data):
        raise OSError(28, "No space left on device", str(self))

    monkeypatch.setattr(Path, "write_bytes", full)
    with pytest.raises(GluontuneError, match="disk is full"):
        split.files()
    assert not [p for p in cache.rglob("*") if p.is_file()]


def test_a_read_only_cache_is_told(split, cache):
    cache.mkdir()
    cache.chmod(0o500)
    try:
        if os.access(cache, os.W_OK):  # root may write anywhere: a file in the way has the same effect
            cache.chmod(0o700)
            shutil.rmtree(cache)
            cache.write_text("")
        with pytest.raises(GluontuneError, match=r"permission denied|not a folder"):
            split.files()
    finally:
        cache.chmod(0o700)
