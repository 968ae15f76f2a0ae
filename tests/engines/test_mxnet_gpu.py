"""MXNet's engine where GPUs are: which are taken, and float16's loss scale in its optimization, without a GPU."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

import gluontune as gt
from gluontune import compute
from gluontune.compute.mixed import _to_float16
from gluontune.core.errors import GluontuneError, UsageError
from gluontune.engines.mxnet.context import Context, Optimization
from gluontune.engines.mxnet.session import Session
from gluontune.parallel import kvstore
from gluontune.runtime import mxnet

mx = mxnet()


class Scaled(mx.gluon.nn.HybridBlock):
    """A net without products of matrices, which MXNet has in float16 on GPUs only."""

    def __init__(self):
        super().__init__()
        with self.name_scope():
            self.w = self.params.get("w", shape=(2,), init=mx.init.One())

    def hybrid_forward(self, F, x, w):
        return F.broadcast_mul(x, w)


@pytest.mark.parametrize(
    ("asked", "count", "first", "taken"),
    [("auto", 2, 0, [0, 1]), ("gpu", 1, 2, [2]), ("gpu:2,0", 2, 0, [2, 0]), ("gpu:2,0", 1, 1, [0])],
)
def test_a_rank_takes_its_gpus_of_all_or_of_the_listed_ones(monkeypatch, asked, count, first, taken):
    monkeypatch.setattr(mx.context, "num_gpus", lambda: 3)
    assert kvstore.contexts(asked, count, first) == [mx.gpu(i) for i in taken]


@pytest.mark.parametrize(("asked", "count", "first"), [("gpu", 4, 0), ("gpu:0,1", 1, 2), ("gpu:0,7", 2, 0)])
def test_a_gpu_that_is_not_there_is_told(monkeypatch, asked, count, first):
    monkeypatch.setattr(mx.context, "num_gpus", lambda: 3)
    with pytest.raises(GluontuneError, match="but this mxnet sees 3: use num_devices=3 or"):
        kvstore.contexts(asked, count, first)


def test_bfloat16_on_mxnets_gpus_is_refused_however_they_are_named():
    for named in ("gpu", "gpu:1"):
        with pytest.raises(UsageError, match=r"MXNet 1\.9 has no bfloat16 kernels for a GPU"):
            gt.Recipe(dtype="bfloat16", devices=named)


@pytest.fixture
def training(monkeypatch):
    monkeypatch.setattr(compute, "to_mixed_precision", lambda net, trainer, dtype: _to_float16(net, trainer))
    net = Scaled()
    net.initialize()
    optimization = Optimization(Context(mx, [mx.cpu()], 0, 1, None))
    recipe = gt.Recipe(dtype="float16", optimizer="sgd", momentum=0.0, learning_rate=0.5, schedule="constant", wd=0.0)
    optimization.begin(recipe, {"net": net}, steps=100, steps_per_epoch=100)
    optimization.scaler.scaler.scale_value = 64.0
    return SimpleNamespace(net=net, optimization=optimization, recipe=recipe)


def step(training, values):
    with mx.autograd.record():
        loss = training.net(mx.nd.array([values], dtype="float16")).astype("float32").sum(axis=1)
        scaled = training.optimization.scaled([loss])
    mx.autograd.backward(scaled)
    training.optimization.update(training.net, 1, 1, 1)
    return training.net.w.data().asnumpy().tolist()


def test_float16_steps_are_scaled_skipped_and_counted(training):
    scaler = training.optimization.scaler.scaler
    before = step(training, [1.0, 0.5])
    assert before[0] < 1.0 and before[0] - 1.0 == pytest.approx(2 * (before[1] - 1.0), rel=0.01)
    assert step(training, [60000.0, 0.0]) == before, "60,000 × 64 is beyond float16: nothing moves"
    assert (scaler.skipped_steps, scaler.scale_value) == (1, 32.0)
    session = SimpleNamespace(optimization=training.optimization)
    assert Session.remarks(session) == ["float16: 1 steps skipped for an overflow; loss scale 32"]
    training.optimization.scaler = None
    assert Session.remarks(session) == []


def test_a_checkpoint_has_the_scale(training):
    step(training, [60000.0, 0.0])
    header, arrays = training.optimization.state_dict()
    again = Optimization(training.optimization.context)
    training.net.cast("float32")
    again.begin(training.recipe, {"net": training.net}, steps=100, steps_per_epoch=100)
    again.load_state_dict(header, arrays, "a.ckpt")
    assert (again.scaler.scaler.skipped_steps, again.scaler.scaler.scale_value) == (1, 32.0)
