"""Contests of processes: what fails is a row, the order turns, nobody works out of turn; and loaders side by side."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import cv2
import numpy as np
import psutil
import pytest

from gluontune import stats
from gluontune.bench import LIMIT, OURS, Entrant, document, hold
from gluontune.cli.main import main
from gluontune.core.errors import UsageError
from gluontune.loading import ThreadedLoader, from_records
from gluontune.records import RecordWriter, boxes_to_label, pixels_to_raw
from gluontune.runtime import mxnet
from gluontune.search.bench import loading
from gluontune.search.bench.contender import Contender

NOWHERE = Path("/nonexistent")
OTHERS = {  # in the peers' environment
    "DALI", "FFCV JPEG", "PyTorch DataLoader", "WebDataset", "MosaicML Streaming", "SPDL", "Grain", "nvImageCodec",
}  # fmt: skip
PEER_FAMILIES = {"Gluon DataLoader", "ImageRecordIter", *OTHERS}


def picture(height: int, width: int, seed: int) -> np.ndarray:
    rng = np.random.default_rng(seed)
    return cv2.resize(rng.integers(0, 256, (6, 6, 3), dtype=np.uint8), (width, height), interpolation=cv2.INTER_CUBIC)


def write(path: Path, payloads: list[bytes]) -> Path:
    with RecordWriter(path) as writer:
        for i, payload in enumerate(payloads):
            writer.write(payload, float(i % 5))
    return path


def jpegs(count: int, height: int, width: int) -> list[bytes]:
    return [cv2.imencode(".jpg", picture(height, width, i))[1].tobytes() for i in range(count)]


@pytest.fixture(scope="module")
def rec(tmp_path_factory) -> Path:
    return write(tmp_path_factory.mktemp("rec") / "photos.rec", jpegs(48, 96, 128))


def sleeper(name: str, peer: str = "them", sleep_s: float = 0.002, **options) -> Entrant:
    return Entrant(
        name, peer, "gluontune.search.bench._loaders_torch:Sleeper", {"units": 8, "sleep_s": sleep_s}, **options
    )


def fake(name: str, peer: str, rates: list[float]) -> Contender:
    contender = Contender(sleeper(name, peer))
    contender.rates = rates
    return contender


def test_failures_are_rows_and_the_others_go_on():
    entrants = [
        sleeper("good", OURS),
        sleeper("no interpreter", python=NOWHERE / "python"),
        Entrant("no module", "them", "gluontune_has_no_such_peer:make"),
        Entrant("raises", "them", "gluontune.search.bench._loaders_torch:Sleeper", {"units": 8, "sleep_s": "long"}),
        Entrant("exits", "them", "os:_exit", {"status": 3}),
        Entrant("aborts", "them", "os:abort"),
        Entrant("hangs", "them", "subprocess:run", {"args": ["sleep", "600"]}),
    ]
    before = set(psutil.Process().children(recursive=True))
    done = hold(entrants, rounds=2, seconds=0.01, time_limit=3.0)
    rows = {row["name"]: row for row in document(done, conditions={})["rows"]}
    assert rows["good"]["status"] == "ok" and rows["good"]["images_per_sec"]["n"] == 2
    assert {name: row["status"] for name, row in rows.items() if name != "good"} == {
        "no interpreter": "missing", "no module": "missing", "raises": "failed", "exits": "failed",
        "aborts": "failed", "hangs": "failed",
    }  # fmt: skip
    assert rows["no interpreter"]["reason"] == "not installed: make peers"
    assert "gluontune_has_no_such_peer is not installed" in rows["no module"]["reason"]
    assert "TypeError" in rows["raises"]["reason"]
    assert "ended by itself with code 3" in rows["exits"]["reason"]
    assert "SIGABRT" in rows["aborts"]["reason"]
    assert "no answer for 3 s" in rows["hangs"]["reason"]
    assert all(row["images_per_sec"] is None for name, row in rows.items() if name != "good")
    assert set(psutil.Process().children(recursive=True)) <= before  # the sleep of "hangs" among them


def test_a_contender_sleeps_while_it_is_not_its_turn():
    states: list[str] = []

    def look(done: list[Contender]) -> None:
        living = [c for c in psutil.Process().children() if c.status() != psutil.STATUS_ZOMBIE]
        children = [c for c in living if "child.py" in " ".join(c.cmdline())]
        until = time.monotonic() + 5  # one that waits for a core takes its signal when it gets one
        while time.monotonic() < until and any(c.status() != psutil.STATUS_STOPPED for c in children):
            time.sleep(0.01)
        states.extend(child.status() for child in children)
        assert [c.ask("count") > 3 for c in done] == [True, True]

    hold([sleeper("a"), sleeper("b")], rounds=2, seconds=0.02, finish=look)
    assert states == [psutil.STATUS_STOPPED] * 2


def test_rounds_are_interleaved_and_their_order_turns():
    said: list[str] = []
    hold([sleeper("a"), sleeper("b")], rounds=3, seconds=0.01, say=said.append)
    assert [line.split()[1] for line in said if line.startswith("measuring")] == ["a", "b", "b", "a", "a", "b"]


def test_how_much_is_a_slice():
    def steps(done: list[Contender]) -> None:
        counts.update({c.entrant.name: c.ask("count") for c in done})

    counts: dict[str, int] = {}
    entrants = [sleeper("once", slices="once"), sleeper("counted", slices="steps", sleep_s=0.01)]
    done = hold(entrants, rounds=2, seconds=0.2, finish=steps)
    assert counts["once"] == 3  # the warm-up and two rounds
    assert counts["counted"] > 4 + 2 * 10
    assert all(100 < rate <= 800 for rate in done[1].rates)  # 8 units, not one, in at least 10 ms


def test_children_end_with_a_killed_parent():
    code = (
        "from gluontune.bench import Entrant, hold\n"
        "e = Entrant('a', 'them', 'gluontune.search.bench._loaders_torch:Sleeper', {'units': 1, 'sleep_s': 0.01})\n"
        "hold([e], rounds=10**6, seconds=0.05, say=lambda line: print(line, flush=True))"
    )
    parent = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    while "measuring" not in parent.stdout.readline():
        pass
    children = psutil.Process(parent.pid).children()
    assert children
    parent.send_signal(signal.SIGKILL)
    parent.wait()
    parent.stdout.close()
    deadline = time.monotonic() + 10
    while any(c.is_running() and c.status() != psutil.STATUS_ZOMBIE for c in children):
        assert time.monotonic() < deadline, "the contender has outlived its parent"
        time.sleep(0.05)


def test_ratios_are_made_within_rounds_against_the_best_row_of_each_peer():
    ours, slow, fast, limit = [20.0, 40.0, 60.0], [1.0, 1.0, 1.0], [10.0, 20.0, 20.0], [40.0, 50.0, 80.0]
    field = [fake("mine", OURS, ours), fake("p1", "p", slow), fake("p2", "p", fast), fake("most", LIMIT, limit)]
    field.append(fake("broke off", "q", [99.0]))
    found = document(field, conditions={"size": 1}, limit="decode")
    assert found["ours"]["name"] == "mine" and set(found["ours"]["ratio_to"]) == {"p"}
    assert found["ours"]["ratio_to"]["p"]["row"] == "p2" and found["ours"]["ratio_to"]["p"]["median"] == 2.0
    assert found["limit"]["decode_images_per_sec"]["median"] == 50.0
    assert found["limit"]["share"]["median"] == 0.75
    rows = {row["name"]: row for row in found["rows"]}
    assert set(rows) == {"mine", "p1", "p2", "broke off"}
    assert rows["p1"]["ratio_to_best_peer"] == stats.ratio_interval(slow, fast)
    assert rows["broke off"]["status"] == "failed" and rows["broke off"]["images_per_sec"] is None


def test_bench_loading_end_to_end(rec, tmp_path, capfd):
    """The loaders that this environment has are measured; peers that are not there are rows, too."""
    out = tmp_path / "bench.json"
    arguments = ["bench", "loading", str(rec), "--size", "64", "--batch-size", "16", "--rounds", "1"]
    arguments += ["--seconds", "0.05", "--workers", "1", "--peers", str(NOWHERE), "--json", "--out", str(out)]
    assert main(arguments) == 0
    found = json.loads(capfd.readouterr().out)
    assert found == json.loads(out.read_text())
    assert {row["peer"] for row in found["rows"]} == {OURS, *PEER_FAMILIES}
    for row in found["rows"]:
        if row["peer"] in OTHERS:
            assert (row["status"], row["reason"]) == ("missing", "not installed: make peers"), row["name"]
        else:
            assert row["status"] == "ok", (row["name"], row["reason"])
            assert sorted(row["info"]["batch_shape"]) == [3, 16, 64, 64] and row["info"]["dtype"] == "uint8"
            assert row["memory_mib"] > 10
    assert found["limit"]["decode_images_per_sec"]["median"] > 0
    assert set(found["ours"]["ratio_to"]) == {"Gluon DataLoader", "ImageRecordIter"}
    assert found["conditions"]["augment"] == "random-resized-crop-flip" and found["machine"]["cpu"]


def test_images_of_the_crops_size_are_padded_and_cropped(tmp_path, capfd):
    path = write(tmp_path / "small.rec", jpegs(32, 32, 32))
    arguments = ["bench", "loading", str(path), "--size", "32", "--batch-size", "16", "--rounds", "1"]
    arguments += ["--seconds", "0.05", "--workers", "1", "--peers", str(NOWHERE)]
    assert main([*arguments, "--only", "gluontune", "--only", "Gluon DataLoader, 0", "--json"]) == 0
    found = json.loads(capfd.readouterr().out)
    assert found["conditions"]["augment"] == "pad-crop-flip"
    assert [row["status"] for row in found["rows"]] == ["ok"] * 3
    assert found["rows"][1]["name"] == "gluontune resident"
    assert main([*arguments, "--only", "nobody"]) == 2
    assert "there are gluontune threaded, 1 threads" in capfd.readouterr().err


def test_the_field_fits_what_the_file_holds(rec, tmp_path):
    raw = write(tmp_path / "raw.rec", [pixels_to_raw(picture(40, 60, i)) for i in range(8)])
    assert loading.kind_of(rec, 96) == ("jpeg", False)
    assert loading.kind_of(raw, 40) == ("raw", False)
    field = loading.entrants(str(raw), "raw", 32, 4, loading.CROP, 2, 1.0, NOWHERE, str(tmp_path))
    assert {e.peer for e in field} == {OURS, "FFCV raw pixels", "PyTorch DataLoader"}
    field = loading.entrants(str(rec), "jpeg", 64, 4, loading.CROP, 2, 1.0, NOWHERE, str(tmp_path))
    assert {e.peer for e in field} == {OURS, LIMIT, *PEER_FAMILIES}
    assert len({e.name for e in field}) == len(field)
    with pytest.raises(UsageError, match="augment 'flip': choose auto"):
        loading.run([rec], augment="flip")


@pytest.mark.mxnet
def test_detection_records_with_gluoncvs_loader_beside(tmp_path, capfd):
    with RecordWriter(tmp_path / "boxes.rec") as writer:
        for i, image in enumerate(jpegs(24, 48, 64)):
            writer.write(image, boxes_to_label([[k, 0.1, 0.2, 0.5, 0.9] for k in range(3 if i else 1)]))
    arguments = ["bench", "loading", str(tmp_path / "boxes.rec"), "--boxes", "--size", "32", "--batch-size", "8"]
    arguments += ["--rounds", "1", "--seconds", "0.05", "--workers", "1", "--json"]
    assert main(arguments) == 0
    found = json.loads(capfd.readouterr().out)
    assert [(row["peer"], row["status"]) for row in found["rows"]] == [(OURS, "ok")] + [("gluon-cv", "ok")] * 2
    assert all(row["info"]["batch_shape"] == [8, 32, 32, 3] for row in found["rows"])
    assert all(row["info"]["boxes"] == [8, 3, 5] for row in found["rows"])
    assert found["conditions"]["augment"] == "stretch-flip" and set(found["ours"]["ratio_to"]) == {"gluon-cv"}
    assert main([*arguments, "--augment", "pad-crop-flip"]) == 2
    assert "with --boxes it is stretch-flip" in capfd.readouterr().err


@pytest.mark.parametrize("height,width", [(96, 96), (96, 128), (128, 96)])
def test_the_same_data_through_other_loaders_give_the_same_pixels(tmp_path, height, width):
    """Centre crops of 84 from a shorter side of 96 need no resize: what remains is the decoder's rounding."""
    mx = mxnet()
    path = write(tmp_path / "same.rec", jpegs(12, height, width))
    options = {"batch_size": 12, "image_shape": (84, 84, 3), "augment": "center-crop"}
    images, labels = next(ThreadedLoader(from_records(path), num_workers=2, **options).epoch(0))
    theirs = next(
        mx.io.ImageRecordUInt8Iter(path_imgrec=str(path), data_shape=(3, 84, 84), batch_size=12, verbose=False)
    )
    vision = mx.gluon.data.vision
    data = vision.ImageRecordDataset(str(path)).transform_first(vision.transforms.CenterCrop(84))
    gluon, gluon_labels = next(iter(mx.gluon.data.DataLoader(data, 12)))
    for other, other_labels in (
        (theirs.data[0].asnumpy().transpose(0, 2, 3, 1), theirs.label[0].asnumpy()),
        (gluon.asnumpy(), gluon_labels.asnumpy()),
    ):
        assert np.array_equal(other_labels, labels)
        difference = np.abs(images.astype(int) - other)
        assert difference.max() <= 4 and difference.mean() < 0.3, (difference.max(), difference.mean())
