"""Taking over CIFAR-10: what fits, what does not, and archives that mean harm."""

from __future__ import annotations

import gzip
import io
import pickle
import tarfile
import zipfile
from dataclasses import replace
from pathlib import Path

import cv2
import numpy as np
import pytest

import gluontune as gt
from gluontune.datasets import cifar10
from gluontune.datasets.archive import Limits
from gluontune.datasets.cifar10 import CLASSES, Layout
from gluontune.errors import GluontuneError
from gluontune.records import RecordReader

INFO = gt.datasets.DATASETS["cifar10"]
SMALL = Layout(batches=2, batch_rows=20, train_per_class=4, test_per_class=2)


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("GLUONTUNE_DATA", str(tmp_path / "cache"))
    return tmp_path / "cache"


def take(archive: Path, layout: Layout = SMALL):
    return cifar10.add(INFO, archive, layout=layout)


def refused(archive: Path, says: str, layout: Layout = SMALL):
    with pytest.raises(GluontuneError, match=says) as error:
        take(archive, layout)
    assert str(archive) in str(error.value)
    home = archive.parent / "cache" / "cifar10"
    assert not list(home.rglob("*")), "a refused archive must leave nothing"


def rows(seed: int, per_class: int) -> np.ndarray:
    random = np.random.default_rng(seed)
    table = random.integers(0, 256, (10 * per_class, 3073), dtype=np.uint8)
    table[:, 0] = random.permutation(np.repeat(np.arange(10, dtype=np.uint8), per_class))
    return table


def binary_files() -> dict[str, bytes]:
    files = {f"cifar-10-batches-bin/data_batch_{i}.bin": rows(i, 2).tobytes() for i in (1, 2)}
    files["cifar-10-batches-bin/test_batch.bin"] = rows(9, 2).tobytes()
    files["cifar-10-batches-bin/batches.meta.txt"] = "\n".join(CLASSES).encode()
    files["cifar-10-batches-bin/readme.html"] = b"<html>"
    return files


def image(value: int, size: int = 32, kind: str = ".jpg") -> bytes:
    return cv2.imencode(kind, np.full((size, size, 3), value, np.uint8))[1].tobytes()


def folder_files(prefix: str = "") -> dict[str, bytes]:
    return {
        f"{prefix}{part}/{name}/{i}.jpg": image(20 * k + i)
        for part, count in (("train", 4), ("test", 2))
        for k, name in enumerate(CLASSES)
        for i in range(count)
    }


def pack(path: Path, files: dict[str, bytes]) -> Path:
    if path.suffix == ".zip":
        with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
            for name, data in files.items():
                archive.writestr(name, data)
        return path
    mode = {".gz": "w:gz", ".xz": "w:xz", ".bz2": "w:bz2", ".tar": "w"}[path.suffix]
    with tarfile.open(path, mode) as tar:
        for name, data in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(data)
            tar.addfile(member, io.BytesIO(data))
    return path


def test_the_binary_archive_without_loss_and_in_its_order(tmp_path):
    result = take(pack(tmp_path / "cifar-10-binary.tar.gz", binary_files()))
    assert (result["kind"], result["num_train"], result["num_test"]) == ("official binary", 40, 20)
    data = gt.datasets.open("cifar10")
    wanted = np.concatenate([rows(1, 2), rows(2, 2)])
    assert data.train.labels.tolist() == wanted[:, 0].tolist()
    pixels = np.stack([data.train.decode(i) for i in range(40)])
    assert np.array_equal(pixels, wanted[:, 1:].reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1))
    assert data.classes == CLASSES and (data.info.num_train, len(data.test)) == (40, 20)


@pytest.mark.parametrize("kind", ["a.tar.xz", "a.tar.gz", "a.tar.bz2", "a.tar", "a.zip"])
@pytest.mark.parametrize("prefix", ["", "./", "cifar10/"])
def test_class_folders(tmp_path, kind, prefix):
    result = take(pack(tmp_path / kind, folder_files(prefix)))
    assert (result["kind"], result["classes"], result["num_train"]) == ("class folders", 10, 40)
    data = gt.datasets.open("cifar10")
    assert np.bincount(data.train.labels).tolist() == [4] * 10
    assert data.train.labels.tolist() != sorted(data.train.labels.tolist()), "mixed, not class by class"
    payloads = {bytes(data.train.read(i)): CLASSES[data.train.labels[i]] for i in range(40)}
    assert payloads[image(20 * 3 + 1)] == "cat"
    names = {p.name for p in Path(result["path"]).iterdir()}
    sides = {f"{part}.{kind}" for part in ("train", "test") for kind in ("rec", "idx", "crc")}
    assert names == sides | {"classes.txt", "dataset.json"}


