"""``gluontune data list / fetch / add / make`` as a user meets them."""

from __future__ import annotations

import io
import json
import tarfile

import numpy as np
import pytest

from gluontune.cli.main import main
from gluontune.datasets import cifar10


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("GLUONTUNE_DATA", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def run(capfd):
    def run(*arguments: str):
        capfd.readouterr()
        code = main(["data", *arguments])
        out, err = capfd.readouterr()
        return code, out, err

    return run


def test_list_as_json_has_what_was_promised(run, cache):
    code, out, _ = run("list", "--json")
    document = json.loads(out)
    rows = {row["name"]: row for row in document["datasets"]}
    assert code == 0 and document["folder"] == str(cache)
    assert list(rows) == ["sample", "fashion-mnist", "cifar10", "synthetic", "folder:PATH", "records:PATH"]
    for row in rows.values():
        assert row["source"] and row["licence"] and row["summary"]
    for name in ("sample", "fashion-mnist", "cifar10"):
        assert rows[name]["bytes"] and len(rows[name]["mean"]) == len(rows[name]["std"]) == rows[name]["image_shape"][2]
    assert rows["sample"]["present"] and not rows["cifar10"]["present"]


def test_list_for_people(run):
    code, out, _ = run("list")
    assert code == 0
    for word in (
        "sample",
        "cifar10",
        "10,000 + 2,000",
        "mean: 0.2860; deviation: 0.3530",
        "MIT",
        "cs.toronto.edu",
        "GLUONTUNE_DATA",
    ):
        assert word in out


def archive(path):
    table = np.zeros((20, 3073), np.uint8)
    table[:, 0] = np.repeat(np.arange(10), 2)
    with tarfile.open(path, "w:gz") as tar:
        for name in ("data_batch_1.bin", "test_batch.bin"):
            member = tarfile.TarInfo(f"cifar-10-batches-bin/{name}")
            member.size = table.size
            tar.addfile(member, io.BytesIO(table.tobytes()))
    return str(path)


def test_add_prints_one_document_and_list_then_shows_it(run, tmp_path, monkeypatch):
    small = cifar10.Layout(batches=1, batch_rows=20, train_per_class=2, test_per_class=2)
    monkeypatch.setattr(cifar10.add, "__defaults__", (*cifar10.add.__defaults__[:-1], small))
    code, out, _ = run("add", "cifar10", archive(tmp_path / "a.tar.gz"), "--json")
    document = json.loads(out)
    assert code == 0 and (document["classes"], document["num_train"], document["num_test"]) == (10, 20, 20)
    rows = {row["name"]: row for row in json.loads(run("list", "--json")[1])["datasets"]}
    assert rows["cifar10"]["present"] and rows["cifar10"]["path"] == document["path"]


def test_add_refuses_in_two_lines_at_most(run, tmp_path):
    code, out, err = run("add", "cifar10", archive(tmp_path / "a.tar.gz"), "--json")
    assert code == 1 and out == ""
    assert "data_batch_1.bin' has 61,460 bytes, not 30,730,000" in err
    assert "Traceback" not in err and len(err.strip().splitlines()) <= 2


def test_make_synthetic_once(run):
    name = "synthetic:train=20,test=4,size=16,classes=2"
    code, out, _ = run("make", name, "--json")
    assert code == 0 and json.loads(out)["already"] is False
    assert json.loads(run("make", name, "--json")[1])["already"] is True


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        (("fetch", "cifar"), 2, "did you mean 'cifar10'"),
        (("fetch", "folder:/tmp"), 2, "nothing to fetch"),
        (("add", "sample", "x"), 2, "nothing to add"),
        (("add", "fashion-mnist", "/no/such/folder"), 2, "give the folder"),
        (("add", "cifar10", "/no/such/file"), 1, "no such file"),
        (("make", "sample"), 2, "--source FOLDER"),
        (("make", "cifar10"), 2, "nothing to make; `data make` knows sample, synthetic"),
        (("make", "synthetic:size=1"), 2, "size=1"),
        (("make", "sample", "--source", "/no/such/folder", "--fast"), 1, "missing"),
    ],
)
def test_wrong_use(run, tmp_path, monkeypatch, arguments, code, says):
    monkeypatch.chdir(tmp_path)
    got, out, err = run(*arguments)
    assert (got, out) == (code, "") and says in " ".join(err.split()) and "Traceback" not in err
