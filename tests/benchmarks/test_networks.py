"""The benchmark of many networks: a real one, what fails, resuming, and an agreement that can fail."""

from __future__ import annotations

import json

import pytest

from benchmarks import networks
from benchmarks.agreement import agreement
from gluontune import compute
from gluontune.compute import _blocks
from gluontune.core.errors import GluontuneError, UsageError
from gluontune.runtime import mxnet

mx = mxnet()
nn = mx.gluon.nn


def small():
    mx.random.seed(0)
    net = nn.HybridSequential()
    # The convolution's bias stands before a BatchNorm: its gradient is zero on paper.
    net.add(nn.Conv2D(16, 3, padding=1, in_channels=3), nn.BatchNorm(), nn.Activation("relu"))
    net.add(nn.GlobalAvgPool2D(), nn.Flatten(), nn.Dropout(0.5), nn.Dense(4))
    net.initialize()
    x = mx.nd.random.normal(shape=(4, 3, 8, 8))
    net(x)
    return net, x


def test_rewrites_agree_and_gradients_that_are_zero_on_paper_do_not_count_relative_to_themselves():
    net, x = small()
    found = agreement(net, x, compute.rewrites_for(net, x))
    assert found["agrees"] and found["zero_on_paper"] == 1 and found["arrays"] == 7
    assert found["float64"] < 1e-12 and found["outputs"] < 1e-5
    assert found["float32_only"] == ["fuse-bn-relu"]


def test_a_rewrite_that_computes_something_else_does_not_agree(monkeypatch):
    net, x = small()
    right = _blocks.MeanGlobalAvgPool2D.hybrid_forward
    monkeypatch.setattr(
        _blocks.MeanGlobalAvgPool2D, "hybrid_forward", lambda self, F, x: right(self, F, x) * (1 + 1e-4)
    )
    found = agreement(net, x, ["pool-to-mean"])
    assert not found["agrees"] and found["float64"] == pytest.approx(1e-4, rel=0.5) and found["above"]


@pytest.mark.slow
def test_one_network_for_real_then_a_failure_as_a_row_then_resumed(tmp_path, monkeypatch):
    pace = networks.Pace(3, 0.3, 3, 0.01)
    monkeypatch.setitem(networks.NETWORKS, "no_such_net", networks.Case("none", 32, 2))
    monkeypatch.setitem(networks.NETWORKS, "cifar_resnet20_v1", networks.Case("CIFAR ResNet v1", 32, 2))
    out = tmp_path / "networks.json"
    found = networks.run(["cifar_resnet20_v1", "no_such_net"], pace=pace, out=out)
    good, bad = found["rows"]
    assert good["status"] == "ok" and good["agreement"]["agrees"] and good["parameters"] > 270_000
    same = networks._is_plain(good["choice"], good["series"][-1]["best_plain"])
    assert good["verdict"] == ("as fast" if same else networks._verdict(good["series"]))
    assert set(good["series"][0]["step_ms"]) > {"gluontune"}
    assert bad["status"] == "failed" and "no_such_net" in bad["reason"]
    assert found["figures"]["networks"] == 2 and found["figures"]["failed"] == 1
    assert json.loads(out.read_text()) == found

    def measure(name, *_):
        return {**bad, "name": name, "reason": "again"}

    again = networks.run(["cifar_resnet20_v1", "no_such_net"], pace=pace, out=out, resume=True, measure=measure)
    assert again["rows"][0] == good and again["rows"][1]["reason"] == "again"
    with pytest.raises(GluontuneError, match="another pace"):
        networks.run(["cifar_resnet20_v1"], out=out, resume=True)
    networks.run(["no_such_net"], pace=pace, out=out)  # without --resume nothing is lost, either
    assert json.loads((tmp_path / "networks.previous.json").read_text()) == again


def test_wrong_use(tmp_path):
    with pytest.raises(UsageError, match="cifar_resnet20_v1"):
        networks.run(["cifar_resnet20"])
    with pytest.raises(UsageError, match="--out"):
        networks.run(["vgg11"], resume=True)
    (tmp_path / "broken.json").write_text("{")
    with pytest.raises(GluontuneError, match="cannot be resumed"):
        networks.run(["vgg11"], out=tmp_path / "broken.json", resume=True)
