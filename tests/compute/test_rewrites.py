"""Rewrites keep outputs, gradients, parameters and files; undoing gives back the layers that were there."""

from __future__ import annotations

import copy
import functools
import importlib
import os
import subprocess
import sys

import numpy as np
import pytest

from gluontune import runtime
from gluontune.compute import MODES, REWRITES, apply_rewrites, process, rewrites_for, set_mode
from gluontune.core.errors import UnknownNameError, UsageError
from gluontune.runtime import mxnet

mx = mxnet()
nn = mx.gluon.nn


class Block(mx.gluon.HybridBlock):
    """A user's block: children held by attributes, a residual, a pooling with a fixed window."""

    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        with self.name_scope():
            self.stem = nn.Conv2D(16, 3, padding=1, strides=2)
            self.body = nn.HybridSequential()
            self.body.add(nn.Conv2D(16, 3, padding=1, use_bias=False), nn.BatchNorm(), nn.Activation("relu"))
            self.body.add(nn.Conv2D(16, 3, padding=1, use_bias=False), nn.BatchNorm())
            self.pool = nn.AvgPool2D(4)
            self.head = nn.Dense(3)

    def hybrid_forward(self, F, x):
        x = self.stem(x)
        return self.head(self.pool(F.relu(x + self.body(x))))


def gray():
    net = nn.HybridSequential()
    net.add(nn.Conv2D(4, 3, activation="relu"), nn.GlobalAvgPool2D(), nn.Flatten(), nn.Dense(3))
    return net


def resnet20():
    return importlib.import_module("gluoncv").model_zoo.get_model("cifar_resnet20_v1")


def mobilenet():
    return mx.gluon.model_zoo.vision.get_model("mobilenet0.25", classes=3)


def plain():
    """As d2l's chapters and MXNet's examples write nets: plain Sequentials, one in the other."""
    stem = nn.Sequential()
    stem.add(nn.Conv2D(16, 3, padding=1, use_bias=False), nn.BatchNorm(), nn.Activation("relu"))
    net = nn.Sequential()
    net.add(stem, nn.Conv2D(12, 3, padding=1, activation="relu"), nn.GlobalAvgPool2D(), nn.Dense(3))
    return net


class Sentences(mx.gluon.HybridBlock):
    """Windows of words by convolutions of two widths, each with its largest value; sequences with ties."""

    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        with self.name_scope():
            self.narrow, self.wide = nn.Conv1D(5, 2, activation="relu"), nn.Conv1D(4, 4)
            self.pool, self.head = nn.GlobalMaxPool1D(), nn.Dense(3)

    def hybrid_forward(self, F, x):
        x = F.relu(F.concat(x, x, dim=2))  # each value comes twice
        return self.head(F.concat(self.pool(self.narrow(x)), self.pool(self.wide(x)), dim=1))


UNUSUAL = {r.name for r in REWRITES if r.when} | {"whole-sequential", "max-to-pick"}
CASES = {
    "block": (Block, (3, 3, 8, 8), {"pool-to-mean", "pad-channels", "fuse-bn-relu", "order-sums"}),
    "gray": (gray, (2, 1, 7, 6), {"pool-to-mean", "pad-channels"}),
    "cifar_resnet20_v1": (resnet20, (2, 3, 16, 16), set(REWRITES.names()) - UNUSUAL),
    "plain": (plain, (3, 3, 8, 8), {"whole-sequential", "pool-to-mean", "pad-channels", "fuse-bn-relu"}),
    "mobilenet0.25": (mobilenet, (2, 3, 64, 64), {"pool-to-mean", "pad-channels", "fuse-bn-relu"}),
    "sentences": (Sentences, (3, 6, 9), {"max-to-pick"}),
}


def build(name):
    make, shape, _ = CASES[name]
    mx.random.seed(7)
    net = make()
    net.initialize(mx.init.Xavier())
    x = mx.nd.random.normal(shape=shape)
    net(x)
    return net, x


def one_step(net, x):
    """Outputs, gradients and running averages of a training pass, always from fresh averages."""
    for parameter in net.collect_params().values():
        if "running" in parameter.name:
            parameter.set_data(mx.nd.full(parameter.shape, float("var" in parameter.name)))
    with mx.autograd.record():
        out = net(x)
        loss = (out * mx.nd.arange(out.size).reshape(out.shape)).sum()
    loss.backward()
    mx.nd.waitall()
    parameters = net.collect_params().items()
    values = [out.asnumpy(), *(p.grad().asnumpy() for _, p in parameters if p.grad_req != "null")]
    return values + [p.data().asnumpy() for _, p in parameters if "running" in p.name]


