"""A recipe around a stranger's plain loop, and the net afterwards as it was."""

from __future__ import annotations

import numpy as np
import pytest

import gluontune as gt
from gluontune.errors import UsageError
from gluontune.runtime import mxnet

RECIPE = gt.Recipe(rewrites=["pool-to-mean", "fuse-bn-relu"], hybridize="static")


def made():
    mx = mxnet()
    mx.random.seed(1)
    net = gt.train.build_net("small_cnn", 10)
    net.initialize(mx.init.Xavier())
    x = mx.nd.random.uniform(shape=(8, 3, 16, 16))
    net(x)
    return mx, net, x, mx.nd.arange(8)


def loop(mx, net, x, y, steps=5):
    """As Gluon's tutorials have it."""
    loss_fn = mx.gluon.loss.SoftmaxCrossEntropyLoss()
    trainer = mx.gluon.Trainer(net.collect_params(), "sgd", {"learning_rate": 0.1})
    losses = []
    for _ in range(steps):
        with mx.autograd.record():
            loss = loss_fn(net(x), y)
        loss.backward()
        trainer.step(x.shape[0])
        losses.append(float(loss.mean().asscalar()))
    return losses


def test_a_plain_loop_learns_the_same_and_the_net_is_as_it_was():
    mx, plain, x, y = made()
    expected = loop(mx, plain, x, y)
    mx, net, x, y = made()
    classes = [type(child) for child in net._children.values()]
    with gt.applied(RECIPE, net, x) as inside:
        assert inside is net
        assert net._active
        assert [type(child) for child in net._children.values()] != classes
        seen = loop(mx, net, x, y)
    np.testing.assert_allclose(seen, expected, rtol=1e-4)
    assert seen[-1] < seen[0]
    assert not net._active
    assert [type(child) for child in net._children.values()] == classes


def test_outputs_and_parameters_are_identical_afterwards_even_after_an_error():
    _, net, x, _ = made()
    net.hybridize(static_alloc=True)
    flags, before = list(net._flags), net(x).asnumpy()
    held = {name: p.data().asnumpy() for name, p in net.collect_params().items()}
    with pytest.raises(ZeroDivisionError), gt.applied(RECIPE, net, x):
        net(x)
        raise ZeroDivisionError
    assert net._active
    assert list(net._flags) == flags
    assert np.array_equal(net(x).asnumpy(), before)
    for name, p in net.collect_params().items():
        assert np.array_equal(p.data().asnumpy(), held[name]), name


def test_what_cannot_be_undone_is_refused_with_the_way_out():
    _, net, x, _ = made()
    with pytest.raises(UsageError, match="start_process"), gt.applied(gt.Recipe(dtype="bfloat16"), net, x):
        pass
    with pytest.raises(UsageError, match="to_mixed_precision"), gt.applied(gt.Recipe(dtype="float16"), net, x):
        pass
    with pytest.raises(UsageError, match="give a batch"), gt.applied(RECIPE, net):
        pass
