"""Published figures are measured by their own commands, and anew when their code computes otherwise."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

import pytest

from benchmarks import measuring
from benchmarks.published import check_published
from gluontune.core.errors import GluontuneError, UsageError

WANTS_GIT = pytest.mark.skipif(shutil.which("git") is None, reason="wants git")
RECORDS = Path(__file__).parents[2] / "data" / "fashion-mnist-sample-test.rec"
CODE = ["gluontune/loading"]


def git(root, *words):
    subprocess.run(
        ["git", "-c", "user.name=a", "-c", "user.email=a@b", *words], cwd=root, check=True, capture_output=True
    )


@pytest.fixture
def clone(tmp_path):
    if shutil.which("git") is None:
        pytest.skip("wants git")
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / "a.py").write_text('"""Words."""\n\ndef f(x):\n    """More."""\n    return x + 1  # one\n')
    (tmp_path / "code" / "a.c").write_text("int a;\n")
    git(tmp_path, "init", "-q")
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "-qm", "first")
    return tmp_path


@pytest.mark.parametrize(
    ("name", "text", "changed"),
    [
        ("a.py", "def f(x):\n    '''Other words.'''\n    return (x\n            + 1)\n", []),
        ("a.py", '"""Words."""\n\ndef f(x):\n    """More."""\n    return x + 2\n', ["code/a.py"]),
        ("a.c", "int a; // a\n", ["code/a.c"]),
        ("new.py", "x = 1\n", ["code/new.py"]),
    ],
)
def test_what_computes_otherwise_is_changed_and_what_only_reads_otherwise_is_not(clone, name, text, changed):
    (clone / "code" / name).write_text(text)
    git(clone, "add", ".")
    assert measuring.changed_since("HEAD", ["code"], clone) == changed
    git(clone, "commit", "-qm", "second", "--allow-empty")
    assert measuring.changed_since("HEAD~1", ["code"], clone) == changed


def test_an_unknown_commit_is_an_error(clone):
    with pytest.raises(GluontuneError, match="deadbeef"):
        measuring.changed_since("deadbeef", ["code"], clone)


@WANTS_GIT
def test_figures_are_measured_and_published_and_one_that_fails_does_not_end_the_rest(tmp_path, monkeypatch):
    run = f"gluontune bench loading {RECORDS} --size 28 --rounds 2 --seconds 0.05 --only gluontune --workers 1"
    entries = {
        "broken": {"commands": ["gluontune bench loading no-such.rec --out $out/run.json"], "code": CODE},
        "photos": {"commands": ["gluontune bench packing $data/photos --out $out/run.json"], "code": CODE},
        "loading": {"commands": [f"{run} --out $out/run.json"], "code": CODE},
    }
    monkeypatch.setattr(measuring, "figures", lambda names: entries)
    found = measuring.measure([], tmp_path / "runs", folder=tmp_path)
    assert found["broken"].startswith("failed: ") and found["photos"] == "needs --data"
    assert found["loading"] == "measured" and not (tmp_path / "broken.json").exists()
    document = json.loads((tmp_path / "loading.json").read_text())
    check_published(document)
    assert document["command"] == run and document["columns"][0] == "name" and document["n"] == "2 repeats"
    assert all(row[0].startswith("gluontune") for row in document["rows"])
    stale = measuring.changed_since(document["commit"], CODE)  # what this clone has not committed
    assert bool(measuring.state("loading", CODE, tmp_path)) == bool(stale)


def test_every_entry_names_code_that_is_there_and_commands_that_leave_its_document():
    root = Path(measuring.__file__).parents[1]
    for ident, entry in measuring.figures().items():
        assert all((root / place).exists() for place in entry["code"]), ident
        assert "--out $out" in entry["commands"][-1], ident
    with pytest.raises(UsageError, match="nothing: no such figure; there are ladder-sample"):
        measuring.figures(["nothing"])


def test_how_a_figure_stands(tmp_path):
    assert measuring.state("x", CODE, tmp_path) == "never measured"
    (tmp_path / "x.json").write_text('{"date": "2026-11-22"}')
    assert measuring.state("x", CODE, tmp_path) == "of 2026-11-22, no commit named"
