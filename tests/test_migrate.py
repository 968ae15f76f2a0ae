"""``gluontune migrate``: the written project runs without mxnet and gluontune, and computes the same."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys

import numpy as np
import pytest

import gluontune as gt
from gluontune.cli.main import main
from gluontune.errors import GluontuneError, UsageError

torch = pytest.importorskip("torch", reason="PyTorch is not installed: pip install torch")

_SHUT = """
import sys
class Shut:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in ("mxnet", "gluontune", "gluoncv"):
            raise ImportError(name + " is shut out")
sys.meta_path.insert(0, Shut())
"""


def run_alone(folder):
    """``check.py`` where neither mxnet nor gluontune can be imported."""
    code = f"{_SHUT}\nimport runpy; sys.path.insert(0, '.'); runpy.run_path('check.py', run_name='__main__')"
    return subprocess.run(
        [sys.executable, "-c", code], cwd=folder, capture_output=True, text=True, check=False
    )


def net_of(name, shape=(2, 3, 32, 32)):
    mx = gt.runtime.mxnet()
    mx.random.seed(1)
    net = gt.train.build_net(name, 10)
    net.initialize(mx.init.Xavier(magnitude=2))
    x = np.random.default_rng(0).standard_normal(shape).astype("float32")
    net(mx.nd.array(x))
    return net, x


@pytest.fixture(scope="module")
def project(tmp_path_factory):
    out = tmp_path_factory.mktemp("migrated") / "net"
    code = main(
        [
            "migrate",
            "--net",
            "cifar_resnet20_v1",
            "--dataset",
            "sample",
            "--job",
            str(_job(out.parent)),
            str(out),
        ]
    )
    return code, out


def _job(folder):
    path = folder / "job.py"
    path.write_text(
        "from mxnet.gluon import nn\n\n\n"
        "class Branch(nn.HybridBlock):\n"
        "    def __init__(self, channels, inside):\n"
        "        super().__init__()\n"
        "        self.body = nn.HybridSequential()\n"
        "        self.body.add(nn.Conv2D(inside, 3, padding=1, activation='relu'), nn.BatchNorm(),\n"
        "                      nn.Conv2D(channels, 1, use_bias=False), nn.LeakyReLU(0.1))\n\n"
        "    def hybrid_forward(self, F, x):\n"
        "        return F.relu(x + self.body(x)) * 0.5\n\n\n"
        "def net():\n"
        "    found = nn.HybridSequential()\n"
        "    found.add(nn.Conv2D(8, 3), Branch(8, 4), nn.MaxPool2D(), Branch(8, 12), nn.Dropout(0.3), nn.Dense(10))\n"
        "    return found\n\n\n"
        "def data():\n    return 'sample'\n",
        "utf-8",
    )
    return path


def test_the_project_of_a_job_runs_alone_and_agrees(project):
    code, out = project
    assert code == 0
    ran = run_alone(out)
    assert ran.returncode == 0 and ran.stdout.strip().endswith("agrees"), ran.stderr
    assert "gradients: 14 compared" in ran.stdout and "running statistics: 4" in ran.stdout


def test_blocks_of_the_same_structure_share_a_class(project):
    text = (project[1] / "model.py").read_text("utf-8")
    assert text.count("class Branch") == 1 and text.count("Branch(") == 3  # the class and both that are made
    assert "nn.Dropout(0.3)" in text and "mxnet." not in text


def test_the_project_passes_ruff(project):
    ruff = importlib.util.find_spec("ruff")
    assert ruff is not None
    ran = subprocess.run(
        [sys.executable, "-m", "ruff", "check", "."], cwd=project[1], capture_output=True, text=True
    )
    assert ran.returncode == 0, ran.stdout


def test_a_weight_that_was_altered_is_seen(project, tmp_path):
    for name in os.listdir(project[1]):
        if (project[1] / name).is_file():
            (tmp_path / name).write_bytes((project[1] / name).read_bytes())
    weights = torch.load(tmp_path / "weights.pt", weights_only=True)
    weights["0.bias"][0] += 1e-3
    torch.save(weights, tmp_path / "weights.pt")
    ran = run_alone(tmp_path)
    assert ran.returncode == 1 and "does NOT agree" in ran.stdout


def test_a_net_of_gluoncv_keeps_gluons_names_and_what_is_not_trained(tmp_path):
    net, x = net_of("cifar_resnet20_v2")  # begins with a BatchNorm whose gamma and beta are fixed
    made = gt.bridge.migrate(net, tmp_path / "out", x)
    assert made.agrees, made.told
    names = set(torch.load(tmp_path / "out" / "weights.pt", weights_only=True))
    assert names == set(net._collect_params_with_prefix())
    code = (
        "import json, model\n"
        "print(json.dumps([n for n, p in model.build().named_parameters() if not p.requires_grad]))"
    )
    ran = subprocess.run(
        [sys.executable, "-c", code], cwd=made.path, capture_output=True, text=True, check=True
    )
    states = ("running_mean", "running_var")
    fixed = [
        n
        for n, p in net._collect_params_with_prefix().items()
        if p.grad_req == "null" and not n.endswith(states)
    ]
    assert sorted(json.loads(ran.stdout)) == sorted(fixed) and len(fixed) == 2


def test_what_cannot_be_migrated_is_told(tmp_path, capfd):
    mx = gt.runtime.mxnet()

    class Odd(mx.gluon.HybridBlock):
        def hybrid_forward(self, F, x):
            return x * float(x.sum().asscalar())

    net = Odd()
    net.initialize()
    with pytest.raises(GluontuneError, match=r"Odd cannot be traced at .*test_migrate.py:\d+"):
        gt.bridge.migrate(net, tmp_path / "odd", np.ones((1, 2), "float32"))
    assert not (tmp_path / "odd").exists()
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "mine.txt").write_text("x")
    with pytest.raises(UsageError, match="holds files already"):
        gt.bridge.migrate(net, tmp_path / "full", np.ones((1, 2), "float32"))
    assert main(["migrate", "net-symbol.json", str(tmp_path / "x")]) == 2
    assert "lost its blocks" in capfd.readouterr().err
    assert main(["migrate", str(tmp_path / "none.params"), str(tmp_path / "x"), "--json"]) == 1
    assert "no such file" in capfd.readouterr().err


def test_json_says_what_was_written(tmp_path, capfd):
    assert main(["migrate", "--net", "mlp", "--dataset", "sample", str(tmp_path / "mlp"), "--json"]) == 0
    found = json.loads(capfd.readouterr().out)
    assert found["agrees"] and "model.py" in found["files"] and found["parameters"] > 1000


def test_a_long_comprehension_stays_whole():
    from gluontune.bridge.migrating.tidying import tidied

    long = "extra = [_extra(i, k, s, p, convention) for i, k, s, p in zip(x.shape[2:], kernel, stride, padding_of_it)]"
    text = f"def f(x, kernel, stride, padding_of_it, convention):\n    {long}\n    return extra\n"
    assert "for i, k, s, p in zip" in tidied(text)
