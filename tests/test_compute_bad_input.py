"""Inputs that go wrong: a clear error or a result, and the user's net as it was."""

from __future__ import annotations

import numpy as np
import pytest

from gluontune.compute import REWRITES, apply_rewrites, check_hybridizable, hybridize, profile, set_mode, why_no_gain
from gluontune.errors import GluontuneError, UsageError
from gluontune.runtime import mxnet

mx = mxnet()
nn = mx.gluon.nn


def small(**options):
    net = nn.HybridSequential()
    net.add(nn.Conv2D(4, 3, padding=1, **options), nn.BatchNorm(), nn.Activation("relu"))
    net.add(nn.GlobalAvgPool2D(), nn.Dense(2))
    net.initialize()
    return net, mx.nd.random.uniform(shape=(2, 3, 8, 8))


def entrances(net, *inputs):
    """Each call that takes a user's net and a batch."""
    return {
        "check": lambda: check_hybridizable(net, *inputs),
        "hybridize": lambda: hybridize(net, *inputs, budget_s=30, refresh=True),
        "why": lambda: why_no_gain(net, *inputs, dtype="bfloat16"),
        "profile": lambda: profile(net, *inputs, steps=1),
        "rewrites": lambda: apply_rewrites(net, REWRITES.names(), *inputs),
    }


@pytest.mark.parametrize("name", ["check", "hybridize", "why", "profile", "rewrites"])
@pytest.mark.parametrize("fault", ["uninitialized", "shape", "dtype", "numpy", "float16"])
def test_a_wrong_net_or_input_is_a_usage_error_of_two_lines_at_most(name, fault):
    net, x = small(in_channels=3)
    net(x)
    if fault == "uninitialized":
        net = nn.HybridSequential()
        net.add(nn.Conv2D(4, 3, in_channels=3), nn.BatchNorm(in_channels=4))
    elif fault == "shape":
        x = mx.nd.ones((2, 5, 8, 8))
    elif fault == "dtype":
        x = x.astype("float64")
    elif fault == "numpy":
        x = x.asnumpy()
    else:
        net.cast("float16")
        x = x.astype("float16")
    words = {"uninitialized": "never initialized", "numpy": "NDArray", "float16": "(?i)fp16|float16"}
    with pytest.raises(UsageError, match=words.get(fault, "net fails on this input")) as caught:
        entrances(net, x)[name]()
    assert len(str(caught.value).splitlines()) <= 2


@pytest.mark.parametrize("name", ["check", "hybridize", "why", "profile", "rewrites"])
def test_a_wrong_input_leaves_no_shapes_behind(name):
    net, x = small()
    with pytest.raises(UsageError):
        entrances(net, mx.nd.ones((2, 5, 3)))[name]()
    with pytest.raises(UsageError):
        entrances(net, mx.nd.ones((2, 5, 8, 8)), mx.nd.ones((1,)))[name]()
    assert net(x).shape == (2, 2) and net[0].weight.shape == (4, 3, 3, 3)


def test_a_shape_that_fails_late_leaves_the_first_layers_unknown():
    net = nn.HybridSequential()
    net.add(nn.Conv2D(4, 3), nn.Dense(2, in_units=4 * 36))
    net.initialize()
    with pytest.raises(UsageError, match="net fails on this input"):
        check_hybridizable(net, mx.nd.ones((2, 5, 9, 9)))
    assert net(mx.nd.ones((2, 3, 8, 8))).shape == (2, 2) and net[0].weight.shape[1] == 3


def test_shared_parameters():
    net = nn.HybridSequential()
    first = nn.Dense(4, in_units=4)
    net.add(first, nn.Dense(4, in_units=4, params=first.params), nn.Dense(2))
    net.initialize()
    x = mx.nd.random.uniform(shape=(3, 4))
    assert check_hybridizable(net, x).ok
    before = {k: p.data().asnumpy() for k, p in net.collect_params().items()}
    assert hybridize(net, x, budget_s=30, refresh=True).chosen.step_ms
    assert net[0].weight is net[1].weight
    for key, parameter in net.collect_params().items():
        np.testing.assert_array_equal(parameter.data().asnumpy(), before[key])


class Twice(mx.operator.CustomOp):
    def forward(self, is_train, req, in_data, out_data, aux):
        self.assign(out_data[0], req[0], in_data[0] * 2)

    def backward(self, req, out_grad, in_data, out_data, in_grad, aux):
        self.assign(in_grad[0], req[0], out_grad[0] * 2)


@mx.operator.register("gluontune_test_twice")
class TwiceProp(mx.operator.CustomOpProp):
    def create_operator(self, ctx, shapes, dtypes):
        return Twice()


class WithCustom(mx.gluon.HybridBlock):
    def __init__(self):
        super().__init__()
        self.dense = nn.Dense(2)

    def hybrid_forward(self, F, x):
        return F.Custom(self.dense(x), op_type="gluontune_test_twice")


def test_custom_operators():
    net = WithCustom()
    net.initialize()
    x = mx.nd.random.uniform(shape=(3, 4))
    check = check_hybridizable(net, x)
    assert check.ok and check.gradient_error < 1e-5
    report = hybridize(net, x, budget_s=30, refresh=True)
    assert report.chosen.step_ms
    np.testing.assert_allclose(net(x).asnumpy(), 2 * net.dense(x).asnumpy(), rtol=1e-5)


class Several(mx.gluon.HybridBlock):
    def __init__(self):
        super().__init__()
        self.dense = nn.Dense(4)

    def hybrid_forward(self, F, x):
        y = self.dense(x)
        return y, [F.relu(y), y.sum(axis=1)]


def test_several_outputs():
    net = Several()
    net.initialize()
    x = mx.nd.random.uniform(shape=(3, 4))
    assert hybridize(net, x, budget_s=30, refresh=True).chosen.step_ms
    first, (second, third) = net(x)
    assert (first.shape, second.shape, third.shape) == ((3, 4), (3, 4), (3,))


def test_a_net_that_is_hybridized_already_and_a_loss_that_raises_half_way():
    net, x = small()
    set_mode(net, "static")
    net(x)
    compiled, before = net._cached_op, net[0].weight.data().asnumpy()
    calls = []

    def loss(out):
        calls.append(1)
        if len(calls) == 20:
            raise RuntimeError("half-way")
        return out.sum()

    with pytest.raises((RuntimeError, GluontuneError), match="half-way"):
        hybridize(net, x, loss=loss, rewrites=[], budget_s=30, refresh=True)
    assert len(calls) >= 20
    assert net._active and net._cached_op is compiled and dict(net._flags)["static_shape"]
    assert type(net[3]) is nn.GlobalAvgPool2D
    np.testing.assert_array_equal(net[0].weight.data().asnumpy(), before)
    assert hybridize(net, x, budget_s=30, refresh=True).chosen.step_ms  # and it can be chosen for still


def test_a_step_function_that_raises_half_way(tmp_path):
    job = tmp_path / "job.py"
    job.write_text(
        "def make_step():\n    calls = []\n    def step():\n        calls.append(1)\n"
        "        if len(calls) > 3:\n            raise ValueError('half-way')\n    return step\n"
    )
    with pytest.raises(GluontuneError, match="the profiled step failed: ValueError: half-way"):
        profile(f"{job}:make_step", steps=2)
