"""Every process of the package imports its own modules and Python's, whatever lies where the user works."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from gluontune.core.interpreter import python
from gluontune.runtime.launch import child_env

SOURCE = Path(__file__).parents[2] / "gluontune"
#: Files that name Python's program without :func:`python`: what they start, or write, is the user's own program.
OTHERS = {
    "core/interpreter.py": "the one place",
    "capture/api.py": "the project that was written, which imports its own files",
    "capture/running.py": "Python's own words for a module that is not there",
    "search/bench/script_stages.py": "scripts of others, as they are and by commands that run them in their folder",
    "search/bench/contender.py": "a peer's Python runs a file by its path",
    "search/bench/tta_peers.py": "a peer's script",
    "convert/migrate/project.py": "the project that was written, which imports its own files",
    "course/assessment/assessing.py": "the learner's script",
    "monitor/command.py": "an example of a user's command",
    "parallel/summing.py": "the user's script, once more for each rank",
    "runtime/doctor/checks_data.py": "looks at a path",
    "runtime/launch.py": "Jupyter's kernel, whose notebooks import what lies beside them",
}
LIKE_PYTHONS = ("queue", "random", "types", "token", "calendar", "typing", "functools", "json", "psutil", "numpy")


@pytest.fixture
def hostile(tmp_path):
    for name in LIKE_PYTHONS:
        (tmp_path / f"{name}.py").write_text(f"raise SystemExit('{name}.py of the user ran')\n")
    return tmp_path


def test_one_place_starts_python():
    found = {
        str(path.relative_to(SOURCE)) for path in SOURCE.rglob("*.py") if "sys.executable" in path.read_text("utf-8")
    }
    assert found == set(OTHERS)


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="wants Linux's loader")
@pytest.mark.parametrize("set_by", ["cv2", "somebody"])
def test_a_library_in_the_current_folder_is_not_loaded(tmp_path, monkeypatch, set_by):
    """``import cv2`` ends LD_LIBRARY_PATH with an empty entry, which is the current folder."""
    for entry in Path("/proc/self/maps").read_text().split():
        if re.search(r"/libm[.-][\d.so-]+$", entry):
            shutil.copy(entry, tmp_path / "libours.so.9")
    assert (tmp_path / "libours.so.9").exists()
    monkeypatch.setenv("LD_LIBRARY_PATH", "/nowhere::/other")
    if set_by == "cv2":
        monkeypatch.delenv("LD_LIBRARY_PATH")
        code = "import cv2, os; print(os.environ['LD_LIBRARY_PATH'])"
        left = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip()
        monkeypatch.setenv("LD_LIBRARY_PATH", left)
    words = ("-c", "import ctypes; ctypes.CDLL('libours.so.9')")
    for command, env in ((python(*words), None), ([sys.executable, *words], child_env("as-installed"))):
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, env=env)
        assert done.returncode == 1 and "libours.so.9: cannot open" in done.stderr
    assert child_env("tuned")["LD_LIBRARY_PATH"] == os.environ["LD_LIBRARY_PATH"]


@pytest.mark.parametrize("older", [False, True], ids=["this Python", "as before 3.11"])
def test_the_current_folder_is_no_part_of_a_child(hostile, older):
    def said(*words):
        command = [word for word in python(*words) if not (older and word == "-P")]
        done = subprocess.run(command, cwd=hostile, capture_output=True, text=True, timeout=60)
        assert done.returncode == 0, done.stderr
        return done.stdout

    code = f"import sys, {', '.join(LIKE_PYTHONS)}\nfrom gluontune import __file__ as home\n"
    code += "print(json.dumps([sys.argv, sys.path, home]))"
    argv, path, home = json.loads(said("-c", code, "a", "b"))
    assert argv == ["-c", "a", "b"] and Path(home) == SOURCE / "__init__.py"
    assert not {"", str(hostile), str(SOURCE), str(SOURCE / "core")} & set(path)
    assert "usage: " in said("-m", "json.tool", "--help")


def test_no_module_of_ours_is_called_like_one_of_pythons():
    """Before 3.11, the folder of the file that starts comes first for a moment."""
    names = {path.stem for path in SOURCE.iterdir()}
    assert not names & set(getattr(sys, "stdlib_module_names", LIKE_PYTHONS)) - {"__future__"}


@pytest.mark.mxnet
def test_a_job_trains_among_files_called_like_pythons_and_imports_its_neighbours(hostile):
    (hostile / "jobs").mkdir()
    (hostile / "of_the_project.py").write_text("NAME = 'sample'\n")
    (hostile / "jobs" / "beside.py").write_text("import of_the_project as p\ndef data(): return p.NAME\n")
    (hostile / "jobs" / "colorsys.py").write_text("raise SystemExit('colorsys.py of the user ran')\n")
    (hostile / "jobs" / "job.py").write_text("import colorsys\nfrom beside import data\n")
    few = ["--train-samples=128", "--val-samples=64", "--num-workers=0", "--epochs=1", "--net=mlp", "--json"]
    command = python("-m", "gluontune", "train", "--job=jobs/job.py", *few)
    done = subprocess.run(command, cwd=hostile, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["status"] == "ok" and "of the user ran" not in done.stderr
