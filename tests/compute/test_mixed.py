"""Mixed precision, as far as no float16 kernel is needed: what is cast, and the arithmetic of scaling."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest

from gluontune.compute import LossScaler, to_mixed_precision
from gluontune.compute.mixed import _to_float16
from gluontune.compute.process import bfloat16_support
from gluontune.core.errors import GluontuneError, UsageError
from gluontune.runtime import mxnet

mx = mxnet()
nn = mx.gluon.nn


def linear(optimizer="sgd", contexts=None, **options):
    """Two weights and a trainer; ``set_gradients`` plays the backward pass."""
    net = nn.Dense(1, in_units=2, use_bias=False, weight_initializer=mx.init.One())
    net.initialize(ctx=contexts or mx.cpu())
    return net, mx.gluon.Trainer(net.collect_params(), optimizer, {"learning_rate": 1.0, **options})


def set_gradients(net, values, scale=1.0):
    for grad, data in zip(net.weight.list_grad(), net.weight.list_data()):
        grad[:] = mx.nd.array([values], ctx=grad.context) * scale
        data._fresh_grad = True


def weights(net):
    return net.weight.data(net.weight.list_ctx()[0]).astype("float32").asnumpy()[0].tolist()


@pytest.mark.parametrize("contexts", [[mx.cpu(0)], [mx.cpu(0), mx.cpu(1)]], ids=["one", "two"])
def test_a_scaled_step_is_the_plain_step(contexts):
    net, trainer = linear(contexts=contexts)
    trainer._kvstore_params["update_on_kvstore"] = False
    scaler = LossScaler(1024.0)
    set_gradients(net, [0.5, -0.25], scale=1024.0)
    assert scaler.step(trainer, batch_size=2)
    assert weights(net) == [1 - 0.25 * len(contexts), 1 + 0.125 * len(contexts)]
    assert trainer._scale == 1.0


def test_the_loss_and_lists_of_losses_are_scaled():
    scaler = LossScaler(8.0)
    assert scaler.scale(mx.nd.ones((2,))).asnumpy().tolist() == [8, 8]
    assert [part.asscalar() for part in scaler.scale([mx.nd.ones(1), mx.nd.zeros(1)])] == [8, 0]
    loss = mx.nd.ones(1)
    assert LossScaler(1.0, dynamic=False).scale(loss) is loss


@pytest.mark.parametrize("bad", [float("inf"), float("nan")])
@pytest.mark.parametrize("contexts", [[mx.cpu(0)], [mx.cpu(0), mx.cpu(1)]], ids=["one", "two"])
def test_a_gradient_that_is_not_finite_skips_the_step_and_halves_the_scale(bad, contexts):
    net, trainer = linear(contexts=contexts)
    trainer._kvstore_params["update_on_kvstore"] = False
    scaler = LossScaler(64.0)
    set_gradients(net, [1.0, bad])
    assert not scaler.step(trainer, 1)
    assert (weights(net), scaler.scale_value, scaler.skipped_steps) == ([1, 1], 32.0, 1)
    set_gradients(net, [32.0, 0.0])
    assert scaler.step(trainer, 1) and weights(net) == [1 - len(contexts), 1]


def test_the_scale_grows_after_enough_good_steps_and_no_further_than_its_limit():
    net, trainer = linear()
    scaler = LossScaler(2.0**23, growth_steps=2)
    for _ in range(6):
        set_gradients(net, [0.0, 0.0])
        scaler.step(trainer, 1)
    assert scaler.scale_value == LossScaler.max_scale == 2.0**24


def test_divergence_is_an_error():
    net, trainer = linear()
    scaler = LossScaler(2.0, patience=3)
    with pytest.raises(GluontuneError, match=r"3 steps in a row.*lower the learning rate"):
        for _ in range(10):
            set_gradients(net, [float("nan"), 0.0])
            scaler.step(trainer, 1)
    assert scaler.skipped_steps == 4  # one at scale 2, three at scale 1


def test_clipping_sees_the_true_gradient():
    net, trainer = linear()
    set_gradients(net, [3.0, 4.0], scale=2 * 512.0)  # a batch of 2: the mean gradient has norm 5
    LossScaler(512.0).step(trainer, batch_size=2, clip_global_norm=1.0)
    assert weights(net) == pytest.approx([1 - 0.6, 1 - 0.8], rel=1e-5)
    net, trainer = linear()
    set_gradients(net, [0.3, 0.4])
    LossScaler(1.0, dynamic=False).step(trainer, 1, clip_global_norm=1.0)
    assert weights(net) == pytest.approx([0.7, 0.6], rel=1e-5)


def test_the_optimizers_own_clipping_sees_the_true_gradient():
    net, trainer = linear(clip_gradient=0.5)
    set_gradients(net, [0.25, 100.0], scale=256.0)
    LossScaler(256.0).step(trainer, 1)
    assert weights(net) == [0.75, 0.5]


def test_state_continues():
    scaler, other = LossScaler(16.0, growth_steps=2), LossScaler()
    net, trainer = linear()
    set_gradients(net, [0.0, 0.0])
    scaler.step(trainer, 1)
    other.load_state_dict(scaler.state_dict())
    assert other.state_dict() == scaler.state_dict() == {"scale_value": 16.0, "good_steps": 1, "skipped_steps": 0}


def test_float16_casts_the_net_but_not_batch_norm_and_keeps_float32_masters():
    net = nn.HybridSequential()
    net.add(nn.Conv2D(2, 1, in_channels=2), nn.BatchNorm(in_channels=2), nn.LayerNorm(epsilon=1e-9, in_channels=2))
    net.initialize()
    trainer = mx.gluon.Trainer(net.collect_params(), "sgd", {"learning_rate": 0.5, "momentum": 0.9})
    precision = _to_float16(net, trainer)
    assert net[0].weight.dtype == "float16" and np.dtype(net[1].gamma.dtype) == np.float32
    assert net[2]._epsilon == 1e-5 and precision.notes == ["2: epsilon 1e-09 is zero in float16; now 1e-05"]
    assert precision.scaler.dynamic and precision.scaler.scale_value == 2.0**16
    assert precision.inputs(mx.nd.ones(1)).dtype == np.float16
    assert precision.inputs(mx.nd.ones(1, dtype="uint8")).dtype == np.uint8
    first, second = precision.outputs([mx.nd.ones(1, dtype="float16"), mx.nd.ones(1)])
    assert first.dtype == second.dtype == np.float32
    for parameter in net.collect_params().values():
        if parameter.grad_req != "null":
            parameter.data()._fresh_grad = True
    assert precision.scaler.step(trainer, 1)
    momentum, master = trainer._updaters[0].states[trainer._param2idx[net[0].weight.name]]
    assert momentum.dtype == master.dtype == np.float32


def test_a_small_update_survives_in_the_master_copy():
    net, trainer = linear()
    precision = _to_float16(net, trainer)
    for _ in range(8):  # each alone is lost in float16: 1 - 2**-13 rounds to 1
        set_gradients(net, [2.0**-13, 0.0], scale=precision.scaler.scale_value)
        assert precision.step(trainer, 1)
    assert weights(net) == [1 - 2.0**-10, 1]
    assert precision.scale(2.0) == 2.0**17


def test_where_a_type_cannot_run():
    net, trainer = linear()
    with pytest.raises(UsageError, match="float16 on a GPU only"):
        to_mixed_precision(net, trainer, "float16")
    with pytest.raises(UsageError, match="start_process"):
        to_mixed_precision(net, trainer, "bfloat16")
    with pytest.raises(UsageError, match="choose float32, float16 or bfloat16"):
        to_mixed_precision(net, trainer, "fp16")
    precision = to_mixed_precision(net, trainer, "float32")
    assert precision.scaler.scale_value == 1.0 and precision.inputs(net) is net


def test_a_trainer_that_does_not_fit_is_refused_before_anything_changes():
    net, trainer = linear()
    set_gradients(net, [0.0, 0.0])
    trainer.step(1)
    with pytest.raises(UsageError, match="already stepped"):
        _to_float16(net, trainer)
    net, _ = linear()
    trainer = mx.gluon.Trainer(net.collect_params(), "sgd", update_on_kvstore=True)
    with pytest.raises(UsageError, match="update_on_kvstore=False"):
        _to_float16(net, trainer)
    assert np.dtype(net.weight.dtype) == np.float32


def test_a_trainer_that_updates_on_the_kvstore_is_refused_at_the_step():
    net, _ = linear(contexts=[mx.cpu(0), mx.cpu(1)])
    trainer = mx.gluon.Trainer(net.collect_params(), "sgd", update_on_kvstore=True)
    set_gradients(net, [0.0, 0.0])
    with pytest.raises(UsageError, match="update_on_kvstore=False"):
        LossScaler().step(trainer, 1)


@pytest.mark.parametrize("wrong", [{"init_scale": 0.5}, {"factor": 1.0}, {"growth_steps": 0}])
def test_a_scaler_that_cannot_work(wrong):
    with pytest.raises(UsageError, match="loss scaler"):
        LossScaler(**wrong)


MIXED = """
import gluontune as gt
mx = gt.runtime.mxnet()
gt.compute.start_process("bfloat16", "cpu")