def largest_difference(mine, theirs):
    scale = [max(np.abs(a).max(), 1e-3 * max(np.abs(m).max() for m in mine)) for a in mine]
    return max(np.abs(a - b).max() / s for a, b, s in zip(mine, theirs, scale))


@functools.cache
def as_built(name, mode):
    """What a net gives before any rewrite; :func:`build` makes the same one each time."""
    net, x = build(name)
    return one_step(set_mode(net, mode), x)


LARGE = ("cifar_resnet20_v1", "mobilenet0.25")  # each rewrite in one mode of theirs, all together in every mode


@pytest.mark.parametrize(
    ("name", "rewrite", "mode"),
    [
        pytest.param(name, rewrite, mode, marks=[pytest.mark.slow] if often else [])
        for name in CASES
        for rewrite in [*REWRITES.names(), "all"]
        for number, mode in enumerate(MODES)
        for often in [name in LARGE and rewrite != "all" and number > 0]
    ],
)
def test_outputs_and_gradients_agree(name, rewrite, mode):
    net, x = build(name)
    names = REWRITES.names() if rewrite == "all" else [rewrite]
    set_mode(net, mode)
    applied = apply_rewrites(net, names, x)
    # Each net has narrow layers; that rewrite is offered with AMX only, and must be harmless anywhere.
    wanted = set(names) & (CASES[name][2] | ({"narrow-in-float32"} if name != "sentences" else set()))
    if (name, rewrite) == ("plain", "fuse-bn-relu"):
        wanted = set()  # compiled layer by layer its gradient would be wrong: whole-sequential comes first
    assert {change.rewrite for change in applied} == wanted
    assert largest_difference(as_built(name, mode), one_step(net, x)) < 1e-5


@pytest.mark.parametrize("name", list(CASES))
def test_names_of_what_applies(name):
    net, x = build(name)
    assert set(rewrites_for(net, x, device="cpu")) == CASES[name][2]
    assert rewrites_for(net, x, device=mx.cpu()) == rewrites_for(net, x)
    assert rewrites_for(net, x, device="gpu") == ["whole-sequential"] * (name == "plain")
    apply_rewrites(net, REWRITES.names(), x)
    assert rewrites_for(net, x) == []


@pytest.mark.parametrize("name", ["block", "cifar_resnet20_v1"])
def test_parameters_and_files_are_untouched(name, tmp_path):
    net, x = build(name)
    described = [(k, p.name, p.shape, id(p)) for k, p in net.collect_params().items()]
    plain, rewritten = str(tmp_path / "plain.params"), str(tmp_path / "rewritten.params")
    net.save_parameters(plain)
    expected = net(x).asnumpy()
    apply_rewrites(net, REWRITES.names(), x)
    assert [(k, p.name, p.shape, id(p)) for k, p in net.collect_params().items()] == described
    net.save_parameters(rewritten)
    other, _ = build(name)
    for source in (plain, rewritten):
        other.initialize(mx.init.One(), force_reinit=True)
        other.load_parameters(source)
        np.testing.assert_allclose(other(x).asnumpy(), expected, rtol=1e-5, atol=1e-6)
    net.initialize(mx.init.One(), force_reinit=True)
    net.load_parameters(plain)
    np.testing.assert_allclose(net(x).asnumpy(), expected, rtol=1e-5, atol=1e-6)


def test_undo_gives_back_layers_and_mode():
    net, x = build("block")
    set_mode(net, "static")
    classes = [type(b) for b in (net.stem, net.pool, *net.body)]
    expected = one_step(net, x)
    applied = apply_rewrites(net, REWRITES.names(), x)
    assert type(net.pool) is not nn.AvgPool2D and isinstance(net.pool, nn.AvgPool2D)
    applied.undo()
    applied.undo()
    assert [type(b) for b in (net.stem, net.pool, *net.body)] == classes
    assert net._active
    np.testing.assert_array_equal(one_step(net, x)[0], expected[0])


def test_the_paths_of_changes_lead_to_the_layers():
    net, x = build("block")
    changes = apply_rewrites(net, ["pad-channels", "fuse-bn-relu", "pool-to-mean"], x)
    assert [tuple(c) for c in changes] == [
        ("pool", "pool-to-mean"), ("stem", "pad-channels"), ("body.1", "fuse-bn-relu"), ("body.2", "fuse-bn-relu"),
    ]  # fmt: skip


