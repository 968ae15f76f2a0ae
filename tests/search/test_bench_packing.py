"""Packers side by side: both pack the same list, whole."""

from __future__ import annotations

import json
from pathlib import Path

import cv2
import numpy as np
import pytest

from gluontune.cli.main import main
from gluontune.core.errors import GluontuneError
from gluontune.records import RecordReader
from gluontune.search.bench import packing
from gluontune.search.bench.packing import Im2rec, Packer


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    place, rng = tmp_path_factory.mktemp("packing"), np.random.default_rng(0)
    for i in range(12):
        image = cv2.resize(rng.integers(0, 256, (6, 6, 3), dtype=np.uint8), (120, 90))
        (place / f"class{i % 3}").mkdir(exist_ok=True)
        cv2.imwrite(str(place / f"class{i % 3}" / f"{i}.jpg"), image)
    return place


def test_bench_packing_end_to_end(folder, capfd):
    assert main(["bench", "packing", str(folder), "--size", "64", "--rounds", "1", "--workers", "1", "--json"]) == 0
    found = json.loads(capfd.readouterr().out)
    assert list(found["parts"]) == ["pass-through", "resize"]
    for row in found["rows"]:
        assert row["status"] == "ok", (row["name"], row["reason"])
    names = ["gluontune pack, 1 workers", "im2rec.py --num-thread 1", "im2rec.py --num-thread 2"]
    assert [row["name"] for row in found["rows"]] == names * 2
    for part in found["parts"].values():
        assert part["conditions"]["images"] == 12
        assert part["ours"]["ratio_to"]["im2rec.py"]["median"] > 0
        ours, *theirs = (part["conditions"]["bytes"][name] for name in names)
        assert all(abs(ours - other) < 0.05 * other for other in theirs)  # nobody saves work
    sizes = [part["conditions"]["bytes"][names[0]] for part in found["parts"].values()]
    assert sizes[0] != sizes[1]


def test_both_pack_the_same_records(folder, tmp_path):
    lst, root = packing.write_list(folder, None, tmp_path)
    data = {"lst": str(lst), "root": str(root), "folder": str(tmp_path), "size": None, "quality": 90}
    ours, theirs = Packer(**data, workers=1), Im2rec(**data, num_thread=1)
    assert ours.step() == theirs.step() == 12
    with RecordReader(ours.out) as mine, RecordReader(f"{theirs.prefix}.rec") as other:
        assert mine.labels().tolist() == other.labels().tolist()
        assert [bytes(mine.payload(i)) for i in range(12)] == [bytes(other.payload(i)) for i in range(12)]


def test_images_that_were_left_out_are_a_failure(folder, tmp_path):
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a.jpg").write_bytes((folder / "class0" / "0.jpg").read_bytes())
    (tmp_path / "in" / "broken.jpg").write_bytes(b"no image")
    lst = tmp_path / "two.lst"
    lst.write_text("0\t0\ta.jpg\n1\t0\tbroken.jpg\n")
    data = {"lst": str(lst), "root": str(tmp_path / "in"), "folder": str(tmp_path), "size": 64, "quality": 90}
    with pytest.raises(GluontuneError, match="1 images were left out"):
        Packer(**data, workers=1).step()
    with pytest.raises(GluontuneError, match=r"im2rec\.py packed 1 of 2 images"):
        Im2rec(**data, num_thread=2).step()


def test_nothing_to_pack_and_nobody_to_measure(folder, tmp_path, capfd):
    assert main(["bench", "packing", str(tmp_path / "none"), "--rounds", "1"]) == 1
    assert "none" in capfd.readouterr().err
    assert main(["bench", "packing", str(folder), "--only", "nobody"]) == 2
    assert main(["bench", "packing", str(folder), "--part", "half"]) == 2
    assert "part 'half': choose both, pass-through or resize" in capfd.readouterr().err
