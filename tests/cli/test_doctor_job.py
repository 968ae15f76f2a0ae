"""``gluontune doctor --job``: one sentence about a job's step, and its net's findings."""

from __future__ import annotations

import json

from gluontune.cli.main import main
from gluontune.recipe import Recipe
from gluontune.training.diagnosis import Examination, _add_net, _smaller_batch

JOB = """
from mxnet import autograd, gluon, nd
from mxnet.gluon import nn


class Head(nn.HybridBlock):
    def hybrid_forward(self, F, x):
        {body}
        return x


def net():
    net = nn.HybridSequential()
    net.add(nn.Conv2D(32, 3), nn.BatchNorm(), nn.GlobalAvgPool2D(), nn.Flatten(), Head(), nn.Dense(10))
    return net


def make_step():
    model = net()
    model.initialize()
    model.hybridize(static_alloc=True, static_shape=True)
    x = nd.ones((8, 16, 16, 16))

    def step():
        with autograd.record():
            loss = model(x).sum()
        loss.backward()
        {fault}

    return step
"""


def job(tmp_path, body="pass", fault="pass"):
    file = tmp_path / "job.py"
    file.write_text(JOB.format(body=body, fault=fault))
    return str(file)


def doctor(capfd, *arguments):
    code = main(["doctor", *arguments, "--json"])
    out, err = capfd.readouterr()
    return code, json.loads(out) if out else None, err


def test_a_step_of_the_users_own(tmp_path, capfd):
    code, found, _ = doctor(capfd, "--job", job(tmp_path) + ":make_step")
    assert code == 0 and found["hybridize"] is None
    assert "pool-to-mean cures it" in found["sentence"] and "Pooling" in found["sentence"]
    (slow,) = [f for f in found["findings"] if f["severity"] == "warning"]
    assert slow["id"] == "job-slow-path" and "pool-to-mean" in slow["fix"] and "ms" in slow["evidence"]
    assert found["profile"]["step_ms"] > 0


def test_a_job_with_a_net_is_checked_as_well(tmp_path, capfd):
    file = job(tmp_path, body="x = x if x.sum() > 0 else -x")
    options = ("--set", "hybridize=imperative", "--set", "train_samples=160", "--set", "val_samples=16")
    options += ("--set", "batch_size_per_device=8")
    code, found, err = doctor(capfd, "--job", file, *options, "--set", "loader=resident")
    assert code == 1, err
    (finding,) = [f for f in found["findings"] if f["severity"] == "error"]
    assert finding["id"] == "job-hybridize" and "control flow depends on the data" in finding["message"]
    assert "4 (Head)" in finding["message"] and "job.py:" in finding["message"]
    assert sum(found["phases_pct"].values()) > 99 and found["profile"]["operators"]
    assert any(f["id"] == "job-16-bits" for f in found["findings"])


def test_what_fails_is_one_line(tmp_path, capfd):
    code, _, err = doctor(capfd, "--job", job(tmp_path, fault="raise ValueError('half-way')") + ":make_step")
    assert code == 1 and "the profiled step failed: ValueError: half-way" in err
    code, _, err = doctor(capfd, "--job", str(tmp_path / "none.py"))
    assert code == 1 and "none.py" in err and "Traceback" not in err
    assert doctor(capfd, "--set", "dtype=bfloat16")[0] == 2
    assert doctor(capfd, "--net", "cifar_resnet20_v1", "--set", "dtype=float31")[0] == 2


PLAIN = """
import numpy as np
from mxnet.gluon import data as gdata, nn


def net():
    net = nn.Sequential()
    net.add(nn.Dense(16, activation="relu"), nn.Dense(10))
    return net


def data():
    x, y = np.zeros((20, 8), "float32"), np.zeros(20, "float32")
    return {data}
"""


def test_a_plain_net_of_gluon_data_is_told_what_helps_it(tmp_path):
    file = tmp_path / "job.py"
    for data, wanted, never in (
        ("gdata.ArrayDataset(x, y), gdata.ArrayDataset(x, y)", "--num-workers", "gluontune size"),
        ("'sample'", "--loader resident", "--num-workers"),
    ):
        file.write_text(PLAIN.format(data=data))
        found = Examination(phases_pct={"data": 78.0, "forward": 22.0})
        _add_net(found, Recipe(job=str(file), batch_size_per_device=4, val_samples=4))
        (slow,) = [f for f in found.findings if f["id"] == "job-input"]
        assert wanted in slow["fix"] and never not in slow["fix"]
        (plain,) = [f for f in found.findings if f["id"] == "job-hybridize"]
        assert "whole-sequential" in plain["fix"] and ".py" not in plain["message"], "no line of MXNet's is to blame"


FEW = """
import numpy as np
from mxnet import gluon
from mxnet.gluon import nn


def net():
    net = nn.HybridSequential()
    net.add(nn.Embedding(50, 16), nn.Dense(2))
    return net


def data():
    words = np.random.default_rng(0).integers(0, 50, (40, 7)).astype("float32")
    few = gluon.data.ArrayDataset(words, (words[:, 0] > 25).astype("float32"))
    return few, few
"""


def test_fewer_samples_than_a_batch_are_examined_as_one_batch(tmp_path):
    (tmp_path / "job.py").write_text(FEW)
    found = Examination()
    recipe = _smaller_batch(Recipe(job=str(tmp_path / "job.py"), batch_size_per_device=64), found)
    assert recipe.batch_size_per_device == 40
    assert [f["message"] for f in found.findings] == [
        "40 training samples make no whole batch of 64: examined at 40 a device"
    ]
    assert _smaller_batch(recipe, found) is recipe


def test_a_text_job_is_migrated_with_its_first_sample(tmp_path, capfd):
    (tmp_path / "job.py").write_text(FEW)
    assert main(["migrate", str(tmp_path / "job.py"), str(tmp_path / "out")]) == 0
    out, _ = capfd.readouterr()
    assert "agrees" in out and "no train.py: data() returns Gluon datasets" in out
