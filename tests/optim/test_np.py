"""Nets of mx.np arrays (npx.set_np()): each optimizer trains them exactly as it does a net of NDArrays."""

from __future__ import annotations

import numpy as np
import pytest

from gluontune import optim
from gluontune.runtime import mxnet

mx = mxnet()
nn, npx = mx.gluon.nn, mx.npx

#: A layer of 65,536 weights has kernels of its own; the rest are small.
OPTIONS = {
    "on a kvstore": {"update_on_kvstore": True},
    "clipped and gathered": {"clip_global_norm": 0.5, "accumulate": 2, "clip_gradient": 0.1},
}


def trained(tmp_path, name, **options):
    """The weights after some updates, the last of them by a trainer that has read the first one's states."""
    array = mx.np.array if mx.util.is_np_array() else mx.nd.array
    ctxs = [mx.cpu(0), mx.cpu(1)]
    net = nn.HybridSequential()
    net.add(nn.Conv2D(4, 3), nn.BatchNorm(), nn.Activation("relu"), nn.Dense(256), nn.Dense(256), nn.Dense(3))
    net.initialize(ctx=ctxs)
    trainer = optim.setup(name, net, learning_rate=0.01, batch_size=4, wd=0.01, **options)
    rng = np.random.RandomState(0)
    x = [rng.normal(size=(2, 1, 6, 6)).astype("float32") for _ in ctxs]
    net(array(x[0], ctx=ctxs[0]))
    for param in net.collect_params().values():
        start = rng.normal(0.3, 0.1, size=param.shape)
        param.set_data(array(start if param.grad_req != "null" else np.ones(param.shape), dtype="float32"))
    for step in range(4):
        if step == 2 and "update_on_kvstore" not in options:
            trainer.save_states(str(tmp_path / "states"))
            trainer = optim.setup(name, net, learning_rate=0.01, batch_size=4, wd=0.01, **options)
            trainer.load_states(str(tmp_path / "states"))
        with mx.autograd.record():
            losses = [(net(array(part, ctx=ctx)) ** 2).sum() for part, ctx in zip(x, ctxs)]
        mx.autograd.backward(losses)
        trainer.step(4)
    return [p.data(ctx) for p in net.collect_params().values() for ctx in ctxs]


@pytest.mark.parametrize("how", OPTIONS)
@pytest.mark.parametrize("name", optim.list_optimizers())
def test_a_net_of_np_arrays_is_trained_alike(tmp_path, name, how):
    usual = trained(tmp_path, name, **OPTIONS[how])
    npx.set_np()
    try:
        found = trained(tmp_path, name, **OPTIONS[how])
        assert all(isinstance(weight, mx.np.ndarray) for weight in found)
    finally:
        npx.reset_np()
    for one, other in zip(found, usual):
        np.testing.assert_allclose(one.asnumpy(), other.asnumpy(), rtol=1e-5, atol=1e-6)