class Tabular(mx.gluon.HybridBlock):
    def __init__(self):
        super().__init__()
        self.dense, self.out = mx.gluon.nn.Dense(8), mx.gluon.nn.Dense(3)
        self.slope = mx.gluon.nn.PReLU()

    def hybrid_forward(self, F, numbers):
        hidden = self.slope(self.dense(numbers))
        attended = F.dot(F.batch_dot(hidden.expand_dims(1), hidden.expand_dims(2)).flatten(), F.ones((1, 2)))
        return self.out(F.concat(hidden, numbers, attended, dim=1))

net = Tabular()
net.initialize()
for mode in ("imperative", "hybridized"):
    gt.compute.set_mode(net, mode)
    with mx.autograd.record():
        loss = net(mx.nd.ones((8, 5))).sum()
    loss.backward()
    print(net.dense.weight.grad().astype("float32").asnumpy().shape)

class Detector(mx.gluon.HybridBlock):
    def __init__(self):
        super().__init__()
        self.conv = mx.gluon.nn.Conv2D(8, 3)

    def hybrid_forward(self, F, images):
        x = self.conv(images)
        anchors = F.contrib.MultiBoxPrior(x, sizes=(0.2, 0.4), ratios=(1, 2))
        pooled = F.Pooling(x, kernel=(2, 2), pool_type="lp", p_value=2)
        return anchors.sum() + pooled.sum() + F.Activation(x, "softrelu").sum()

net = Detector()
net.initialize()
for mode in ("imperative", "hybridized"):
    gt.compute.set_mode(net, mode)
    with mx.autograd.record():
        loss = net(mx.nd.ones((2, 3, 8, 8)))
    loss.backward()
    print(net.conv.weight.grad().astype("float32").asnumpy().shape)
"""


def test_bfloat16_and_float32_are_joined_and_multiplied():
    """As nets of tables, of attention and of detection do; bfloat16 is for the whole process."""
    if bfloat16_support().level == "none":
        pytest.skip("this CPU has no bfloat16")
    done = subprocess.run([sys.executable, "-c", MIXED], capture_output=True, text=True, check=False)
    assert done.stdout.splitlines() == ["(8, 5)"] * 2 + ["(8, 3, 3, 3)"] * 2, done.stderr[-600:]
