"""The wheel for real: ``make dist`` builds it, and then installs it in clean environments and runs these there."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

from gluontune.codec import building
from tools import linked_codec

ROOT = Path(__file__).resolve().parents[2]
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
        [folder / "env" / "bin" / "gluontune", *arguments], cwd=folder / "work", env=env, capture_output=True, text=True
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


def installed(folder, script, *arguments):
    """A script of the tests with the environment's Python, away from the source tree."""
    env = {k: v for k, v in os.environ.items() if not k.startswith(("PYTHON", "GLUONTUNE_"))}
    return subprocess.run(
        [folder / "env" / "bin" / "python", ROOT / "tests" / script, *arguments],
        cwd=folder,
        env=env,
        capture_output=True,
        text=True,
    )


def test_the_wheel_is_for_all_pythons_and_decodes_compiled_where_no_compiler_is(place, tmp_path):
    """With a compiler here the wheel must have the codec; with jpeglib.h beside it, libjpeg-turbo too."""
    assert building.compilers(), "make dist builds the wheel here: it needs a C compiler (apt install gcc)"
    assert "-py3-none-" in wheel().name and not wheel().name.endswith("-any.whl")
    linked = [] if linked_codec.compile_linked(tmp_path / "try.so") else ["linked"]
    ran = installed(place[0], "wheel_codec.py", *linked)
    assert ran.returncode == 0, ran.stderr[-2000:]
    said = json.loads(gluontune(place, "doctor", "--json", code=0 if has_mxnet(place) else 1))["findings"]
    (found,) = [finding for finding in said if finding["id"] == "jpeg-decoder"]
    assert found["severity"] == "ok" and "compiled in the wheel" in found["evidence"], found


def test_the_sdist_installs_without_a_compiler_and_says_what_is_lacking(tmp_path):
    (sdist,) = (ROOT / "dist").glob("*.tar.gz")
    with tarfile.open(sdist) as archive:
        archive.extractall(tmp_path)
    (tree,) = tmp_path.iterdir()
    build = [ROOT / ".dist" / "bin" / "python", "-m", "build", "--wheel", "--no-isolation", "-o", tmp_path / "out"]
    env = {**os.environ, "CC": "/bin/false"}
    ran = subprocess.run([*build, tree], env=env, capture_output=True, text=True)
    assert ran.returncode == 0 and "a wheel without a compiled codec" in ran.stdout + ran.stderr
    (made,) = (tmp_path / "out").glob("*.whl")
    assert made.name.endswith("-py3-none-any.whl")
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "install", "-q", "--no-deps"]
    subprocess.run([*pip, "--target", tmp_path / "site", made], check=True)
    command = [sys.executable, ROOT / "tests" / "wheel_codec.py"]
    there = {**os.environ, "PYTHONPATH": str(tmp_path / "site")}
    refused = subprocess.run(command, cwd=tmp_path, env=there, capture_output=True, text=True)
    assert refused.returncode == 1 and "AssertionError: no C compiler" in refused.stderr, refused.stderr[-2000:]
    env["GLUONTUNE_CODEC"] = "linked"
    insisted = subprocess.run([*build, tree], env=env, capture_output=True, text=True)
    assert insisted.returncode and "with libjpeg-turbo's headers" in insisted.stderr + insisted.stdout


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
    ran = subprocess.run([python, "-c", _BRIDGE], cwd=folder / "work", capture_output=True, text=True, check=False)
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
        "hatch_build.py",
        "mkdocs.yml",
    }
    assert needed <= tops and not tops & {".venv", "site", "runs", ".git"}
    with zipfile.ZipFile(wheel()) as archive:
        names = archive.namelist()
    assert {name.split("/")[0].partition("-")[0].partition(".")[0] for name in names} == {"gluontune"}
    lessons = (("_notebooks", ".ipynb"), ("_notebooks/assessment", ".py"), ("_notebooks/pictures", ".svg"))
    for folder, suffix in (("_data", ".rec"), *lessons, ("codec/csrc", ".c")):
        assert [n for n in names if n.startswith(f"gluontune/{folder}/") and n.endswith(suffix)], folder