def test_taking_over_again_replaces_and_forgets_what_was_made_from_the_old(tmp_path, cache):
    take(pack(tmp_path / "a.tar", folder_files()))
    old = gt.datasets.open("cifar10").train.files()
    take(pack(tmp_path / "b.tar.gz", binary_files()))
    assert not old[0].exists()
    with RecordReader(cache / "cifar10" / "records" / "train.rec") as reader:
        assert reader.labels().tolist() == np.concatenate([rows(1, 2), rows(2, 2)])[:, 0].tolist()


def test_a_failure_keeps_what_was_there(tmp_path):
    take(pack(tmp_path / "a.tar", folder_files()))
    with pytest.raises(GluontuneError):
        take(pack(tmp_path / "b.tar", {"train/cat/1.jpg": image(1)}))
    assert len(gt.datasets.open("cifar10").train) == 40


def test_a_stale_folder_of_a_killed_process_is_swept(tmp_path, cache):
    stale = cache / "cifar10" / ".records-999999999.part"
    stale.mkdir(parents=True)
    (stale / "train.rec").write_bytes(b"x")
    take(pack(tmp_path / "a.tar", folder_files()))
    assert not stale.exists()


def test_the_absent_data_set_tells_both_ways(cache):
    with pytest.raises(GluontuneError) as error:
        gt.datasets.open("cifar10")
    assert "gluontune data fetch cifar10" in str(error.value)
    assert "gluontune data add cifar10 ARCHIVE" in str(error.value)


def changed(files: dict[str, bytes], **changes) -> dict[str, bytes]:
    return {**files, **changes}


def without(files: dict[str, bytes], name: str) -> dict[str, bytes]:
    return {k: v for k, v in files.items() if k != name}


MISFITS = {
    "one image less": (without(folder_files(), "train/cat/0.jpg"), "3 train images of class 'cat'.*has 4"),
    "one image more": (changed(folder_files(), **{"test/cat/9.jpg": image(9)}), "3 test images of class 'cat'"),
    "unknown class": (changed(folder_files(), **{"train/zebra/0.jpg": image(9)}), "'zebra' is not a class"),
    "not train or test": (changed(folder_files(), **{"more/cat/0.jpg": image(9)}), "more/cat/0.jpg"),
    "no folders": ({"0.jpg": image(9)}, "must lie in train/<class>/"),
    "another size": (changed(folder_files(), **{"train/cat/0.jpg": image(9, 33)}), "33 x 33 pixels, not 32"),
    "truncated image": (
        changed(folder_files(), **{"train/cat/0.jpg": image(9)[:-9]}),
        "train/cat/0.jpg.*truncated JPEG",
    ),
    "no image": (changed(folder_files(), **{"train/cat/0.jpg": b"hello"}), "train/cat/0.jpg.*not an image"),
    "nothing of ours": ({"readme.txt": b"hello"}, "neither CIFAR-10's"),
    "a mixture": ({**folder_files(), **binary_files()}, "a mixture"),
    "short batch": (
        changed(binary_files(), **{"cifar-10-batches-bin/data_batch_1.bin": b"\0" * 3073}),
        "3,073 bytes, not 61,460",
    ),
    "strange batch": (changed(binary_files(), **{"data_batch_7.bin": b""}), "data_batch_7.bin.*not a file of"),
    "missing batch": (
        without(binary_files(), "cifar-10-batches-bin/data_batch_2.bin"),
        "2 train images of class 'airplane'",
    ),
    "label out of range": (
        changed(binary_files(), **{"cifar-10-batches-bin/data_batch_1.bin": b"\x0a" + bytes(61_459)}),
        r"row 0: label 10 is out of range \(0 to 9\)",
    ),
}


@pytest.mark.parametrize("kind", MISFITS)
@pytest.mark.parametrize("form", ["a.tar", "a.zip"])
def test_what_does_not_fit_is_refused(tmp_path, kind, form):
    files, says = MISFITS[kind]
    refused(pack(tmp_path / form, files), says)


class Trap:
    """Unpickling it would leave a file."""

    def __init__(self, path: Path):
        self.path = path

    def __reduce__(self):
        return (Path.touch, (self.path,))


def test_the_python_version_is_refused_and_never_unpickled(tmp_path):
    trap = tmp_path / "sprung"
    files = {"cifar-10-batches-py/data_batch_1": pickle.dumps(Trap(trap))}
    refused(pack(tmp_path / "cifar-10-python.tar.gz", files), "Python version of CIFAR-10.*cifar-10-binary")
    assert not trap.exists()


@pytest.mark.parametrize(
    "name", ["../../train/cat/0.jpg", "/train/cat/0.jpg", "a/../../b.jpg", "C:/x.jpg", "..\\x.jpg"]
)
@pytest.mark.parametrize("form", ["a.tar", "a.zip"])
def test_paths_that_climb_out_are_refused(tmp_path, name, form):
    refused(pack(tmp_path / form, {name: image(1)}), "climbs out")


