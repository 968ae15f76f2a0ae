"""Making the sample and taking over Fashion-MNIST, from small files that stand for the official ones."""

from __future__ import annotations

import functools
import gzip
import hashlib
import http.server
import threading
import zlib

import cv2
import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from hypothesis.extra import numpy as arrays

import gluontune as gt
from gluontune.core.errors import GluontuneError
from gluontune.datasets import fashion
from gluontune.datasets.fashion import make_sample
from gluontune.records import RecordWriter


@pytest.fixture
def official(tmp_path, monkeypatch):
    """Four small files in the official format, whose checksums stand for the official ones."""
    monkeypatch.setenv("GLUONTUNE_DATA", str(tmp_path / "cache"))
    folder = tmp_path / "official"
    folder.mkdir()
    sums = {}
    random = np.random.default_rng(0)
    for prefix, count in (("train", 60), ("t10k", 30)):
        pixels = random.integers(0, 256, (count, 28, 28), dtype=np.uint8)
        labels = random.permutation(np.arange(count) % 10).astype(np.uint8)
        for kind, head, data in (("images-idx3", 16, pixels), ("labels-idx1", 8, labels)):
            content = bytes(head) + data.tobytes()
            name = f"{prefix}-{kind}-ubyte"
            (folder / f"{name}.gz").write_bytes(gzip.compress(content, mtime=0))
            sums[name] = ("", hashlib.sha256(content).hexdigest())
    monkeypatch.setattr(fashion, "OFFICIAL", sums)
    return folder


COUNTS = {"train": 4, "test": 2}


def test_making_the_sample_twice_gives_the_same_bytes(official, tmp_path):
    first = make_sample(official, tmp_path / "a", fast=True, per_class=COUNTS)
    make_sample(official, tmp_path / "b", fast=True, per_class=COUNTS)
    assert first["images"] == {"train": 40, "test": 20}
    names = sorted(p.name for p in (tmp_path / "a").iterdir())
    assert names == [f"fashion-mnist-sample-{p}.{k}" for p in ("test", "train") for k in ("idx", "rec")]
    assert all((tmp_path / "a" / n).read_bytes() == (tmp_path / "b" / n).read_bytes() for n in names)


def test_the_sample_has_the_first_of_each_class_in_order(official, tmp_path):
    make_sample(official, tmp_path / "a", fast=True, per_class=COUNTS)
    images, labels = fashion._official(official, "train")
    keep = [i for i in range(60) if (labels[:i] == labels[i]).sum() < 4]
    with gt.records.RecordReader(tmp_path / "a" / "fashion-mnist-sample-train.rec") as reader:
        assert reader.labels().tolist() == labels[keep].tolist()
        decoded = [cv2.imdecode(np.frombuffer(reader.payload(i), np.uint8), -1) for i in range(40)]
    assert np.array_equal(decoded, images[keep])


def test_the_full_set_is_taken_over(official):
    result = gt.datasets.add("fashion-mnist", official)
    assert (result["num_train"], result["num_test"]) == (60, 30)
    data = gt.datasets.open("fashion-mnist")
    images, labels = fashion._official(official, "train")
    assert data.train.labels.tolist() == labels.tolist()
    assert np.array_equal(data.train.decode(7)[:, :, 0], images[7])


def test_fetch_takes_debians_files_where_they_are(official, monkeypatch):
    monkeypatch.setattr(fashion, "DEBIAN", official)
    result = gt.datasets.fetch("fashion-mnist")
    assert (result["source"], result["num_train"]) == (str(official), 60)


def test_fetch_downloads_the_four_files(official, monkeypatch, tmp_path):
    handler = functools.partial(Quiet, directory=str(official))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, args=[0.02], daemon=True).start()
        monkeypatch.setenv("NO_PROXY", "*")
        url = f"http://127.0.0.1:{server.server_port}"
        packed = {n: hashlib.sha256((official / f"{n}.gz").read_bytes()).hexdigest() for n in fashion.OFFICIAL}
        monkeypatch.setattr(fashion, "OFFICIAL", {n: (packed[n], s) for n, (_, s) in fashion.OFFICIAL.items()})
        result = gt.datasets.fetch("fashion-mnist", url=url)
        server.shutdown()
    assert (result["source"], result["num_train"], result["num_test"]) == (url + "/", 60, 30)
    assert not list((tmp_path / "cache" / "downloads" / "fashion-mnist").iterdir())


class Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *args):
        pass


def test_an_absent_full_set_tells_the_ways(official):
    with pytest.raises(GluontuneError, match=r"data fetch fashion-mnist(.|\n)*data add fashion-mnist FOLDER"):
        gt.datasets.open("fashion-mnist")


def test_unpacked_files_serve_as_well(official, tmp_path):
    for file in list(official.glob("*.gz")):
        file.with_suffix("").write_bytes(gzip.decompress(file.read_bytes()))
        file.unlink()
    assert make_sample(official, tmp_path / "a", fast=True, per_class=COUNTS)["images"]["train"] == 40


@pytest.mark.parametrize(
    ("harm", "says"),
    [
        (lambda f: f.write_bytes(gzip.compress(b"other")), "content has SHA-256 .* the official file"),
        (lambda f: f.write_bytes(f.read_bytes()[:-30]), "damaged or cut off"),
        (lambda f: f.write_bytes(b"<html>"), "damaged or cut off"),
        (lambda f: f.unlink(), "train-images-idx3-ubyte.gz is missing"),
    ],
)
def test_files_that_are_not_the_official_ones_are_refused(official, tmp_path, harm, says):
    harm(official / "train-images-idx3-ubyte.gz")
    for work in (
        lambda: make_sample(official, tmp_path / "a", fast=True, per_class=COUNTS),
        lambda: gt.datasets.add("fashion-mnist", official),
    ):
        with pytest.raises(GluontuneError, match=says):
            work()
    assert not list((tmp_path / "a").glob("*"))


@settings(max_examples=40, deadline=None)
@given(arrays.arrays(np.uint8, st.tuples(st.integers(1, 12), st.integers(1, 12))))
def test_png_files_hold_the_pixels(image):
    def compress(raw, numiterations, blocksplitting):
        return zlib.compress(raw, 9)

    searched = fashion.encode_grey(image, compress)
    plain = fashion.encode_grey(image)
    for data in (searched, plain):
        decoded = cv2.imdecode(np.frombuffer(data, np.uint8), cv2.IMREAD_UNCHANGED)
        assert np.array_equal(decoded, image)
    assert len(searched) <= len(plain)


def test_without_zopfli_the_command_says_so(official, tmp_path, monkeypatch):
    def missing(name):
        raise ImportError(name)

    monkeypatch.setattr(fashion.importlib, "import_module", missing)
    with pytest.raises(GluontuneError, match="pip install zopfli"):
        make_sample(official, tmp_path / "a", per_class=COUNTS)
    assert not (tmp_path / "a").exists()


def test_a_full_disk_leaves_no_half_sample(official, tmp_path, monkeypatch):
    def full(self, payload, label, key=None):
        raise OSError(28, "No space left on device", self.path)

    monkeypatch.setattr(RecordWriter, "write", full)
    with pytest.raises((GluontuneError, OSError)):
        make_sample(official, tmp_path / "a", fast=True, per_class=COUNTS)
    assert not list((tmp_path / "a").iterdir())


def test_a_read_only_folder_is_found_before_the_work(official, tmp_path):
    (tmp_path / "a").write_text("in the way")
    with pytest.raises(GluontuneError, match="/a: "):
        make_sample(official, tmp_path / "a", fast=True, per_class=COUNTS)
