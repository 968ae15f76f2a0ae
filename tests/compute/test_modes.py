"""Nets that compute something else in training: traced in both modes, compiled for both, converted with both."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import gluontune as gt
from gluontune.compute.tracing import asks_for_mode, place_of_branch, traced
from gluontune.core.errors import GluontuneError, UsageError
from gluontune.runtime import mxnet
from gluontune.runtime.pytorch import torch

mx = mxnet()
nn = mx.gluon.nn


class Branching(nn.HybridSequential):
    """As gluon-cv's SSD: what comes out of it in prediction is not what is trained."""

    def hybrid_forward(self, F, x):
        y = super().hybrid_forward(F, x)
        return y if mx.autograd.is_training() else -2 * y


class InTraining(nn.HybridBlock):
    """An operator that training alone has."""

    def __init__(self, operate, **kwargs):
        super().__init__(**kwargs)
        self.operate = operate

    def hybrid_forward(self, F, x):
        return self.operate(F, x) if mx.autograd.is_training() else x


class TargetsInTraining(nn.HybridBlock):
    """As gluon-cv's Faster R-CNN: in training it takes more."""

    def hybrid_forward(self, F, x, targets=None):
        return x * targets.sum() if mx.autograd.is_training() else x


def make(kind=Branching, *args):
    mx.random.seed(1)
    net = nn.HybridSequential(prefix="") if kind is not Branching else Branching(prefix="")
    with net.name_scope():
        net.add(nn.Conv2D(8, 3), nn.BatchNorm(), nn.Activation("relu"), nn.MaxPool2D(), nn.Dense(4))
        if kind is not Branching:
            net.add(kind(*args))
    net.initialize(mx.init.Xavier())
    net(mx.nd.array(x))
    return net


x = np.random.default_rng(0).normal(size=(4, 3, 8, 8)).astype("float32")


def test_a_branch_on_the_mode_is_seen_and_dropout_is_none():
    net = make()
    assert traced(net).differs and asks_for_mode(net)
    texts = Path(__file__).read_text("utf-8").splitlines()
    line = 1 + next(n for n, text in enumerate(texts) if "return y if mx" in text)
    assert place_of_branch(net) == f"Branching, {__file__}:{line}"
    own = {"hybrid_forward": Branching.hybrid_forward}
    wrapped = mx.util.use_np(type("Wrapped", (nn.HybridSequential,), own))()
    assert asks_for_mode(wrapped) and place_of_branch(wrapped).endswith(f":{line}")
    plain = nn.HybridSequential()
    plain.add(nn.Dense(3), nn.Dropout(0.5), nn.BatchNorm())
    plain.initialize()
    assert not traced(plain).differs and not asks_for_mode(plain)


class Drawing(nn.HybridBlock):
    """Draws while it is traced, whatever the mode."""

    def hybrid_forward(self, F, x):
        return x * float(np.random.rand())


def test_a_net_that_differs_at_each_trace_is_not_taken_for_one_of_two_modes():
    assert not traced(Drawing()).differs


def test_a_net_of_random_depth_in_training_is_refused_by_name(tmp_path):
    """Stochastic depth by Python's random numbers: any one graph would train another net."""
    net = make(InTraining, lambda F, x: x * float(np.random.rand()))
    found = traced(net)
    assert found.train is None and "another graph each time" in found.why
    with pytest.raises(GluontuneError, match="another graph each time"):
        gt.bridge.check(net, gt.bridge.to_torch(net), x, train=True)
    with pytest.raises(GluontuneError, match="another graph each time"):
        gt.bridge.migrate(net, tmp_path / "out", x)


def test_a_graph_that_gluon_keeps_is_not_taken_for_that_of_the_other_mode():
    net = make()
    net.hybridize()
    with mx.autograd.record():
        trained = net(mx.nd.array(x)).asnumpy()
    module = gt.bridge.to_torch(net)
    predicted = module(torch().from_numpy(x)).detach().numpy()
    assert predicted.shape == trained.shape
    assert gt.bridge.check(net, module, x).output < 1e-5
    assert gt.bridge.check(net, module, x, train=True).gradient < 1e-5


@pytest.mark.parametrize("mode", ["hybridized", "static"])
@pytest.mark.parametrize("inside", ["itself", "a HybridSequential", "a plain Sequential"])
def test_a_compiled_net_trains_and_predicts_as_the_imperative_one(mode, inside):
    losses = {}
    for way in ("imperative", mode):
        net = make()
        if inside != "itself":
            outer = nn.Sequential() if "plain" in inside else nn.HybridSequential()
            outer.add(net, nn.Dense(2, in_units=4, weight_initializer="ones"))
            outer[1].initialize()
            net = outer
        gt.compute.set_mode(net, way)
        trainer = gt.optim.setup("sgd", net, learning_rate=0.1, batch_size=4)
        losses[way] = found = []
        for step in range(4):
            if step == 2:
                gt.compute.set_mode(net, way)  # what was compiled is cleared
            with mx.autograd.record():
                loss = net(mx.nd.array(x)).square().mean()
            loss.backward()
            trainer.step(1)
            found += [loss.asnumpy(), net(mx.nd.array(x)).asnumpy()]
            with mx.autograd.record(train_mode=False):  # gluon-cv's YOLO asks for this, too
                found.append(net(mx.nd.array(x)).asnumpy())
    for plain, compiled in zip(losses["imperative"], losses[mode]):
        np.testing.assert_allclose(compiled, plain, rtol=1e-5, atol=1e-6)


