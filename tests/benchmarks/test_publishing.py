"""Published documents are made from documents of runs: nothing is written by hand, and nothing half is published."""

from __future__ import annotations

import json
import shutil

import pytest
from drawn_ladders import drawn

from benchmarks import publishing, tables
from benchmarks.published import check_published
from gluontune.core.errors import UsageError
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
