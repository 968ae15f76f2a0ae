"""The wheel for real: ``make dist`` builds it, and then installs it in clean environments and runs these there."""

from __future__ import annotations

import json
import os
import subprocess
import tarfile
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
TRIES = [place.rpartition(":")[::2] for place in os.environ.get("DIST_TRIES", "").split()]


def wheel():
    (found,) = (ROOT / "dist").glob("*.whl")
    return found


@pytest.fixture(scope="session", params=TRIES, ids=[f"{Path(p).name}[{extra}]" for p, extra in TRIES])
def place(request, tmp_path_factory):
    """A clean environment with the wheel, an empty folder to work in, and the extra."""
    python, extra = request.param
    folder = tmp_path_factory.mktemp("wheel")
    python = ROOT / python if "/" in python else python
    subprocess.run([python, "-m", "venv", folder / "env"], check=True)
    wanted = f"{wheel()}[{extra}]" if extra else str(wheel())
    pip = [folder / "env" / "bin" / "python", "-m", "pip", "--disable-pip-version-check"]
    subprocess.run([*pip, "install", "-q", "-c", ROOT / "constraints.txt", wanted], check=True)
    (folder / "work").mkdir()
    return folder, extra


def gluontune(place, *arguments, code=0):
    folder, _ = place
    env = {k: v for k, v in os.environ.items() if not k.startswith(("PYTHON", "GLUONTUNE_"))}
    env["GLUONTUNE_DATA"] = str(folder / "data")
    ran = subprocess.run(
        [folder / "env" / "bin" / "gluontune", *arguments],
        cwd=folder / "work",
        env=env,
        capture_output=True,
        text=True,
    )
    assert ran.returncode == code, ran.stdout[-2000:] + ran.stderr[-2000:]
    return ran.stdout


def has_mxnet(place):
    """No extra brings it, or one that has no wheel for this Python."""
    code = "import importlib.util as u, sys; sys.exit(u.find_spec('mxnet') is None)"
    return subprocess.run([place[0] / "env" / "bin" / "python", "-c", code]).returncode == 0


def test_lessons_job_and_records(place):
    listed = json.loads(gluontune(place, "course", "list", "--json"))["lessons"]
    assert len(listed) == len(list((ROOT / "notebooks").glob("*.ipynb")))
    assert all("_notebooks" in lesson["path"] and lesson["question"] for lesson in listed)
    assert "gluontune doctor" in gluontune(place)
    gluontune(place, "init", "job.py")
    sets = json.loads(gluontune(place, "data", "list", "--json"))
    assert "sample" in json.dumps(sets)
    (sample,) = (place[0] / "env").rglob("fashion-mnist-sample-test.rec")
    assert json.loads(gluontune(place, "verify", str(sample), "--json"))["whole"] == 2000


def test_the_doctor_names_no_makefile(place):
    lacks = not has_mxnet(place)
    findings = json.loads(gluontune(place, "doctor", "--json", code=1 if lacks else 0))["findings"]
    errors = {finding["id"]: finding["fix"] for finding in findings if finding["severity"] == "error"}
    assert ("gluontune[cpu]" in errors["mxnet"]) if lacks else not errors
    assert not [f["id"] for f in findings if "make " in (f["fix"] or "") or "Makefile" in f["message"]]


def test_it_trains_and_climbs(place):
    if not has_mxnet(place):
        gluontune(place, "train", "--dataset", "sample", code=1)
        return
    trained = json.loads(gluontune(place, "train", "--dataset", "sample", "--epochs", "1", "--json"))
    assert trained["val_accuracy"][0] > 0.5
    gluontune(place, "ladder", "--quick", "--out", "climb")
    ladder = json.loads((place[0] / "work" / "climb" / "ladder.json").read_text(encoding="utf-8"))
    status = {rung["name"]: rung["status"] for rung in ladder["rungs"]}
    assert status["environment"] == "ran" and ladder["best"] and "failed" not in status.values(), status


_BRIDGE = """
import json, sys
import numpy as np
import gluontune as gt

assert gt.Recipe.from_yaml("deck").net == "cifar_resnet20_v1"  # the wheel has the recipes
nodes = [{"op": "null", "name": name, "inputs": []} for name in ("data", "w")]
attrs = {"num_hidden": "2", "no_bias": "True"}
nodes.append({"op": "FullyConnected", "name": "fc", "attrs": attrs, "inputs": [[0, 0, 0], [1, 0, 0]]})
symbol = json.dumps({"nodes": nodes, "arg_nodes": [0, 1], "heads": [[2, 0, 0]]})
net = gt.bridge.to_torch(symbol, {"w": np.float32([[1, 2], [3, 4]])})
import torch
assert net(torch.ones(1, 2)).tolist() == [[3, 7]] and "mxnet" not in sys.modules
split = gt.datasets.open("sample").test
with gt.loading.build("threaded", split, batch_size=50, image_shape=(28, 28, 1), framework="torch") as loader:
    images, labels = next(iter(loader))
assert images.shape == (50, 1, 28, 28) and len(labels) == 50, images.shape
"""


def test_the_torch_extra_brings_bridge_and_loaders(place):
    folder, extra = place
    python = folder / "env" / "bin" / "python"
    ran = subprocess.run(
        [python, "-c", _BRIDGE], cwd=folder / "work", capture_output=True, text=True, check=False
    )
    if extra == "torch":
        assert ran.returncode == 0, ran.stderr[-2000:]
    else:
        assert "GluontuneError" in ran.stderr and "pip install torch" in ran.stderr, ran.stderr[-2000:]


def test_the_sdist_holds_what_its_tests_and_docs_need():
    (sdist,) = (ROOT / "dist").glob("*.tar.gz")
    with tarfile.open(sdist) as archive:
        tops = {name.split("/")[1] for name in archive.getnames() if "/" in name}
    needed = {
        "gluontune",
        "data",
        "tests",
        "notebooks",
        "docs",
        "benchmarks",
        "examples",
        "conftest.py",
        "mkdocs.yml",
    }
    assert needed <= tops and not tops & {".venv", "site", "runs", ".git"}
    with zipfile.ZipFile(wheel()) as archive:
        assert {name.split("/")[0].partition("-")[0] for name in archive.namelist()} == {"gluontune"}
