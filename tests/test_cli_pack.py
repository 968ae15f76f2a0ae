"""``gluontune pack`` and ``gluontune verify`` as a user meets them."""

from __future__ import annotations

import json

import cv2
import numpy as np
import pytest

from gluontune.cli.main import main
from gluontune.records import RecordReader


@pytest.fixture
def folder(tmp_path):
    rng = np.random.default_rng(0)
    for name in ("cat", "dog"):
        (tmp_path / "src" / name).mkdir(parents=True)
        for i in range(4):
            image = cv2.resize(rng.integers(0, 255, (4, 4, 3), dtype=np.uint8), (48, 40))
            cv2.imwrite(str(tmp_path / "src" / name / f"{i}.jpg"), image)
    (tmp_path / "src" / "cat" / "bad.jpg").write_bytes(b"bad")
    return tmp_path / "src"


def run(capfd, *arguments):
    code = main([str(a) for a in arguments])
    captured = capfd.readouterr()
    return code, captured.out, captured.err


def test_pack_and_verify_json(folder, tmp_path, capfd):
    out = tmp_path / "a.rec"
    code, text, _ = run(capfd, "pack", folder, out, "--resize", 32, "--shards", 2, "--json")
    report = json.loads(text)
    assert code == 0 and report["packed"] == 8 and report["images_per_sec"] > 0
    assert report["skipped"] == [{"path": str(folder / "cat/bad.jpg"), "reason": "not an image (begins with b'bad')"}]
    assert report["outputs"] == [str(tmp_path / f"a-0000{s}-of-00002.rec") for s in (0, 1)]
    assert sum(len(RecordReader(p)) for p in report["outputs"]) == 8
    code, text, _ = run(capfd, "verify", report["outputs"][0], "--json")
    found = json.loads(text)
    assert code == 0 and found["records"] == found["whole"] == 4 and found["damaged"] == []


def test_pack_says_what_it_left_out(folder, tmp_path, capfd):
    code, text, _ = run(capfd, "pack", folder, tmp_path / "a.rec")
    assert code == 0 and "bad.jpg: not an image" in text and "8 images packed, 1 left out" in text
    code, text, error = run(capfd, "pack", folder, tmp_path / "b.rec", "--strict", "--json")
    assert code == 1 and text == "" and "bad.jpg" in error and error.count("\n") == 1
    code, _, error = run(capfd, "pack", folder, tmp_path / "b.rec", "--color", "blue")
    assert code == 2 and "choose one of keep, rgb, grey" in error
    code, _, error = run(capfd, "pack", tmp_path / "none", tmp_path / "b.rec")
    assert code == 1 and "no such file" in error


def test_labels_of_a_table_are_chosen_by_name(folder, tmp_path, capfd):
    (folder / "t.csv").write_text("file,x,y\ncat/0.jpg,1,2\ndog/1.jpg,3,4\n")
    arguments = ("--label-column", "y", "--label-column", "x", "--no-shuffle", "--json")
    code, _, _ = run(capfd, "pack", folder / "t.csv", tmp_path / "a.rec", *arguments)
    assert code == 0 and RecordReader(tmp_path / "a.rec").labels().tolist() == [[2, 1], [4, 3]]


def test_verify_finds_and_repairs(folder, tmp_path, capfd):
    path = tmp_path / "a.rec"
    run(capfd, "pack", folder, path)
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    code, text, _ = run(capfd, "verify", path)
    assert code == 1 and "checksum" in text and "8 records, 7 whole, 1 fault\n" in text and "--repair" in text
    code, text, _ = run(capfd, "verify", path, "--json")
    found = json.loads(text)
    assert code == 1 and set(found["damaged"][0]) == {"index", "offset", "reason"} and found["whole"] == 7
    code, text, _ = run(capfd, "verify", path, "--repair", tmp_path / "b.rec", "--json")
    assert code == 0 and json.loads(text)["repair"]["kept"] == 7
    assert run(capfd, "verify", tmp_path / "b.rec")[0] == 0
    assert (tmp_path / "b.classes").read_text() == "cat\ndog\n"
    code, _, error = run(capfd, "verify", tmp_path / "none.rec")
    assert code == 1 and error.startswith("error: ") and "no such file" in error


def test_verify_of_some_other_file_says_so(tmp_path, capfd):
    other = tmp_path / "README.md"
    other.write_text("# No records here\n" * 100, encoding="utf-8")
    assert main(["verify", str(other)]) == 1
    said = capfd.readouterr().out
    assert "this is no record file" in said and "whole" not in said and "--repair" not in said
