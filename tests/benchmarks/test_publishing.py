"""Published documents are made from documents of runs: nothing is written by hand, and nothing half is published."""

from __future__ import annotations

import json
import shutil

import pytest
from drawn_ladders import drawn

from benchmarks import publishing, tables
from benchmarks.published import check_published
from gluontune.core.errors import UsageError
from gluontune.recipe import Recipe
from gluontune.runtime import machine_facts

WANTS_GIT = pytest.mark.skipif(shutil.which("git") is None, reason="wants git")


def written(tmp_path, document):
    path = tmp_path / "run.json"
    path.write_text(json.dumps(document))
    return path


def published(tmp_path, document):
    path = publishing.publish("figure", written(tmp_path, document), tmp_path)
    found = json.loads(path.read_text())
    check_published(found, path.name)
    assert path.name == "figure.json" and found["provenance"].split()[-1] and found["date"] == document["created"][:10]
    return found


STAGES = {
    "as is": {"status": "ok", "last": "", "seconds": 2.0},
    "captured": {"status": "ok", "last": "", "cell": "1e-14 in 20 steps"},
    "torch": {"status": "ok", "last": "", "steps": 1200, "steps_on_torch": 1198},
    "in turn": {
        "status": "ok",
        "last": "",
        "ratios": {"run": {"median": 1.618, "ci95": [1.5, 1.7], "n": 9}},
        "losses": {"run": {"gap": 0.0, "allowed": 1e-5, "steps": 50}},
    },
    "migrated": {"status": "refused", "last": "error: train.py:3: a | b"},
}


@WANTS_GIT
def test_scripts_are_rows_with_their_place_and_what_each_stage_came_to(tmp_path):
    document = {
        "schema_version": 1, "kind": "scripts", "complete": True, "created": "2026-11-27T11:00:00+00:00",
        "machine": machine_facts(),
        "rows": [
            {"name": "mxnet-mnist", "stages": STAGES},
            {"name": "mine", "stages": {"as is": {"status": "failed", "last": "no data"}}},
        ],
        "figures": {
            "as is": {"ok": 1, "of": 2}, "captured": {"ok": 1, "of": 1},
            "in turn": {"ok": 1, "of": 1, "run": {"median": 1.618, "least": 1.618, "n": 1}},
        },
    }  # fmt: skip
    found = published(tmp_path, document)
    (row,) = found["rows"]  # what does not run as it is, is no row
    assert row[0].startswith("[mxnet-mnist](https://github.com/apache/mxnet/blob/3f8f3be9987e")
    assert row[1:] == [
        "1e-14 in 20 steps", {"median": 1.62, "n": 9, "ci95": [1.5, 1.7]}, "50 equal", "1,198 of 1,200",
        "refused: train.py:3: a / b",
    ]  # fmt: skip
    assert "PyTorch ÷ as is" not in found["columns"]  # nothing in it
    assert "run ÷ as is: median 1.62, least 1.62, of 1" in found["notes"][0]
    assert "| 1.62 (1.50–1.70) |" in tables.table(found)


@WANTS_GIT
def test_a_ladder_is_its_rungs(tmp_path):
    ladder = {**drawn(7, tmp_path), "machine": machine_facts()}
    found = published(tmp_path, ladder)
    assert [row[0] for row in found["rows"]] == [rung["name"] for rung in ladder["rungs"]]
    assert found["rows"][0][1] == "as written" and found["rows"][0][-1] == "start"


@pytest.mark.parametrize(
    ("document", "words"),
    [
        ({"kind": "tune", "complete": True}, "of kind 'tune'"),
        ({"kind": "scripts", "complete": False}, "was interrupted"),
    ],
)
def test_what_is_no_whole_run_is_not_published(tmp_path, document, words):
    with pytest.raises(UsageError, match=words):
        publishing.publish("figure", written(tmp_path, document), tmp_path)
    assert not (tmp_path / "figure.json").exists()


RATIO = {"median": 2.3456, "ci95": [2.2, 2.5], "n": 3}
SPEEDS = {"off": RATIO, "on": RATIO, "speedup": RATIO}
DECK = {
    "kind": "onednn-deck", "complete": True, "conditions": {"batch_size": 128, "rounds": 3},
    "geometric_mean": {"latency": 2.5, "throughput": 3.25}, "ours": ["ResNet-50 v1"],
    "rows": [
        {"name": "ResNet-50 v1", "status": "ok", "output_delta": 4.6e-7, "deck": {"latency": 7.45, "throughput": None},
         "latency": SPEEDS, "throughput": SPEEDS},
        {"name": "VGG16", "status": "failed", "output_delta": None, "deck": {"latency": 1, "throughput": 1},
         "latency": None, "throughput": None},
    ],
}  # fmt: skip
DEVICES = {
    "kind": "devices", "conditions": {"recipe": Recipe().to_dict(), "ranks": 2, "rounds": 9}, "ours": {}, "limit": {},
    "rows": [{"name": "one process", "samples_per_sec": RATIO, "status": "ok"},
             {"name": "Horovod, 2 ranks", "samples_per_sec": None, "status": "failed"}],
    "ratios": {"one process": {"median": 0.961, "ci95": [0.9, 1.0], "n": 9}},
}  # fmt: skip
NETS = {
    "kind": "networks", "conditions": {"pace": {"rounds": 15}},
    "figures": {"networks": 2, "failed": 1, "made_slower": 0, "made_faster": 1, "arrays": 40,
                "arrays_above_tolerance": 0},
    "rows": [
        {"name": "resnet18_v1", "status": "ok", "verdict": "faster", "series": [{"ratio_to_best_plain": RATIO}],
         "choice": {"settings": "static", "rewrites": ["pool-to-mean"]}},
        {"name": "vgg16", "status": "failed", "verdict": None, "series": [], "choice": None},
    ],
}  # fmt: skip


@WANTS_GIT
@pytest.mark.parametrize(
    ("document", "rows"),
    [
        (DECK, [["ResNet-50 v1", 2.35, 7.45, 2.35, "", "5e-07"], ["VGG16", "", "", "", "", "failed"]]),
        (DEVICES, [["one process", 2, 0.96], ["Horovod, 2 ranks", "failed", ""]]),
        (NETS, [["resnet18_v1", 2.35, "faster", "static + pool-to-mean"], ["vgg16", "", "failed", ""]]),
    ],
)
def test_what_a_harness_wrote_is_published_as_it_knows_its_document(tmp_path, document, rows):
    whole = {"created": "2026-11-28T11:00:00+00:00", "machine": machine_facts(), **document}
    found = published(tmp_path, whole)
    middles = [[cell["median"] if isinstance(cell, dict) else cell for cell in row] for row in found["rows"]]
    assert middles == rows and len(found["columns"]) == len(rows[0])
