"""The user's own images: class folders and record files, whole and broken; generated ones."""

from __future__ import annotations

import warnings
from pathlib import Path

import cv2
import numpy as np
import pytest

import gluontune as gt
from gluontune.core.errors import GluontuneError, UsageError
from gluontune.datasets.catalog import DatasetWarning
from gluontune.records import RecordReader, RecordWriter


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("GLUONTUNE_DATA", str(tmp_path / "cache"))
    return tmp_path / "cache"


def jpeg(seed: int, height: int = 16, width: int = 16, grey: bool = False) -> bytes:
    shape = (height, width) if grey else (height, width, 3)
    pixels = np.random.default_rng(seed).integers(0, 255, shape, np.uint8)
    return cv2.imencode(".jpg", pixels)[1].tobytes()


def fill(folder: Path, count: int, start: int = 0, **options) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for i in range(count):
        (folder / f"{i:03d}.jpg").write_bytes(jpeg(start + i, **options))
    return folder


@pytest.fixture
def two_parts(tmp_path):
    root = tmp_path / "birds"
    for k, name in enumerate(("crow", "owl")):
        fill(root / "train" / name, 6, 10 * k)
        fill(root / "val" / name, 2, 100 + 10 * k)
    (root / "train" / "crow" / "Thumbs.db").write_bytes(b"x")
    (root / "train" / ".cache").mkdir()
    return root


def write(path: Path, labels, payload=None) -> Path:
    with RecordWriter(path) as writer:
        for i, label in enumerate(labels):
            writer.write(jpeg(i) if payload is None else payload, label)
    return path


def test_train_and_val_folders(two_parts):
    data = gt.datasets.open(f"folder:{two_parts}")
    assert (data.classes, len(data.train), len(data.test)) == (("crow", "owl"), 12, 4)
    assert data.image_shape == (16, 16, 3) and data.augment == "pad-crop-flip" and data.notes == ()
    assert data.train.labels.tolist() == [0] * 6 + [1] * 6
    files = data.train.files()
    assert [f.relative_to(two_parts).as_posix() for f in files[5:7]] == ["train/crow/005.jpg", "train/owl/000.jpg"]
    assert bytes(data.train.read(6)) == files[6].read_bytes()
    assert data.train.rec_path is None
    assert (data.info.num_train, data.info.image_shape, data.info.mean) == (12, (16, 16, 3), data.mean)
    pixels = np.stack([data.train.decode(i) for i in range(12)]) / 255
    assert np.allclose(data.mean, pixels.mean((0, 1, 2)), atol=1e-3)
    assert np.allclose(data.std, pixels.std((0, 1, 2)), atol=1e-3)


def test_figures_are_remembered_until_a_file_changes(two_parts, monkeypatch):
    first = gt.datasets.open(f"folder:{two_parts}")
    with monkeypatch.context() as patch:
        patch.setattr("gluontune.datasets.recordset.mean_std", None)
        assert gt.datasets.open(f"folder:{two_parts}").mean == first.mean
    white = cv2.imencode(".jpg", np.full((16, 16, 3), 255, np.uint8))[1].tobytes()
    (two_parts / "train" / "crow" / "000.jpg").write_bytes(white)
    assert gt.datasets.open(f"folder:{two_parts}").mean[0] > first.mean[0] + 0.01


def test_one_level_is_split_the_same_way_each_time(tmp_path):
    for k in range(2):
        fill(tmp_path / "flat" / f"c{k}", 20, 100 * k)
    data = gt.datasets.open(f"folder:{tmp_path / 'flat'}")
    assert np.bincount(data.train.labels).tolist() == [18, 18]
    assert np.bincount(data.test.labels).tolist() == [2, 2]
    assert not set(data.train.files()) & set(data.test.files())
    assert gt.datasets.open(f"folder:{tmp_path / 'flat'}").test.files() == data.test.files()
    assert "a tenth" in data.notes[0]


def test_mixed_sizes_and_grey(tmp_path):
    fill(tmp_path / "mixed" / "a", 3, height=20, width=30)
    fill(tmp_path / "mixed" / "b", 3, height=40, width=30)
    data = gt.datasets.open(f"folder:{tmp_path / 'mixed'}")
    assert (data.image_shape, data.augment, len(data.mean)) == (None, "random-resized-crop-flip", 3)
    for k in "ab":
        fill(tmp_path / "grey" / k, 3, grey=True)
    data = gt.datasets.open(f"folder:{tmp_path / 'grey'}")
    assert data.image_shape == (16, 16, 1) and len(data.mean) == 1


