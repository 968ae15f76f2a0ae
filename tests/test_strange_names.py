"""Files and folders whose names are no UTF-8: kept where they are paths, a sentence where they would name a class."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tarfile

import cv2
import numpy as np
import pytest

import gluontune as gt
from gluontune.errors import GluontuneError
from gluontune.files import atomic_write
from gluontune.records import RecordReader, pack

LATIN = os.fsdecode(b"caf\xe9")


@pytest.fixture
def images(tmp_path):
    """Class folders with proper names, in a folder without one, and one file in each that has none."""
    rng = np.random.default_rng(0)
    for label in ("cat", "dog"):
        (tmp_path / LATIN / label).mkdir(parents=True)
        for name in ("0", "1", "2", LATIN):
            image = cv2.resize(rng.integers(0, 256, (6, 6, 3), np.uint8), (24, 20))
            (tmp_path / LATIN / label / f"{name}.jpg").write_bytes(cv2.imencode(".jpg", image)[1].tobytes())
    (tmp_path / LATIN / "cat" / f"{LATIN}.png").write_bytes(b"damaged")
    return tmp_path / LATIN


def command(*arguments, **changes: str) -> subprocess.CompletedProcess:
    code = "import sys; from gluontune.cli.main import entry; sys.argv[0] = 'gluontune'; entry()"
    environment = {**os.environ, **changes}
    return subprocess.run([sys.executable, "-c", code, *map(str, arguments)], env=environment, capture_output=True)


@pytest.mark.parametrize("options", [{}, {"resize": 12}, {"exact": True}])
@pytest.mark.parametrize("codec", ["with the codec", "without"])
def test_paths_are_kept(images, tmp_path, options, codec, monkeypatch):
    if codec == "without":
        monkeypatch.setattr(gt.codec.native, "_loaded", [None])
    (tmp_path / LATIN / "out").mkdir()
    out = tmp_path / LATIN / "out" / f"{LATIN}.rec"
    report = pack(images, out, **options)
    assert report.packed == 8 + ("exact" in options) and report.classes == ["cat", "dog"]
    assert [one.path for one in report.skipped] == (
        [] if options.get("exact") else [str(images / "cat" / f"{LATIN}.png")]
    )
    assert len(RecordReader(out)) == report.packed and gt.records.verify(out, decode=False).whole >= 8
    again = json.loads(json.dumps(report.to_dict()))
    assert again["outputs"] == [str(out)]
    if not options.get("exact"):
        with pytest.raises(GluontuneError, match="leave out --strict"):
            pack(images, out, strict=True, **options)


def test_data_sets_read_them(images, tmp_path, monkeypatch):
    monkeypatch.setenv("GLUONTUNE_DATA", str(tmp_path / "cache"))
    (images / "cat" / f"{LATIN}.png").unlink()
    found = gt.datasets.open(f"folder:{images}")
    assert found.classes == ("cat", "dog") and len(found.train) == 6 and len(found.train.read(0)) > 100
    pack(images, images / "a.rec")
    assert len(gt.datasets.open(f"records:{images / 'a.rec'}").train) == 6


def test_a_class_must_have_a_proper_name_and_nothing_is_left_behind(images, tmp_path, monkeypatch):
    monkeypatch.setenv("GLUONTUNE_DATA", str(tmp_path / "cache"))
    (images / "cat").rename(images / LATIN)
    with tarfile.open(tmp_path / "a.tar", "w", encoding="utf-8", errors="surrogateescape") as tar:
        tar.add(images, "images")
    before = sorted(tmp_path.iterdir())
    said = r"the class name 'caf\\udce9' is not UTF-8: rename it"
    for source in (images, tmp_path / "a.tar"):
        with pytest.raises(GluontuneError, match=said):
            pack(source, tmp_path / "o.rec")
    with pytest.raises(GluontuneError, match=said):
        gt.datasets.open(f"folder:{images}")
    assert sorted(tmp_path.iterdir()) == before
    done = command("pack", images, tmp_path / "o.rec", "--json")
    assert done.returncode == 1 and done.stdout == b"" and done.stderr.count(b"\n") == 1
    assert sorted(tmp_path.iterdir()) == before


def test_lists_that_are_no_utf8_are_refused_in_a_sentence(images, tmp_path):
    for name, line in (("a.lst", b"0\t1\tcaf\xe9/1.jpg\n"), ("a.csv", b"path,label\ncaf\xe9/1.jpg,cat\n")):
        (tmp_path / name).write_bytes(line)
        with pytest.raises(GluontuneError, match=f"{name}: not a text file in UTF-8"):
            pack(tmp_path / name, tmp_path / "o.rec")
    assert {path.name for path in tmp_path.iterdir()} == {LATIN, "a.lst", "a.csv"}


@pytest.mark.parametrize("encoding", ["utf-8", "ascii", "latin-1"])
def test_the_terminal_and_the_json_show_them(images, tmp_path, encoding):
    text = command("pack", images, images / "o.rec", PYTHONIOENCODING=encoding)
    assert text.returncode == 0 and rb"cat/caf\udce9.png: not an image" in text.stdout, text
    document = command("pack", images, images / "o.rec", "--json", PYTHONIOENCODING=encoding)
    (skipped,) = json.loads(document.stdout)["skipped"]
    assert skipped["path"] == str(images / "cat" / f"{LATIN}.png")
    checked = command("verify", images / "o.rec", "--json", PYTHONIOENCODING=encoding)
    assert checked.returncode == 0 and json.loads(checked.stdout)["path"] == str(images / "o.rec")


def test_a_text_that_names_one_is_written(tmp_path):
    with atomic_write(tmp_path / "a.html", "w") as stream:
        stream.write(f"<p>{LATIN}</p>")
    assert (tmp_path / "a.html").read_text(encoding="utf-8") == r"<p>caf\udce9</p>"
