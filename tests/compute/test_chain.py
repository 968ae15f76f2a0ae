"""A chain of compiled blocks that is called several times in a step, as a GAN's discriminator is."""

from __future__ import annotations

import numpy as np
import pytest

from gluontune.compute import HybridizeReport, hybridize, set_mode
from gluontune.runtime import mxnet

mx = mxnet()
nn = mx.gluon.nn


def chain(kind, *layers):
    net = kind()
    net.add(*layers)
    net.initialize(mx.init.Xavier())
    return net


def gradients(kind, prepare):
    """Of both nets, after each backward of three steps; the discriminator is called three times in a step."""
    mx.random.seed(1)
    generator = chain(kind, nn.Dense(8, activation="tanh"), nn.Dense(6))
    critic = chain(kind, nn.Dense(7, activation="relu"), nn.Dense(2))
    critic(generator(mx.nd.ones((4, 5))))
    prepare(generator, mx.nd.ones((4, 5)))
    prepare(critic, mx.nd.ones((4, 6)))
    seen = []
    for step in range(3):
        mx.random.seed(10 + step)
        data, noise = mx.nd.random.normal(shape=(4, 6)), mx.nd.random.normal(shape=(4, 5))
        with mx.autograd.record():
            fake = generator(noise)
            loss = (critic(data) ** 2).sum() + (critic(fake.detach()) ** 3).sum()
        loss.backward()
        seen += [p.grad().asnumpy() for p in critic.collect_params().values()]
        with mx.autograd.record():
            loss = (critic(fake) ** 2).sum()
        loss.backward()
        seen += [p.grad().asnumpy() for net in (generator, critic) for p in net.collect_params().values()]
    return np.concatenate([array.ravel() for array in seen])


@pytest.mark.parametrize("kind", [nn.Sequential, nn.HybridSequential])
@pytest.mark.parametrize("mode", ["hybridized", "static"])
def test_a_mode_computes_the_gradients_of_imperative_mode(kind, mode):
    wanted = gradients(kind, lambda net, x: None)
    found = gradients(kind, lambda net, x: set_mode(net, mode))
    assert np.abs(found - wanted).max() <= 1e-5 * np.abs(wanted).max()


def test_a_race_leaves_such_a_chain_right_where_it_chooses_static(monkeypatch):
    chosen = []

    def static(net, trials, finalists, batches):
        return HybridizeReport(net, next(trial for trial in trials if trial.settings == "static"), trials)

    def raced(net, x):
        chosen.append(hybridize(net, x, rewrites=[], budget_s=5.0, refresh=True).chosen.settings)

    monkeypatch.setattr("gluontune.compute.choose._judge", static)
    wanted, found = gradients(nn.Sequential, lambda net, x: None), gradients(nn.Sequential, raced)
    assert chosen and all(name.startswith("static") for name in chosen)
    assert np.abs(found - wanted).max() <= 1e-5 * np.abs(wanted).max()
