"""Stochastic depth: branches dropped per image in training, none in inference."""

from __future__ import annotations

import numpy as np
import pytest

from gluontune import compute
from gluontune.core.errors import UsageError
from gluontune.recipe import Recipe
from gluontune.runtime import mxnet
from gluontune.train import build_net, load_job

mx = mxnet()


def resnet(rate=None):
    mx.random.seed(0)
    net = build_net("cifar_resnet20_v1", 10)
    if rate is not None:
        compute.add_stochastic_depth(net, rate)
    net.initialize(mx.init.Xavier())
    net(mx.nd.zeros((1, 3, 32, 32)))
    return net


@pytest.mark.parametrize("mode", ["imperative", "static"])
def test_inference_and_parameters_are_those_of_the_plain_net(mode):
    images = mx.nd.random.normal(shape=(4, 3, 32, 32))
    plain, deep = resnet(), resnet(0.5)
    names = list(plain._collect_params_with_prefix())
    assert names == list(deep._collect_params_with_prefix())
    compute.set_mode(deep, mode)
    np.testing.assert_array_equal(plain(images).asnumpy(), deep(images).asnumpy())


def test_a_branch_is_dropped_for_a_whole_image_at_its_rate_and_the_rest_scaled():
    nn = mx.gluon.nn

    class Block(nn.HybridSequential):
        def __init__(self):
            super().__init__()
            self.body, self.downsample = nn.HybridSequential(), None

        def hybrid_forward(self, F, x):
            return x + self.body(x)

    class Net(mx.gluon.HybridBlock):
        def __init__(self):
            super().__init__()
            self.block = Block()

        def hybrid_forward(self, F, x):
            return self.block.hybrid_forward(F, x)

    net = Net()
    assert compute.add_stochastic_depth(net, 0.25) == [0.25]
    net.initialize()
    mx.random.seed(3)
    x = mx.nd.ones((4000, 2, 3, 3))
    with mx.autograd.record():
        out = net(x).asnumpy()
    each = out.reshape(4000, -1)
    assert np.all(each == each[:, :1])  # an image is dropped whole or kept whole
    assert set(np.unique(each.round(4))) == {1.0, np.float32(round(1 + 1 / 0.75, 4))}
    assert (each[:, 0] == 1).mean() == pytest.approx(0.25, abs=0.03)
    assert each[:, 0].mean() == pytest.approx(2.0, abs=0.04)  # the expectation of inference


def test_a_recipe_brings_it_to_the_net_and_bad_rates_are_refused():
    job = load_job(Recipe(stochastic_depth=0.3))
    net = job.net()
    assert [b for b in str(net).splitlines() if "Dropout(p = 0.3" in b]
    with pytest.raises(UsageError, match="no residual block"):
        load_job(Recipe(net="small_cnn", stochastic_depth=0.3)).net()
    with pytest.raises(UsageError, match="below 1"):
        Recipe(stochastic_depth=1.0)
    with pytest.raises(UsageError, match="above 0"):
        compute.add_stochastic_depth(net, 0)
