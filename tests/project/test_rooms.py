"""The rooms that need no mxnet: every module of theirs is imported in a process that refuses it."""

from __future__ import annotations

import doctest
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

IMPORT_ALL = """
import importlib, pathlib, sys
root, rooms, refused = pathlib.Path(sys.argv[1]), sys.argv[2].split(","), sys.argv[3].split(",")
for name in refused:
    sys.modules[name] = None  # importing it raises ModuleNotFoundError
count = 0
for room in rooms:
    for path in sorted((root / "gluontune" / room).rglob("*.py")):
        if path.name != "__main__.py":
            importlib.import_module(".".join(path.relative_to(root).with_suffix("").parts))
            count += 1
print(count)
"""


def import_all(rooms, refused=("mxnet", "gluoncv", "torch")):
    command = [sys.executable, "-c", IMPORT_ALL, str(ROOT), ",".join(rooms), ",".join(refused)]
    return subprocess.run(command, capture_output=True, text=True, timeout=300, cwd=ROOT)


def rooms():
    import importlib.util

    spec = importlib.util.spec_from_file_location("gluontune_rooms_conftest", ROOT / "conftest.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_every_module_of_these_rooms_is_imported_without_mxnet_and_torch():
    conftest = rooms()
    done = import_all(conftest.ROOMS)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) >= 80


def test_a_module_that_wants_mxnet_would_be_seen():
    done = import_all(["compute"])
    assert done.returncode == 1 and "mxnet" in done.stderr


def test_what_the_rooms_run_takes_and_what_it_leaves():
    conftest = rooms()
    taken = {f"{p.parent.name}/{p.name}" for p in (ROOT / "tests").rglob("test_*.py") if conftest.in_rooms(p)}
    assert {"codec/test_codec.py", "records/test_pack.py", "project/test_rooms.py", "cli/test_pack.py"} <= taken
    assert not [name for name in taken if name.startswith(("training", "compute", "search/test_tune"))]
    for name in conftest.MXNET_FILES:
        assert (ROOT / "tests" / name).is_file()


@pytest.mark.parametrize(
    ("line", "wants"),
    [("net = mxnet().gluon.nn.Dense(1)", True), ("mx = gt.runtime.mxnet()", True), ("from_mxnet()", False)],
)
def test_a_doctest_that_calls_mxnet_is_left_out_of_the_rooms_run(line, wants):
    item = pytest.DoctestItem.__new__(pytest.DoctestItem)
    item.dtest = doctest.DocTestParser().get_doctest(f">>> {line}\n", {}, "an example", None, 0)
    assert rooms()._needs_mxnet(item) is wants
