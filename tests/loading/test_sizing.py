"""Sizing: what is measured, what is chosen, and what is said about it."""

from __future__ import annotations

import time

import cv2
import numpy as np
import pytest

import gluontune as gt
from gluontune.core.errors import GluontuneError, UnknownNameError, UsageError
from gluontune.loading import measure_disk, sizing
from gluontune.loading.sizing import Point, choose, worker_counts
from gluontune.records import RecordWriter
from gluontune.runtime import disk as disk_module


@pytest.fixture(scope="module")
def rec(tmp_path_factory):
    path, rng = tmp_path_factory.mktemp("size") / "small.rec", np.random.default_rng(0)
    with RecordWriter(path) as writer:
        for i in range(64):
            image = cv2.resize(rng.integers(0, 256, (5, 5, 3), dtype=np.uint8), (48, 48))
            writer.write(cv2.imencode(".jpg", image)[1].tobytes(), label=i % 4)
    return path


def size(source, **changes):
    asked = {"image_shape": (32, 32, 3), "batch_size": 8, "seconds": 0.06, "disk": False}
    return gt.loading.size(source, **{**asked, **changes})


def test_a_slow_step_needs_no_worker(rec):
    """A step of 80 ms gives a batch of 8 small images all the time it needs."""
    report = size(rec, step_time_ms=80.0, loaders=["threaded"], max_workers=1)
    assert report.needed_samples_per_sec == pytest.approx(100)
    assert {p.num_workers for p in report.points if p.prefetch is None} == {0, 1}
    for point in report.points:
        assert point.samples_per_sec < 101 and 0 <= point.wait_pct <= 100
        assert point.fed == (point.wait_pct <= sizing.FED_WAIT_PCT)
    assert report.choice in report.points


def test_a_starved_step_is_seen(rec):
    class SlowDisk:
        labels = np.zeros(64, np.int64)
        inner = gt.loading.from_records(rec)

        def __len__(self):
            return 64

        def read(self, index):
            time.sleep(0.005)
            return self.inner.read(index)

    report = size(SlowDisk(), step_time_ms=2.0, loaders=["threaded"], max_workers=0)
    (point,) = report.points
    assert point.wait_pct > 60 and point.fed is False
    assert "loading limits this job" in report.reason


def test_a_real_step_is_timed_and_run(rec):
    calls = []

    def step(images, labels):
        calls.append((images.shape, labels.dtype))
        time.sleep(0.005)

    report = size(rec, step=step, loaders=["threaded"], max_workers=0, augment="pad-crop-flip")
    assert set(calls) == {((8, 32, 32, 3), np.dtype(np.int64))}
    assert 5 <= report.step_time_ms < 500  # milliseconds, on a busy machine, too


def test_without_a_step_the_choice_is_near_the_fastest(rec):
    report = size(rec, max_workers=1)
    curve = [p for p in report.points if p.prefetch is None]
    best = max(p.samples_per_sec for p in curve)
    assert report.step_time_ms is None and all(p.fed is None and p.wait_pct is None for p in curve)
    assert report.choice.samples_per_sec > 0 and best > 0
    assert "step time" in report.reason
    assert report.decode_samples_per_sec > 0 and report.mean_bytes > 100
    assert any("'resident' left out" in note for note in report.notes)  # the crop would see shrunk images


def test_resident_is_measured_where_it_fits_and_said_where_not(rec, monkeypatch):
    report = size(rec, augment="pad-crop-flip", max_workers=0)
    assert {p.loader for p in report.points} == {"threaded", "resident"}
    monkeypatch.setattr("gluontune.loading.resident.usable_memory", lambda: 1000)
    report = size(rec, augment="pad-crop-flip", max_workers=0)
    assert {p.loader for p in report.points} == {"threaded"}
    assert any("do not fit" in note for note in report.notes)


