"""Networks of ``npx.set_np()``: the arrays that they take, and everything of compute on them."""

from __future__ import annotations

import contextlib
import threading

import numpy as np
import pytest

from gluontune.compute import (
    REWRITES,
    InputStage,
    LossScaler,
    apply_rewrites,
    check_hybridizable,
    hybridize,
    process,
    refuse_np,
    set_mode,
)
from gluontune.compute._passes import run
from gluontune.core.arrays import worst as difference
from gluontune.core.errors import UsageError
from gluontune.runtime import as_nd_array, as_net_array, mxnet, uses_np

mx = mxnet()
nn = mx.gluon.nn


@contextlib.contextmanager
def np_semantics():
    """What ``npx.set_np()`` does, for a while."""
    with mx.util.np_shape(True), mx.util.np_array(True):
        yield


def test_batches_of_another_thread_become_arrays_that_an_np_net_takes():
    with np_semantics():
        net = nn.Dense(2)
        net.initialize()
        made = []
        loader = threading.Thread(target=lambda: made.append((mx.nd.ones((4, 3)), [mx.nd.zeros((4,))])))
        loader.start()
        loader.join()
        x, (y,) = as_net_array(made[0], net)
        assert {type(x), type(y)} == {mx.np.ndarray}
        assert net(x).shape == (4, 2) and uses_np(net)
        assert as_net_array({"not": "an array"}, net) == {"not": "an array"}
    assert uses_np(net)  # it stays an np net outside
    assert not uses_np()


def test_arrays_are_converted_without_a_copy_and_gradients_go_through():
    plain = nn.Dense(2, in_units=3)
    plain.initialize()
    x = mx.np.ones((4, 3))
    x.attach_grad()
    with mx.autograd.record():
        plain(as_net_array(x, plain)).sum().backward()
    np.testing.assert_allclose(x.grad.asnumpy()[0], plain.weight.data().asnumpy().sum(axis=0), rtol=1e-6)
    as_nd_array(x)[:] = 7
    assert x.asnumpy().max() == x.asnumpy().min() == 7


class Residual(nn.HybridBlock):
    """As d2l's readers write it, hybrid."""

    def __init__(self, channels):
        super().__init__()
        self.body = nn.HybridSequential()
        self.body.add(nn.Conv2D(channels, 3, padding=1, use_bias=False), nn.BatchNorm(), nn.Activation("relu"))
        self.body.add(nn.Conv2D(channels, 3, padding=1, use_bias=False), nn.BatchNorm())

    def hybrid_forward(self, F, x):
        return F.npx.relu(F.np.add(x, self.body(x)))


def residual_net():
    net = nn.HybridSequential()
    net.add(nn.Conv2D(16, 3, padding=1, use_bias=False), nn.BatchNorm(), nn.Activation("relu"), Residual(16))
    net.add(nn.GlobalAvgPool2D(), nn.Dense(10))
    net.initialize(mx.init.Xavier())
    return net


def sentences_net():
    net = nn.HybridSequential()
    net.add(nn.Conv1D(5, 3), nn.GlobalMaxPool1D(), nn.Dense(3))
    net.initialize(mx.init.Xavier())
    return net


@pytest.fixture
def set_np():
    with np_semantics():
        yield


def test_an_np_net_can_be_hybridized_and_is_told_so(set_np):
    check = check_hybridizable(residual_net(), mx.np.random.normal(size=(4, 3, 8, 8)))
    assert check.ok and not check.findings and check.gradient_error < 1e-3


@pytest.mark.parametrize("name", REWRITES.names())
def test_every_rewrite_leaves_an_np_net_computing_the_same(set_np, name):
    make, shape = (sentences_net, (4, 6, 9)) if name == "max-to-pick" else (residual_net, (4, 3, 8, 8))
    net, x = make(), mx.np.random.normal(size=shape)
    net(x)
    for mode in ("imperative", "hybridized"):
        set_mode(net, mode)
        before = run(net, (x,), True)
        applied = apply_rewrites(net, [name], x)
        assert not applied.refused
        # The sum of mx.np is no operator of oneDNN's, and no Sequential of it is a plain one.
        assert bool(applied.changes) == (name not in ("order-sums", "whole-sequential"))
        after = run(net, (x,), True)
        assert difference(before[0], after[0]) < 1e-5 and difference(before[1], after[1]) < 1e-3
        applied.undo()


def test_a_plain_sequential_of_mx_np_is_compiled_whole(set_np):
    net, x = nn.Sequential(), mx.np.random.normal(size=(4, 3, 8, 8))
    net.add(nn.Conv2D(8, 3), nn.BatchNorm(), nn.Activation("relu"), nn.GlobalAvgPool2D(), nn.Dense(2))
    net.initialize(mx.init.Xavier())
    net(x)
    before = run(net, (x,), True)
    assert [c.path for c in apply_rewrites(net, ["whole-sequential"], x)] == [""]
    set_mode(net, "static")
    after = run(net, (x,), True)
    assert net._cached_op is not None
    assert difference(before[0], after[0]) < 1e-5 and difference(before[1], after[1]) < 1e-3


def test_the_input_stage_takes_pixels_of_mx_np(set_np):
    stage = InputStage([0.5], [0.25])
    pixels = mx.np.array([[[[0]], [[255]]]], dtype="uint8")
    for mode in ("imperative", "hybridized"):
        set_mode(stage, mode)
        out = stage(pixels)
        assert type(out) is mx.np.ndarray and out.asnumpy().ravel().tolist() == [-2.0, 2.0]


def test_an_np_net_is_raced_and_refuses_what_is_not_its_kind(set_np):
    net = nn.HybridSequential()
    net.add(nn.Dense(4, activation="relu"), nn.Dense(2))
    net.initialize()
    report = hybridize(net, mx.nd.ones((4, 3)), rewrites=[], budget_s=30, refresh=True)
    assert report.chosen.step_ms and not any(t.error for t in report.trials)


def test_a_net_built_before_set_np_is_told_so():
    net = nn.HybridSequential()
    net.add(nn.Dense(4, in_units=3))
    net.initialize()
    with np_semantics(), pytest.raises(UsageError, match=r"made before npx\.set_np"):
        check_hybridizable(net, mx.np.ones((2, 3)))


def test_bfloat16_refuses_np_nets_whose_operators_amp_does_not_cast(set_np, monkeypatch):
    net = nn.Dense(2, in_units=3)
    net.initialize()
    refuse_np(net)
    monkeypatch.setattr(process, "started_dtype", lambda: "bfloat16")
    with pytest.raises(UsageError, match=r"AMP casts operators of mx\.nd only"):
        refuse_np(net)


def test_the_loss_scaler_reads_np_gradients(set_np):
    net = nn.Dense(1, in_units=2)
    net.initialize()
    trainer = mx.gluon.Trainer(net.collect_params(), "sgd", {"learning_rate": 1.0})
    scaler = LossScaler(4.0)
    with mx.autograd.record():
        scaled = scaler.scale(net(mx.np.ones((1, 2))))
    scaled.backward()
    assert scaler.step(trainer, 1)
    net.weight.grad()[:] = np.inf
    assert not scaler.step(trainer, 1)