def test_a_few_broken_images_are_skipped_and_named(two_parts):
    owls = two_parts / "train" / "owl"
    (owls / "001.jpg").write_bytes(jpeg(1)[:200])
    (owls / "002.jpg").write_bytes(b"")
    with pytest.warns(DatasetWarning, match=r"2 of 16 images are skipped.*owl/001\.jpg.*truncated"):
        data = gt.datasets.open(f"folder:{two_parts}")
    assert len(data.train) == 10 and "owl/002.jpg" in data.notes[0]
    with pytest.warns(DatasetWarning):  # remembered, and still told
        assert len(gt.datasets.open(f"folder:{two_parts}").train) == 10


def test_a_broken_copy_is_an_error(two_parts):
    for part in ("train", "val"):
        for file in (two_parts / part).rglob("*.jpg"):
            file.write_bytes(file.read_bytes()[:100])
    with pytest.raises(GluontuneError, match=r"16 of 16 images are damaged, such as .*000\.jpg: .*truncated"):
        gt.datasets.open(f"folder:{two_parts}")


def test_a_dangling_link_is_a_broken_image(two_parts):
    (two_parts / "train" / "owl" / "link.jpg").symlink_to(two_parts / "nowhere.jpg")
    with pytest.warns(DatasetWarning, match=r"link\.jpg: No such file"):
        assert len(gt.datasets.open(f"folder:{two_parts}").train) == 12


def broken_folders(root: Path, kind: str) -> str:
    """Make a folder that must be refused; returns what the message says."""
    if kind == "missing":
        return "no such folder"
    if kind == "empty":
        root.mkdir()
        return "has no images"
    if kind == "file":
        root.write_text("")
        return "not a folder"
    if kind == "loose":
        fill(root, 3)
        return "3 images but no class folders"
    if kind == "hollow":
        (root / "a").mkdir(parents=True)
        (root / "b").mkdir()
        return "2 class folders hold no images"
    if kind == "one hollow":
        fill(root / "a", 3)
        (root / "b").mkdir()
        return "/b: the class folder holds no images"
    if kind == "no train":
        fill(root / "test" / "a", 2)
        fill(root / "val" / "a", 2)
        return "test and val, but no folder named train"
    if kind == "one class":
        fill(root / "cat", 5)
        return "one class .'cat'."
    if kind == "strange class":
        for part, names in {"train": "ab", "test": "abz"}.items():
            for name in names:
                fill(root / part / name, 2)
        return "/test/z: a class that .*/train lacks"
    fill(root / "a", 3)
    fill(root / "b", 1)
    return "class 'b' has one image"


@pytest.mark.parametrize(
    "kind",
    [
        "missing",
        "empty",
        "file",
        "loose",
        "hollow",
        "one hollow",
        "one class",
        "strange class",
        "one image",
        "no train",
    ],
)
def test_a_folder_that_cannot_work_is_refused(tmp_path, kind):
    says = broken_folders(tmp_path / "data", kind)
    with pytest.raises(GluontuneError, match=says):
        gt.datasets.open(f"folder:{tmp_path / 'data'}")


def test_an_unwritable_cache_does_not_stop_a_folder(two_parts, cache):
    cache.write_text("a file where the folder should be")
    assert len(gt.datasets.open(f"folder:{two_parts}").train) == 12


@pytest.mark.parametrize("form", ["folder", "pair", "single"])
def test_records(tmp_path, form):
    train = write(tmp_path / "train.rec", [0, 1] * 10)
    test = write(tmp_path / "val.rec", [1, 0])
    (tmp_path / "classes.txt").write_text("cat\ndog\n")
    name = {"folder": tmp_path, "pair": f"{train},{test}", "single": train}[form]
    data = gt.datasets.open(f"records:{name}")
    assert data.classes == ("cat", "dog") and data.image_shape == (16, 16, 3)
    if form == "single":
        assert np.bincount(data.train.labels).tolist() == [9, 9]
        together = {data.train.name_of(i) for i in range(18)} | {data.test.name_of(i) for i in range(2)}
        assert len(together) == 20 and data.train.rec_path is None
        assert gt.datasets.open(f"records:{name}").test.name_of(1) == data.test.name_of(1)
    else:
        assert data.train.rec_path == train and data.test.rec_path == test
        assert bytes(data.train.read(3)) == jpeg(3)


@pytest.mark.parametrize(
    ("labels", "says"),
    [
        ([0, 1, 0, 99], "label 99 of record 3 is out of range"),
        ([0, 1, -1, 0], "label -1 of record 2 is out of range"),
        ([0, 1, 0.5, 0], "label 0.5 of record 2 is out of range"),
        ([[0, 1], [1, 0]], "carry 2 labels"),
        ([1, 1, 1, 1], "all training images are of one class"),
        ([], "no records"),
    ],
)
def test_records_with_wrong_labels_are_refused(tmp_path, labels, says):
    write(tmp_path / "train.rec", labels)
    write(tmp_path / "test.rec", [0, 1])
    with pytest.raises(GluontuneError, match=rf"train\.rec.*{says}|{says}"):
        gt.datasets.open(f"records:{tmp_path}")