def test_the_least_that_feeds_is_chosen():
    points = [
        Point("threaded", 0, None, 100.0, 60.0, False),
        Point("threaded", 1, None, 195.0, 1.9, True),
        Point("threaded", 2, None, 200.0, 0.0, True),
    ]
    assert choose(points, 200.0)[0] is points[1]
    chosen, reason = choose(points[:1], 200.0)
    assert chosen is points[0] and "loading limits this job to 100" in reason
    assert choose(points, None)[0] is points[1]
    resident = Point("resident", 0, None, 200.0, 0.0, True)
    assert choose([*points, resident], 200.0)[0] is resident
    threaded = Point("threaded", 0, None, 200.0, 0.0, True)
    assert choose([resident, threaded], 200.0)[0] is threaded  # it needs less memory


def test_worker_counts_follow_the_usable_cores():
    assert worker_counts(1, 0) == [0, 1]
    assert worker_counts(6, 3) == [0, 1, 2, 3, 4, 6]
    assert worker_counts(4, 29, most=2) == [0, 1, 2]


def test_the_decks_rule_stands_beside(rec):
    report = size(rec, loaders=["threaded"], max_workers=0)
    assert report.rule["num_workers"] == gt.loading.deck_rule()
    if report.rule["num_workers"] == 0:
        assert report.rule["samples_per_sec"] == report.points[0].samples_per_sec


def test_splits_are_sized_like_files(rec):
    split = gt.loading.from_records(rec)
    assert split.labels.tolist() == [i % 4 for i in range(64)]
    assert size(split, max_workers=0, loaders=["threaded"]).points[0].samples_per_sec > 0


def test_data_sets_are_sized_by_name():
    report = size("sample", image_shape=(28, 28, 1), augment="flip", max_workers=0)
    assert {p.loader for p in report.points} == {"threaded", "resident"}
    with pytest.raises(UnknownNameError, match="did you mean 'sample'"):
        size("samples")


def test_the_report_is_json(rec):
    import json

    document = json.loads(json.dumps(size(rec, max_workers=0, disk=True).to_dict(), allow_nan=False))
    assert document["choice"]["loader"] == "threaded"
    assert [row["queue_depth"] for row in document["disk"]["random"]] == [1, 4, 16]
    assert document["disk"]["sequential_samples_per_sec"] > 0


def test_wrong_requests_are_refused(rec, tmp_path):
    with pytest.raises(UnknownNameError, match="did you mean 'threaded'"):
        size(rec, loaders=["threads"])
    for changes, words in (({"step_time_ms": 0}, "step_time_ms=0"), ({"seconds": 0}, "seconds=0")):
        with pytest.raises(UsageError, match=words):
            size(rec, **changes)
    with pytest.raises(GluontuneError, match=r"absent\.rec"):
        size(tmp_path / "absent.rec")
    empty = tmp_path / "empty.rec"
    empty.write_bytes(b"")
    with pytest.raises(GluontuneError, match="no records"):
        size(empty)


def test_progress_names_what_is_measured(rec):
    said: list[str] = []
    size(rec, loaders=["threaded"], max_workers=0, progress=said.append)
    assert any("threaded, 0 workers" in line for line in said) and "decoding alone, on all cores" in said


def test_the_disk_is_read_at_its_own_pace(tmp_path):
    path = tmp_path / "data"
    path.write_bytes(bytes(3 << 20))
    result = measure_disk(path, item_bytes=5000, seconds=0.05)
    assert result["item_bytes"] == 8192 and result["sequential_mib_per_sec"] > 0
    for row in result["random"]:
        assert row["mib_per_sec"] == pytest.approx(row["reads_per_sec"] * 8192 / 2**20)
    small = tmp_path / "small"
    small.write_bytes(b"x" * 10)
    assert measure_disk(small, seconds=0.02)["random"][0]["reads_per_sec"] > 0
    with pytest.raises(GluontuneError, match="no such file"):
        measure_disk(tmp_path / "absent")


def test_a_file_system_without_direct_reads_is_said(tmp_path, monkeypatch):
    path = tmp_path / "data"
    path.write_bytes(bytes(1 << 16))
    monkeypatch.setattr(disk_module.os, "O_DIRECT", 0, raising=False)
    assert measure_disk(path, seconds=0.02)["cached"] is True
