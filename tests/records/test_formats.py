"""The comparison of formats, by a clock that ticks once each time it is asked."""

from __future__ import annotations

import itertools
import json
import sys

import cv2
import numpy as np
import pytest

from benchmarks.__main__ import main
from gluontune.records import compare_formats

COUNT, SIDE = 6, 64


@pytest.fixture
def src(tmp_path):
    for k in range(COUNT):
        place = tmp_path / "src" / ("cat" if k % 2 else "dog")
        place.mkdir(parents=True, exist_ok=True)
        pixels = np.random.default_rng(k).integers(0, 255, (SIDE + 7, SIDE, 3), np.uint8)
        cv2.imwrite(str(place / f"{k}.png"), pixels)
    return tmp_path / "src"


@pytest.fixture
def clock(monkeypatch):
    ticks = itertools.count()
    monkeypatch.setattr("time.perf_counter", lambda: float(next(ticks)))
    return ticks


def test_speeds_are_images_a_second(src, clock, monkeypatch):
    monkeypatch.setitem(sys.modules, "lmdb", None)
    rows = {row.name: row for row in compare_formats(src, resize=SIDE, repeats=2)}
    # Two packings and the writing of files; three rows are read twice in two ways.
    assert next(clock) == 3 * 2 + 3 * 2 * 2 * 2
    assert list(rows) == ["files", "JPEG records", "raw-pixel records", "LMDB"]
    for name in ("files", "JPEG records", "raw-pixel records"):
        row = rows[name]
        assert row.status == "ok"
        assert row.packing_images_per_sec == row.reading_images_per_sec == row.pixels_images_per_sec == COUNT
    raw = rows["raw-pixel records"].bytes
    assert raw == COUNT * (8 + 24 + 128 + SIDE * SIDE * 3)
    assert rows["files"].bytes % 512 == 0 and rows["JPEG records"].bytes < raw


def test_without_lmdb_its_row_says_how_to_get_it(src, monkeypatch, capfd):
    monkeypatch.setitem(sys.modules, "lmdb", None)
    assert main(["formats", str(src), "--resize", str(SIDE)]) == 0
    lines = capfd.readouterr().out.splitlines()
    assert [line[:20].rstrip() for line in lines] == ["", "files", "JPEG records", "raw-pixel records", "LMDB"]
    assert lines[0].split()[:2] == ["MB", "packing"] and lines[4].endswith("not installed: pip install lmdb")
    assert lines[3].split()[2] == "0.1"
    assert main(["formats", str(src), "--resize", str(SIDE), "--json"]) == 0
    row = json.loads(capfd.readouterr().out)["rows"][3]
    assert (row["status"], row["bytes"], row["packing_images_per_sec"]) == (
        "not installed: pip install lmdb",
        None,
        None,
    )
    assert main(["formats", str(src / "none")]) == 1
    assert capfd.readouterr().err.startswith("error: ")


def test_images_are_256_pixels_unless_asked(src, capfd):
    assert main(["formats", str(src), "--json"]) == 0
    rows = json.loads(capfd.readouterr().out)["rows"]
    assert rows[2]["bytes"] == COUNT * (8 + 24 + 128 + 256 * 256 * 3)
    assert compare_formats(src)[2].bytes == rows[2]["bytes"]