def test_nothing_to_do_is_said_and_changes_nothing():
    net = nn.HybridSequential()
    net.add(nn.Dense(3))
    net.initialize()
    applied = apply_rewrites(net, REWRITES.names(), mx.nd.ones((2, 4)))
    assert list(applied) == [] and len(applied.notes) == len(REWRITES)
    assert all(name in note for name, note in zip(REWRITES.names(), applied.notes))
    applied.undo()


def test_wrong_use():
    net = nn.HybridSequential()
    with pytest.raises(UnknownNameError, match="did you mean 'pool-to-mean'"):
        apply_rewrites(net, ["pool-to-means"])
    with pytest.raises(UsageError, match="give a Gluon block"):
        apply_rewrites("net", [])
    net.add(nn.GlobalAvgPool2D())
    with pytest.raises(UsageError, match="sample input 0 is a ndarray"):
        apply_rewrites(net, ["pool-to-mean"], np.zeros((1, 1, 2, 2)))


def test_a_pooling_that_leaves_more_than_one_value_stays():
    net = nn.HybridSequential()
    net.add(nn.AvgPool2D(2), nn.AvgPool2D(3, padding=1), nn.MaxPool2D(2), nn.GlobalMaxPool2D())
    assert rewrites_for(net, mx.nd.ones((1, 3, 12, 12))) == []


def test_a_larger_map_than_the_one_seen_is_an_error_and_never_a_wrong_value():
    net = nn.HybridSequential()
    net.add(nn.AvgPool2D(4))
    apply_rewrites(net, ["pool-to-mean"], mx.nd.ones((1, 3, 4, 4)))
    for mode in MODES:
        set_mode(net, mode)
        assert net(mx.nd.ones((5, 3, 4, 4))).shape == (5, 3, 1, 1)
        with pytest.raises(mx.base.MXNetError):
            net(mx.nd.ones((1, 3, 8, 8))).wait_to_read()


def test_a_tensor_between_norm_and_relu_that_is_used_elsewhere_is_respected():
    class Tap(mx.gluon.HybridBlock):
        def __init__(self):
            super().__init__()
            self.body = nn.HybridSequential()
            self.body.add(nn.Conv2D(4, 1), nn.BatchNorm(), nn.Activation("relu"))

        def hybrid_forward(self, F, x):
            between = self.body[1](self.body[0](x))
            return self.body[2](between) + between

    net = Tap()
    net.initialize()
    assert "fuse-bn-relu" not in rewrites_for(net, mx.nd.ones((2, 3, 4, 4)))


def test_subclasses_of_layers_are_left_alone():
    class Special(nn.GlobalAvgPool2D):
        def hybrid_forward(self, F, x):
            return 2 * super().hybrid_forward(F, x)

    net = nn.HybridSequential()
    net.add(Special())
    assert rewrites_for(net, mx.nd.ones((1, 3, 4, 4))) == []


def test_channels_last_and_grouped_layers():
    net = nn.HybridSequential()
    net.add(nn.GlobalAvgPool2D(layout="NHWC"))
    x = mx.nd.random.uniform(shape=(2, 4, 3, 5))
    apply_rewrites(net, ["pool-to-mean"], x)
    np.testing.assert_allclose(net(x).asnumpy(), x.asnumpy().mean(axis=(1, 2), keepdims=True), rtol=1e-6)
    grouped = nn.Conv2D(6, 1, groups=3, in_channels=3)
    assert rewrites_for(grouped) == []


def test_a_rewritten_net_can_be_copied():
    net, x = build("block")
    apply_rewrites(net, REWRITES.names(), x)
    twin = copy.deepcopy(net)
    np.testing.assert_allclose(twin(x).asnumpy(), net(x).asnumpy(), rtol=1e-6)


def test_hybridized_nets_are_seen_through_and_hooks_are_gone():
    net, x = build("cifar_resnet20_v1")
    set_mode(net, "static")
    net(x)
    assert rewrites_for(net, x) == [name for name in REWRITES.names() if name not in UNUSUAL]
    assert net._cached_op is not None and net._active
    assert not net.features[0]._forward_hooks


def test_a_plain_sequential_is_compiled_whole_and_given_back():
    net, x = build("plain")
    for mode in ("imperative", "static"):
        set_mode(net, mode)
        expected, before = one_step(net, x), set(vars(net))
        applied = apply_rewrites(net, ["whole-sequential"], x)
        assert [c.path for c in applied] == ["", "0"] and type(net).__name__ == "Sequential"
        assert net._active == (mode == "static"), "it keeps the mode of its layers"
        assert largest_difference(expected, one_step(net, x)) < 1e-5
        assert (net._cached_op is not None) == (mode == "static"), "one graph for all its layers"
        applied.undo()
        assert type(net) is type(net[0]) is nn.Sequential and set(vars(net)) == before


