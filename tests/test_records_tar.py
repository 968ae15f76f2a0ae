"""WebDataset shards and class folders in tar archives, packed without unpacking them."""

from __future__ import annotations

import json
import tarfile

import cv2
import numpy as np
import pytest
from tar_files import write_tar

from gluontune.cli.main import main
from gluontune.errors import GluontuneError, UsageError
from gluontune.records import RecordReader, pack, verify
from gluontune.records.sources import read_source


def jpeg(seed):
    pixels = np.random.default_rng(seed).integers(0, 255, (5, 5, 3), np.uint8)
    return cv2.imencode(".jpg", cv2.resize(pixels, (40, 30)))[1].tobytes()


@pytest.fixture
def shards(tmp_path):
    """Three shards of five samples each, as WebDataset's ShardWriter names them."""
    paths = []
    for s in range(3):
        members = []
        for i in range(5 * s, 5 * s + 5):
            key = f"data/{i:06d}"
            members += [(f"{key}.cls", b"%d" % (i % 4)), (f"{key}.jpg", jpeg(i)), (f"{key}.json", b'{"label": 99}')]
        paths.append(write_tar(tmp_path / f"shard-{s:03d}.tar", *members))
    return paths


def test_shards_are_packed_byte_for_byte_in_their_order(shards, tmp_path):
    report = pack(shards, tmp_path / "a.rec", shuffle=False)
    assert (report.packed, report.skipped, report.classes) == (15, [], None)
    with RecordReader(tmp_path / "a.rec") as reader:
        assert [bytes(reader.payload(i)) for i in range(15)] == [jpeg(i) for i in range(15)]
        assert reader.labels().tolist() == [i % 4 for i in range(15)]
    assert verify(tmp_path / "a.rec").ok


def test_workers_resizing_and_the_same_bytes(shards, tmp_path):
    for workers in (1, 2):
        pack(shards, tmp_path / f"{workers}.rec", resize=24, workers=workers, seed=5)
    assert (tmp_path / "1.rec").read_bytes() == (tmp_path / "2.rec").read_bytes()
    with RecordReader(tmp_path / "1.rec") as reader:
        assert cv2.imdecode(np.frombuffer(reader.payload(0), np.uint8), 1).shape == (24, 32, 3)


def test_the_command_takes_several_shards(shards, tmp_path, capfd):
    code = main(["pack", *map(str, shards), str(tmp_path / "a.rec"), "--json"])
    captured = capfd.readouterr()
    assert code == 0 and json.loads(captured.out)["packed"] == 15
    code = main(["pack", str(tmp_path), str(shards[0]), str(tmp_path / "b.rec")])
    assert code == 2 and "several .tar" in capfd.readouterr().err


def test_class_folders_json_labels_and_several_labels(tmp_path):
    folders = write_tar(
        tmp_path / "f.tar", *[("./dog/1.jpg", jpeg(1)), ("./cat/x.y.jpg", jpeg(2)), ("./cat/._x.jpg", b"x")]
    )
    source = read_source(folders, shuffle=False)
    assert source.classes == ["cat", "dog"] and [item.label for item in source.items] == [1.0, 0.0]
    said = write_tar(tmp_path / "j.tar", *[("a.jpg", jpeg(1)), ("a.json", b'{"label": [3, 4.5]}')])
    other = write_tar(tmp_path / "k.tar", *[("a.jpg", jpeg(1)), ("a.json", b'{"label": null, "class": 3}')])
    assert [item.label for item in read_source(other).items] == [3.0]
    assert [item.label for item in read_source(said).items] == [(3.0, 4.5)]
    many = write_tar(tmp_path / "m.tar", *[("a.cls0", b"1"), ("a.cls1", b"2"), ("a.png", jpeg(1))])
    assert [item.label for item in read_source(many).items] == [(1.0, 2.0)]


@pytest.mark.parametrize(
    ("members", "message"),
    [
        ([("a.jpg", b"x")], "sample a has no label"),
        ([("a.cls", b"cat"), ("a.jpg", b"x")], "sample a: its label is not a number"),
        ([("a.cls", b"1"), ("a.jpg", b"x"), ("d/b.jpg", b"x")], "1 of 2 samples have no label"),
        ([("a.txt", b"1")], "no images in it"),
    ],
)
def test_what_cannot_be_packed_is_named(tmp_path, members, message):
    with pytest.raises(GluontuneError, match=message):
        read_source(write_tar(tmp_path / "a.tar", *members))


def test_damaged_compressed_and_missing_archives(shards, tmp_path):
    data = shards[0].read_bytes()
    (tmp_path / "cut.tar").write_bytes(data[:700])
    (tmp_path / "no.tar").write_bytes(b"hello" * 300)
    with tarfile.open(tmp_path / "c.tar.gz", "w:gz") as tar:
        tar.add(shards[0])
    for name, message in (("cut.tar", "tar archive"), ("no.tar", "tar archive"), ("c.tar.gz", "compressed")):
        with pytest.raises(GluontuneError, match=message):
            read_source(tmp_path / name)
    with pytest.raises(GluontuneError, match="no such file"):
        read_source([shards[0], tmp_path / "none.tar"])
    with pytest.raises(UsageError, match=r"several \.tar"):
        read_source([shards[0], tmp_path])


def test_a_damaged_image_in_a_shard_is_left_out_and_named(tmp_path):
    path = write_tar(tmp_path / "a.tar", *[("a/1.jpg", jpeg(1)), ("a/2.jpg", jpeg(2)[:200]), ("b/3.jpg", jpeg(3))])
    report = pack(path, tmp_path / "a.rec")
    assert report.packed == 2 and report.skipped[0].path.endswith("!a/2.jpg")
    assert "truncated" in report.skipped[0].reason
