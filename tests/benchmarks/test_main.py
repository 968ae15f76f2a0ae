"""``python -m benchmarks``: its commands, the pages of its documents, and where old spellings lead."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.__main__ import main
from gluontune.cli import main as cli
from gluontune.cli.bench import MOVED
from gluontune.report import document_types as documents

ROOT = Path(__file__).resolve().parents[2]


def test_the_commands_are_found_in_a_clone(tmp_path):
    ran = subprocess.run([sys.executable, "-m", "benchmarks"], cwd=ROOT, capture_output=True, text=True)
    assert ran.returncode == 0
    assert {line.split()[0] for line in ran.stdout.splitlines() if line.startswith("  ")} >= {*MOVED, "deck", "tables"}


@pytest.mark.parametrize("name", [*MOVED, "deck"])
def test_each_command_explains_itself_and_its_old_spelling_says_where_it_went(name, capfd):
    assert main([name, "--help"]) == 0
    assert "--out" in capfd.readouterr().out
    old = ["inference", "--deck"] if name == "deck" else [name, "--help", "--seconds", "3", "word"]
    assert cli.main(["bench", *old]) == 2
    said = capfd.readouterr()
    assert f"python -m benchmarks {name}" in said.err and said.err.count("\n") == 1 and not said.out


def test_what_moved_is_no_part_of_the_commands_that_are_listed(capfd):
    assert cli.main(["bench", "--help"]) == 0
    listed = capfd.readouterr().out.split("Commands:")[1]
    assert [line.split()[0] for line in listed.splitlines() if line[2:3].isalpha()] == [
        "loading", "packing", "training", "inference", "bridge", "recipes", "scripts", "gpu"
    ]  # fmt: skip


def test_the_report_reads_published_figures_and_studies_of_optimizers(tmp_path, monkeypatch, capfd):
    monkeypatch.setattr(documents, "KINDS", dict(documents.KINDS))
    study = {"kind": "optimizers", "schema_version": 1, "given": {"part": "step-time", "net": "mlp"}, "done": [],
             "title": "One update", "sentence": "nothing measured", "created": "2026-01-31T10:00:00", "complete": False,
             "machine": {}}  # fmt: skip
    (tmp_path / "study").mkdir()
    (tmp_path / "study" / "optimizers.json").write_text(json.dumps(study))
    page = tmp_path / "page.html"
    figures = str(ROOT / "benchmarks" / "networks.json")
    assert main(["report", str(tmp_path / "study"), figures, "--out", str(page), "--json"]) == 0
    assert [s["kind"] for s in json.loads(capfd.readouterr().out)["sources"]] == ["optimizers", "published"]
    assert "was interrupted" in page.read_text() and "mobilenetv3_small" in page.read_text()
    (tmp_path / "study" / "optimizers.json").write_text(json.dumps({**study, "machine": None, "done": 3}))
    assert main(["report", str(tmp_path / "study" / "optimizers.json")]) == 1
    assert "a document of `python -m benchmarks optimizers`" in capfd.readouterr().err