def test_a_compiled_state_that_is_put_back_keeps_its_mode():
    """As measuring modes in turn does, while the net is used in both modes between."""
    from gluontune.compute._passes import capture, restore

    net, plain = make(), make()
    gt.compute.set_mode(net, "static")
    images = mx.nd.array(x)
    with mx.autograd.record():
        net(images)
    state = capture(net)
    for _ in range(2):
        np.testing.assert_allclose(net(images).asnumpy(), plain(images).asnumpy(), rtol=1e-5, atol=1e-5)
        restore(state)
    np.testing.assert_allclose(net(images).asnumpy(), plain(images).asnumpy(), rtol=1e-5, atol=1e-5)


def test_one_compiled_graph_serves_both_modes_where_they_are_alike():
    net = gt.train.build_net("small_cnn", 10)
    net.initialize()
    gt.compute.set_mode(net, "static")
    images = mx.nd.ones((2, 3, 16, 16))
    with mx.autograd.record():
        net(images)
    compiled = net._cached_op
    net(images)
    assert net._cached_op is compiled


def test_the_check_says_where_gluon_would_keep_one_graph():
    found = gt.compute.check_hybridizable(make(), mx.nd.array(x))
    assert found.ok and [f.severity for f in found.findings] == ["warning"]
    assert "something else in training" in found.findings[0].reason
    assert found.findings[0].where.startswith(__file__)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("train", [False, True])
def test_the_module_has_both_graphs_and_is_compared_in_both(train, dtype):
    net = make()
    module = gt.bridge.to_torch(net)
    found = gt.bridge.check(net, module, x, train=train, dtype=dtype)
    assert max(found.output, found.gradient) < (1e-12 if dtype == "float64" else 1e-5)
    names = {name for name, _ in module.named_parameters()}
    assert names == {n for n in net.collect_params() if "running" not in n}
    both = module.modes_
    both.predict, both.graph_of_training = both.graph_of_training, both.predict
    assert gt.bridge.check(net, module, x, train=train).output > 0.5  # compared with its own mode, not with itself


def test_both_graphs_are_made_faster_and_stay_what_they_are():
    from gluontune.convert.bridge.names import quicken

    net = make()
    module = gt.bridge.to_torch(net)
    assert quicken(module) == 4  # a rectifier before a pooling, in each graph
    assert gt.bridge.check(net, module, x, train=True).gradient < 1e-5


def test_two_symbols_make_the_same_module():
    net = make()
    graphs = traced(net)
    arrays = {name: p.data().asnumpy() for name, p in net.collect_params().items()}
    module = gt.bridge.to_torch(graphs.predict, arrays, training=graphs.train)
    assert gt.bridge.check(net, module, x, train=True).gradient < 1e-5


@pytest.mark.parametrize(
    ("kind", "args", "said"),
    [
        (TargetsInTraining, (), "AttributeError"),
        (InTraining, (lambda F, x: F.Custom(x, op_type="unheard_of"),), ""),
        (InTraining, (lambda F, x: F.linalg.gelqf(x)[1],), "_linalg_gelqf"),
    ],
)
def test_what_can_only_predict_is_converted_for_prediction_and_says_so(kind, args, said):
    net = make(kind, *args)
    module = gt.bridge.to_torch(net)
    assert gt.bridge.check(net, module, x).output < 1e-5
    with pytest.raises(GluontuneError, match=f"for prediction alone.*{said}"):
        module.train()
    if said == "AttributeError":
        with pytest.raises(UsageError, match=r"in training mode it cannot be traced at .*test_modes\.py:"):
            gt.bridge.check(net, module, x, train=True)


def test_migrate_writes_both_modes(tmp_path):
    made = gt.bridge.migrate(make(), tmp_path / "out", x)
    assert made.agrees, made.told
    assert "if self.training:" in (tmp_path / "out" / "model.py").read_text(encoding="utf-8")


JOB = """
from mxnet import autograd
from mxnet.gluon import nn

class Net(nn.HybridSequential):
    def hybrid_forward(self, F, x):
        y = super().hybrid_forward(F, x)
        return y if autograd.is_training() else -2 * y

def net():
    net = Net()
    net.add(nn.Conv2D(8, 3, strides=2, activation="relu"), nn.GlobalAvgPool2D(), nn.Dense(10))
    return net

def data():
    return "sample"
"""


def losses_of(tmp_path, reused, **change):
    (tmp_path / "job.py").write_text(JOB)
    recipe = gt.Recipe(
        job=str(tmp_path / "job.py"), loader="resident", train_samples=320, val_samples=100, batch_size_per_device=32,
        epochs=1, learning_rate=0.5, **change,
    )  # fmt: skip
    result = gt.train.run(recipe, site=None if "backend" in change else reused.site)
    assert result.ok, result.error
    return [*result.train_loss, *result.val_loss]


@pytest.mark.parametrize(
    "change", [{"hybridize": "hybridized"}, pytest.param({"backend": "torch"}, marks=pytest.mark.slow)]
)
def test_every_engine_and_mode_trains_a_net_of_two_graphs_alike(tmp_path, reused, change):
    plain = losses_of(tmp_path, reused)
    np.testing.assert_allclose(losses_of(tmp_path, reused, **change), plain, rtol=1e-3)


def test_pytorchs_engine_is_given_both_graphs(tmp_path):
    from gluontune.engines.torch.export import export_job

    (tmp_path / "job.py").write_text(JOB)
    job = export_job(gt.Recipe(job=str(tmp_path / "job.py"), backend="torch", loader="resident"))
    module = gt.bridge.to_torch(job.net, job.arrays, training=job.training)
    images = torch().ones(2, 1, 28, 28)
    predicted, trained = (module.train(mode)(images).detach().numpy() for mode in (False, True))
    np.testing.assert_allclose(predicted, -2 * trained, rtol=1e-6)