@pytest.mark.parametrize(
    ("kind", "says"),
    [
        (tarfile.SYMTYPE, "is a link"),
        (tarfile.LNKTYPE, "is a link"),
        (tarfile.FIFOTYPE, "is not a regular file"),
        (tarfile.CHRTYPE, "is not a regular file"),
    ],
)
def test_links_and_devices_are_refused(tmp_path, kind, says):
    with tarfile.open(tmp_path / "a.tar", "w") as tar:
        member = tarfile.TarInfo("train/cat/0.jpg")
        member.type, member.linkname = kind, "/etc/passwd"
        tar.addfile(member)
    refused(tmp_path / "a.tar", says)


def test_a_link_in_a_zip_is_refused(tmp_path):
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as archive:
        entry = zipfile.ZipInfo("train/cat/0.jpg")
        entry.external_attr = 0o120777 << 16
        archive.writestr(entry, "/etc/passwd")
    refused(tmp_path / "a.zip", "is a link")


def test_a_name_that_comes_twice_is_refused(tmp_path):
    with tarfile.open(tmp_path / "a.tar", "w") as tar:
        for _ in range(2):
            member = tarfile.TarInfo("train/cat/0.jpg")
            member.size = len(image(1))
            tar.addfile(member, io.BytesIO(image(1)))
    refused(tmp_path / "a.tar", "twice")


def limited(**limits) -> Layout:
    return replace(SMALL, limits=Limits(**limits))


def test_absurd_declared_sizes_are_refused(tmp_path):
    with (tmp_path / "a.tar").open("wb") as stream:
        member = tarfile.TarInfo("train/cat/0.jpg")
        member.size = 1 << 40
        stream.write(member.tobuf() + bytes(1024))
    refused(tmp_path / "a.tar", "claims 1,099,511,627,776 bytes")


def test_a_long_header_is_refused_before_it_is_read(tmp_path):
    with (tmp_path / "a.tar").open("wb") as stream:
        member = tarfile.TarInfo("././@LongLink")
        member.type, member.size = tarfile.GNUTYPE_LONGNAME, 1 << 30
        stream.write(member.tobuf() + bytes(1024))
    refused(tmp_path / "a.tar", "a header of 1,073,741,824 bytes")


def test_a_bomb_is_refused_by_its_ratio(tmp_path):
    bomb = tmp_path / "a.tar.gz"
    with gzip.open(bomb, "wb") as stream:
        member = tarfile.TarInfo("notes.txt")
        member.size = 40 << 20
        stream.write(member.tobuf())
        for _ in range(40):
            stream.write(bytes(1 << 20))
    refused(bomb, "archive bomb")


def test_a_zip_that_lies_about_its_size_is_refused(tmp_path):
    path = pack(tmp_path / "a.zip", {"train/cat/0.jpg": image(1) + bytes(50_000)})
    data = bytearray(path.read_bytes())
    at = data.rfind(b"PK\x01\x02")
    data[at + 24 : at + 28] = (100).to_bytes(4, "little")
    path.write_bytes(data)
    refused(path, "claims 100 bytes|not a whole")


def test_too_many_files_and_too_many_bytes_are_refused(tmp_path):
    archive = pack(tmp_path / "a.tar.gz", folder_files())
    refused(archive, "more than 10 files", limited(files=10))
    refused(archive, "more than 5,000 bytes unpacked|unpacks to more than 5,000", limited(total_bytes=5000))
    refused(archive, "claims .* bytes .limit 100", limited(file_bytes=100))


@pytest.mark.parametrize("form", ["a.tar.gz", "a.tar.xz", "a.tar.bz2", "a.zip", "a.tar"])
def test_an_archive_that_was_cut_off_is_refused(tmp_path, form):
    path = pack(tmp_path / form, folder_files())
    data = path.read_bytes()
    path.write_bytes(data[: len(data) * 2 // 3])
    refused(path, "cut off|complete")


def test_what_is_no_archive_is_refused(tmp_path):
    (tmp_path / "a.tar.gz").write_bytes(b"<html>not found</html>" * 50)
    refused(tmp_path / "a.tar.gz", "not a whole tar or zip archive")
    refused(tmp_path / "missing.tar.gz", "no such file")
    (tmp_path / "folder").mkdir()
    refused(tmp_path / "folder", "a folder, not an archive")


def test_a_full_disk_is_told(tmp_path, monkeypatch):
    archive = pack(tmp_path / "a.tar", folder_files())

    def full(self, payload, label, key=None):
        raise OSError(28, "No space left on device", self.path)

    monkeypatch.setattr(cifar10.RecordWriter, "write", full)
    with pytest.raises(GluontuneError, match="disk is full"):
        take(archive)
    assert not list((tmp_path / "cache" / "cifar10").iterdir())
