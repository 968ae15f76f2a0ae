"""Rewrites that break a network take themselves back; several inputs; AMP and operators without inputs."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest

from gluontune.compute import REWRITES, _blocks, apply_rewrites, check_hybridizable, hybridize
from gluontune.compute.rewrites import Target
from gluontune.errors import UsageError
from gluontune.runtime import mxnet

mx = mxnet()
nn = mx.gluon.nn


class Doubled(nn.GlobalAvgPool2D):
    def hybrid_forward(self, F, x):
        return 2 * super().hybrid_forward(F, x)


class Blocked(nn.GlobalAvgPool2D):
    """The right output, and no gradient."""

    def hybrid_forward(self, F, x):
        return F.BlockGrad(super().hybrid_forward(F, x))


class Raising(nn.GlobalAvgPool2D):
    def hybrid_forward(self, F, x):
        raise ValueError("no such operator")


def pooled():
    net = nn.HybridSequential()
    net.add(nn.Conv2D(4, 3), nn.BatchNorm(), nn.GlobalAvgPool2D(), nn.Dense(2))
    net.initialize()
    return net


@pytest.mark.parametrize(
    ("broken", "told"), [(Doubled, "outputs differ"), (Blocked, "gradients differ"), (Raising, "no such operator")]
)
def test_a_rewrite_that_breaks_the_net_takes_itself_back_and_names_the_layer(monkeypatch, broken, told):
    def find(net, seen):
        return [Target("2", net[2], broken)]

    monkeypatch.setattr("gluontune.compute._rewrite_targets.pool_to_mean", find)
    net, x = pooled(), mx.nd.random.normal(shape=(4, 3, 6, 6))
    net(x)
    before = {k: p.data().asnumpy() for k, p in net.collect_params().items()}
    out = net(x).asnumpy()
    applied = apply_rewrites(net, ["pool-to-mean", "pad-channels"], x)
    assert [c.rewrite for c in applied] == ["pad-channels"]  # the good one stays
    assert applied.refused == [("2", "pool-to-mean")]
    assert any("pool-to-mean: taken back, because at 2 " in n and told in n for n in applied.notes)
    applied.undo()
    assert type(net[2]) is nn.GlobalAvgPool2D and np.array_equal(net(x).asnumpy(), out)
    for k, p in net.collect_params().items():
        assert np.array_equal(p.data().asnumpy(), before[k])


def test_of_layers_that_change_in_pairs_the_pair_that_breaks_is_named(monkeypatch):
    class Wide(_blocks.FusedBatchNorm):
        """Right but for 32 channels."""

        def hybrid_forward(self, F, x, **parameters):
            out = super().hybrid_forward(F, x, **parameters)
            return out * (2 if self.gamma.shape[0] == 32 else 1)

    monkeypatch.setattr(_blocks, "FusedBatchNorm", Wide)
    net = nn.HybridSequential()
    for width in (16, 32):
        net.add(nn.Conv2D(width, 3, padding=1), nn.BatchNorm(in_channels=width), nn.Activation("relu"))
    net.initialize()
    x = mx.nd.random.normal(shape=(4, 16, 6, 6))
    net(x)
    assert apply_rewrites(net, ["fuse-bn-relu"], x).refused == [("4", "fuse-bn-relu")]


class TwoInputs(mx.gluon.HybridBlock):
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Dense(3), nn.Dense(3)

    def hybrid_forward(self, F, x, h):
        return self.a(x) + self.b(h)


def lstm():
    return mx.gluon.rnn.LSTM(4)


def states():
    return [mx.nd.zeros((1, 2, 4)), mx.nd.zeros((1, 2, 4))]


@pytest.mark.parametrize(
    ("make", "inputs"),
    [
        (TwoInputs, lambda: ([mx.nd.ones((2, 5)), mx.nd.ones((2, 6))],)),
        (TwoInputs, lambda: (mx.nd.ones((2, 5)), mx.nd.ones((2, 6)))),
        (lstm, lambda: ([mx.nd.ones((3, 2, 5)), states()],)),
        (lstm, lambda: (mx.nd.ones((3, 2, 5)), states())),
    ],
    ids=["two in a list", "two", "lstm in a list", "lstm"],
)
def test_several_inputs_are_taken_everywhere(make, inputs):
    net = make()
    net.initialize()
    assert check_hybridizable(net, *inputs()).ok
    assert apply_rewrites(net, REWRITES.names(), *inputs()).refused == []
    report = hybridize(net, *inputs(), budget_s=30, refresh=True)
    assert report.chosen.step_ms and not any(t.error for t in report.trials)


def test_inputs_that_do_not_fit_are_a_clear_error():
    net = TwoInputs()
    net.initialize()
    with pytest.raises(UsageError, match="net fails on this input"):
        hybridize(net, [mx.nd.ones((2, 5))])


def test_operators_without_inputs_can_be_traced_under_amp():
    code = """
from gluontune.compute import process
from gluontune.runtime import mxnet
mx = mxnet()
process._init_amp()
for F in (mx.sym, mx.nd):
    made = [F.eye(3), F.arange(0, 5), F.zeros((2, 3)), F.ones((2,)), F.full((2,), 3.0),
            F.random.uniform(shape=(2,)), F.random.normal(shape=(2,)), F.linspace(0, 1, 5)]
    x = F.zeros((4, 3)) if F is mx.nd else F.var("x")
    made.append(F.dot(x, F.eye(3)))
assert "amp_cast" in mx.sym.FullyConnected(mx.sym.var("x"), num_hidden=2).tojson(remove_amp_cast=False)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-600:]