def test_a_sequential_with_code_of_its_own_in_it_stays_plain():
    class Own(mx.gluon.Block):
        def forward(self, x):
            return x + float(x.sum().asscalar() > 0)

    net, inner = nn.Sequential(), nn.Sequential()
    inner.add(nn.Dense(3), nn.Dense(3))
    net.add(inner, Own())
    net.initialize()
    x = mx.nd.ones((2, 4))
    assert [tuple(c) for c in apply_rewrites(net, ["whole-sequential"], x)] == [("0", "whole-sequential")]
    set_mode(net, "static")
    assert net(x).shape == (2, 3) and net[0]._cached_op is not None


def test_every_rewrite_has_a_card():
    for rewrite in REWRITES:
        assert rewrite.devices and all((rewrite.card.replaces, rewrite.card.why_slow, rewrite.card.when_it_helps))
        assert REWRITES[rewrite.name] is rewrite


NARROW = """
import numpy as np
from gluontune import compute
from gluontune.runtime import mxnet
mx = mxnet()
nn = mx.gluon.nn

class Branches(mx.gluon.HybridBlock):
    def __init__(self):
        super().__init__(prefix="net_")
        with self.name_scope():
            self.stem = nn.Conv2D(16, 3, padding=1, in_channels=3)
            self.narrow = nn.Conv2D(32, 3, padding=1, in_channels=16, use_bias=False)
            self.norm = nn.BatchNorm(in_channels=32)
            self.second = nn.Conv2D(32, 3, padding=1, in_channels=16, use_bias=False)
            self.wide = nn.Conv2D(32, 3, padding=1, in_channels=32, use_bias=False)
    def hybrid_forward(self, F, x):
        x = F.relu(self.stem(x))
        return self.norm(self.narrow(x)) + self.wide(self.second(x))

def outputs(net, x):
    with mx.autograd.record():
        stem, out = net.stem(x), net(x)
        loss = out.astype("float32").square().mean()
    loss.backward()
    grads = [p.grad().asnumpy() for p in net.collect_params().values() if p.grad_req != "null"]
    return stem.astype("float32").asnumpy(), out.astype("float32").asnumpy(), grads

mx.random.seed(3)
net = Branches()
net.initialize(mx.init.Xavier())
x = mx.nd.random.uniform(shape=(2, 3, 8, 8))
exact = outputs(net, x)
compute.start_process("bfloat16", "cpu")
plain = outputs(net, x)
for mode in ("imperative", "static"):
    applied = compute.apply_rewrites(net, ["pad-channels", "narrow-in-float32"], x)
    paths = [c.path for c in applied if c.rewrite == "narrow-in-float32"]
    assert paths == ["stem", "narrow", "second", "norm"], paths
    compute.set_mode(net, mode)
    cured = outputs(net, x)
    error = [abs(stem - exact[0]).max() for stem in (plain[0], cured[0])]
    assert error[0] > 1e-4 and error[1] < 1e-6, error
    np.testing.assert_allclose(cured[1], exact[1], atol=0.1)
    for mine, theirs in zip(cured[2], exact[2]):
        np.testing.assert_allclose(mine, theirs, atol=0.05 * abs(theirs).max() + 1e-6)
    applied.undo()
    assert type(net.stem) is nn.Conv2D and type(net.norm) is nn.BatchNorm
compute.set_mode(net, "imperative")
again = outputs(net, x)
assert abs(again[0] - plain[0]).max() == 0
print("AGREES", "narrow-in-float32" in compute.rewrites_for(net, x))
"""


def test_narrow_convolutions_stay_in_float32_where_the_others_are_bfloat16():
    level = process.bfloat16_support().level
    wish = {**os.environ, "OMP_NUM_THREADS": "1", **runtime.AMX_ENV}
    done = subprocess.run([sys.executable, "-c", NARROW], env=wish, capture_output=True, text=True)
    if level == "none":
        assert "cannot run here" in done.stderr
        return
    assert "AGREES" in done.stdout, done.stderr[-1500:]
    offered = done.stdout.split()[-1] == "True"
    assert offered == (runtime.amx_support().level == "granted"), "offered only where AMX computes"