@pytest.mark.parametrize("listed", ["a\nb\nc\n", None])
def test_a_test_part_with_strange_classes_is_refused(tmp_path, listed):
    write(tmp_path / "train.rec", [0, 1] * 4)
    write(tmp_path / "test.rec", [0, 1, 2])
    if listed:
        (tmp_path / "classes.txt").write_text(listed)
    says = "classes that the training part lacks: 'c'" if listed else "label 2 of test record 2 is out of range"
    with pytest.raises(GluontuneError, match=says):
        gt.datasets.open(f"records:{tmp_path}")


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("{0}", r"no train\.rec"),
        ("{0}/a.rec", "no such record file"),
        ("{0}/a.rec,{0}/b.rec,{0}/c.rec", "give one file"),
    ],
)
def test_record_files_that_are_missing(tmp_path, name, says):
    with pytest.raises(GluontuneError, match=says):
        gt.datasets.open("records:" + name.format(tmp_path))


def test_a_damaged_image_in_records_is_named_when_opened(tmp_path):
    write(tmp_path / "train.rec", [0, 1, 0, 1], payload=jpeg(0)[:-40])
    write(tmp_path / "test.rec", [0, 1])
    with pytest.raises(GluontuneError, match=r"train\.rec, record 0: a truncated JPEG"):
        gt.datasets.open(f"records:{tmp_path}")


def test_synthetic_is_made_once_and_the_same_everywhere(cache, monkeypatch):
    name = "synthetic:train=60,test=20,size=24x32,classes=4,format=png,seed=3"
    data = gt.datasets.open(name)
    assert (len(data.train), len(data.test), data.image_shape) == (60, 20, (24, 32, 3))
    assert np.bincount(data.train.labels).tolist() == [15] * 4
    rec = data.train.rec_path
    before, stamp = rec.read_bytes(), rec.stat().st_mtime_ns
    gt.datasets.open(name)
    assert rec.stat().st_mtime_ns == stamp
    monkeypatch.setenv("GLUONTUNE_DATA", str(cache) + "2")
    again = gt.datasets.open(name).train.rec_path
    assert again != rec and again.read_bytes() == before
    other = gt.datasets.open(name.replace("seed=3", "seed=4"))
    assert other.train.rec_path.read_bytes() != before
    assert gt.datasets.open(name.replace("png", "jpeg")).train.decode(0).shape == (24, 32, 3)


def test_synthetic_classes_can_be_learned_and_do_not_mind_a_flip():
    data = gt.datasets.open("synthetic:train=400,test=100,size=32,classes=4")
    train = np.stack([data.train.decode(i) for i in range(400)]).astype(np.float32)
    test = np.stack([data.test.decode(i) for i in range(100)]).astype(np.float32)
    means = np.stack([train[data.train.labels == k].mean(0) for k in range(4)])
    means -= means.mean(0)

    def accuracy(images):
        scores = np.einsum("nhwc,khwc->nk", images - train.mean(0), means)
        return (scores.argmax(1) == data.test.labels).mean()

    assert accuracy(test) > 0.6
    assert accuracy(test[:, :, ::-1]) > 0.6


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ("sise=32", "did you mean 'size'"),
        ("train", "Write train="),
        ("train=many", "train=many: give a whole number"),
        ("train=3,classes=10", "give a training image for each"),
        ("classes=1", "classes=1: give 2 or more"),
        ("size=2", "size=2: give size=HEIGHTxWIDTH"),
        ("size=99999x32", "size=99999x32"),
        ("format=gif", "choose jpeg or png"),
        ("test=0", "one test image at least"),
    ],
)
def test_synthetic_options_that_cannot_work(options, says):
    with pytest.raises(UsageError, match=says):
        gt.datasets.open(f"synthetic:{options}")


def test_a_generation_that_fails_leaves_nothing(cache, monkeypatch):
    def full(self, payload, label, key=None):
        raise OSError(28, "No space left on device", self.path)

    monkeypatch.setattr(RecordWriter, "write", full)
    with pytest.raises(GluontuneError, match="disk is full"):
        gt.datasets.open("synthetic:train=20,test=5,size=16,classes=2")
    assert not [p for p in cache.rglob("*") if p.is_file()]
    monkeypatch.undo()


def test_no_warning_for_a_sound_folder(two_parts):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        gt.datasets.open(f"folder:{two_parts}")


def test_the_folder_packs_as_it_is(two_parts):
    data = gt.datasets.open(f"folder:{two_parts}")
    with RecordReader(data.train.to_records()) as reader:
        assert [bytes(reader.payload(i)) for i in range(12)] == [f.read_bytes() for f in data.train.files()]
        assert reader.labels().tolist() == data.train.labels.tolist()
