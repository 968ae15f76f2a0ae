"""hybridize tries everything side by side, keeps what is faster, and leaves weights alone."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import pytest

from gluontune.compute import choose, hybridize
from gluontune.errors import GluontuneError, UnknownNameError, UsageError
from gluontune.runtime import mxnet

sys.path.insert(0, str(Path(__file__).parent))
from race_fakes import pretend, small

mx = mxnet()
nn = mx.gluon.nn


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("GLUONTUNE_DATA", str(tmp_path))
    return tmp_path / "hybridize"


def test_the_fastest_is_left_in_place(monkeypatch):
    pretend(monkeypatch, lambda t: 0.1 - 0.02 * len(t.rewrites) - 0.01 * (t.settings == "static"))
    net, x = small()
    report = hybridize(net, x, rounds=3, budget_s=60)
    assert report.net is net and report.chosen.settings == "static"
    assert set(report.chosen.rewrites) == {"pool-to-mean", "pad-channels", "fuse-bn-relu"}
    assert net._active and dict(net._flags)["static_shape"]
    assert type(net[3]) is not nn.GlobalAvgPool2D
    assert report.chosen.speedup["median"] > 1 and report.chosen.break_even_steps >= 1
    document = json.loads(json.dumps(report.to_dict(), allow_nan=False))
    assert document["chosen"] == report.chosen.name and len(document["trials"]) == len(report.trials)
    assert "→" in str(report)


def test_a_rewrite_that_hurts_is_left_out(monkeypatch):
    pretend(monkeypatch, lambda t: 0.1 - 0.02 * len(t.rewrites) + 0.05 * ("pad-channels" in t.rewrites))
    net, x = small()
    report = hybridize(net, x, rounds=3, budget_s=60)
    assert set(report.chosen.rewrites) == {"pool-to-mean", "fuse-bn-relu"}
    assert type(net[0]) is nn.Conv2D


def test_what_is_not_faster_beyond_doubt_is_not_applied(monkeypatch):
    pretend(monkeypatch, lambda t: 0.1)
    net, x = small()
    report = hybridize(net, x, rounds=3, budget_s=60)
    assert report.chosen.rewrites == () and type(net[3]) is nn.GlobalAvgPool2D
    assert any("no rewrite was faster" in note for note in report.notes)


def test_two_rewrites_that_hurt_are_both_left_out(monkeypatch):
    hurting = {"pad-channels", "fuse-bn-relu"}
    pretend(monkeypatch, lambda t: 0.1 - 0.06 * ("pool-to-mean" in t.rewrites) + 0.01 * len(hurting & {*t.rewrites}))
    net, x = small()
    report = hybridize(net, x, rounds=3, budget_s=60)
    assert report.chosen.rewrites == ("pool-to-mean",) and type(net[0]) is nn.Conv2D
    assert len({t.name for t in report.trials}) == len(report.trials)


@pytest.mark.parametrize("gain, chosen", [(0.01, ()), (0.04, ("pool-to-mean",))])
def test_a_gain_that_is_sure_but_small_is_not_worth_it(monkeypatch, gain, chosen):
    pretend(monkeypatch, lambda t: 0.1 * (1 - gain * bool(t.rewrites)))
    net, x = small()
    assert hybridize(net, x, rounds=3, budget_s=60, rewrites=["pool-to-mean"]).chosen.rewrites == chosen


def test_compiling_that_hurts_is_reported_and_not_chosen(monkeypatch):
    pretend(monkeypatch, lambda t: 0.1 if t.settings == "imperative" else 0.2)
    net, x = small()
    report = hybridize(net, x, budget_s=60, rewrites=[])
    assert report.chosen.name == "imperative" and not net._active
    assert "slower than imperative here: static, hybridized, static_alloc" in report.notes


def test_plain_modes_that_the_short_race_cannot_tell_apart_run_in_the_last_one(monkeypatch):
    ms = {"imperative": 0.25, "hybridized": 0.10, "static_alloc": 0.12, "static": 0.11}
    pretend(monkeypatch, lambda t: ms.get(t.settings, 0.3))
    net, x = small()
    report = hybridize(net, x, budget_s=60, rewrites=[])
    assert report.chosen.settings == "hybridized" and report.chosen.speedup["n"] == 3
    assert {n: d[:20] for n, d in report.dropped.items()} == {
        "imperative": "after a look: 2.50 ×",
        "static_alloc": "before the last heat",
    }
    assert [t.step_ms["n"] for t in report.trials if not t.dropped] == [8, 8]  # static and hybridized


@pytest.mark.parametrize(
    "static_ms, batches, chosen",
    [
        ([10.3, 9.9, 10.4, 9.8, 10.6, 10.1], 1, "static"),  # noise
        ([10.3, 9.9, 10.4, 9.8, 10.6, 10.1], 2, "static_alloc"),  # a plan for each shape would cost memory
        ([12.3, 11.9, 12.4, 11.8, 12.6, 12.1], 1, "static_alloc"),  # beyond doubt
    ],
)
def test_fixed_shapes_win_what_is_no_more_than_noise(static_ms, batches, chosen):
    def trial(settings, times):
        return choose.Trial(settings, (), {"median": float(np.median(times))}, _times=times)

    alloc = trial("static_alloc", [10.0, 10.2, 9.7, 10.1, 9.9, 10.0])
    finalists = [trial("imperative", [20.0] * 6), alloc, trial("static", static_ms)]
    assert choose._judge(None, finalists, finalists, batches).chosen.settings == chosen


def test_weights_averages_and_gradients_stay():
    net, x = small()
    with mx.autograd.record():
        loss = net(x).sum()
    loss.backward()
    mx.nd.waitall()
    before = {k: p.data().asnumpy() for k, p in net.collect_params().items()}
    gradient = net[0].weight.grad().asnumpy()
    report = hybridize(net, x, budget_s=60)
    assert len({(t.settings, t.rewrites) for t in report.trials}) == len(report.trials) >= 8
    assert all(t.step_ms and t.step_ms["median"] > 0 for t in report.trials)
    for key, parameter in net.collect_params().items():
        np.testing.assert_array_equal(parameter.data().asnumpy(), before[key])
    np.testing.assert_array_equal(net[0].weight.grad().asnumpy(), gradient)


def test_a_mode_that_fails_is_a_row_and_not_the_end():
    class Branch(mx.gluon.HybridBlock):
        def __init__(self):
            super().__init__()
            self.dense = nn.Dense(2)

        def hybrid_forward(self, F, x):
            y = self.dense(x)
            return y if y.sum() > 1e9 else -y

    net = Branch()
    net.initialize()
    report = hybridize(net, mx.nd.ones((2, 3)), rounds=3, budget_s=60)
    assert report.chosen.settings == "imperative" and not net._active
    assert sum(bool(t.error) for t in report.trials) == 3
    assert net(mx.nd.ones((2, 3))).shape == (2, 2)


def test_changing_shapes_and_a_loss_of_ones_own():
    net, x = small()
    losses = []

    def loss(out):
        losses.append(out.shape)
        return out.sum()

    report = hybridize(net, x, loss=loss, buckets=[(mx.nd.ones((3, 3, 6, 6)),)], rounds=3, budget_s=60)
    assert set(losses) == {(2, 2), (3, 2)} and report.chosen.step_ms


def test_a_plain_block_is_compiled_by_its_parts():
    net = nn.Sequential()
    child, x = small()
    net.add(child)
    report = hybridize(net, x, rounds=3, budget_s=60)
    assert child._active == (report.chosen.settings != "imperative")


def test_wrong_use_leaves_the_net_alone():
    net, x = small()
    with pytest.raises(UsageError, match="in imperative mode"):
        hybridize(net, mx.nd.ones((2, 3)), rounds=3, rewrites=[])
    with pytest.raises(UnknownNameError):
        hybridize(net, x, rewrites=["pool"])
    with pytest.raises(UsageError, match="sample batch"):
        hybridize(net)
    with pytest.raises(UsageError, match="never initialized"):
        hybridize(nn.Dense(1, in_units=1), x)
    with pytest.raises(GluontuneError, match="no parameter with a gradient"):
        hybridize(nn.GlobalAvgPool2D(), x)
    assert not net._active and type(net[3]) is nn.GlobalAvgPool2D
