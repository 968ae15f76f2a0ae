"""Range test, ghost batch norm, gradient noise, batch growth, trust ratios."""

from __future__ import annotations

import math

import numpy as np
import pytest

from gluontune import optim
from gluontune.core.errors import GluontuneError, UsageError
from gluontune.optim.schedules import cosine, multifactor
from gluontune.runtime import mxnet

mx = mxnet()
nn = mx.gluon.nn


def small_net():
    mx.random.seed(1)
    net = nn.HybridSequential()
    net.add(nn.Dense(16, activation="relu"), nn.BatchNorm(), nn.Dense(3))
    net.initialize(mx.init.Xavier())
    return net


def labelled(n=64, batch=16):
    rng = np.random.default_rng(0)
    label = rng.integers(0, 3, n)
    data = (rng.normal(size=(n, 5)) + label[:, None]).astype("float32")
    return [(mx.nd.array(data[i : i + batch]), mx.nd.array(label[i : i + batch])) for i in range(0, n, batch)]


class Shuffled:
    """A loader whose order comes from numpy's global generator, as Gluon's does."""

    def __iter__(self):
        batches = labelled()
        return iter([batches[i] for i in np.random.permutation(len(batches))])


LOSS = mx.gluon.loss.SoftmaxCrossEntropyLoss()


def test_the_range_test_repeats_suggests_and_leaves_the_net_alone(tmp_path):
    net = small_net()
    net(labelled()[0][0])
    before = {n: p.data().asnumpy() for n, p in net.collect_params().items()}
    np.random.seed(99)
    state = np.random.get_state()[1].copy()
    first = optim.find_learning_rate(net, LOSS, Shuffled(), updates=60, lr_max=100.0, seed=5)
    assert (np.random.get_state()[1] == state).all()
    second = optim.find_learning_rate(net, LOSS, Shuffled(), updates=60, lr_max=100.0, seed=5)
    assert first == second
    other = optim.find_learning_rate(net, LOSS, Shuffled(), updates=60, lr_max=100.0, seed=6)
    assert other.losses != first.losses
    for n, p in net.collect_params().items():
        assert (p.data().asnumpy() == before[n]).all(), n
    lowest = first.learning_rates[int(np.argmin(first.smoothed))]
    assert first.diverged and 1e-4 < first.suggestion < lowest
    figure = first.plot(tmp_path / "range.svg")
    assert len(figure.axes[0].lines) == 3 and (tmp_path / "range.svg").stat().st_size > 1000


def test_the_range_test_refuses_what_it_cannot_measure():
    net = small_net()
    with pytest.raises(UsageError, match="no batch"):
        optim.find_learning_rate(net, LOSS, [])
    with pytest.raises(UsageError, match="lr_min=1"):
        optim.find_learning_rate(net, LOSS, labelled(), lr_min=1.0, lr_max=0.5)
    with pytest.raises(GluontuneError, match="not finite before the first update"):
        optim.find_learning_rate(net, lambda out, label: LOSS(out, label) * math.nan, labelled())


@pytest.mark.parametrize("hybrid", [False, True])
def test_ghost_batch_norm_normalizes_each_part_by_itself(hybrid):
    x = np.random.default_rng(0).normal(2, 3, size=(12, 3, 4, 4)).astype("float32")
    layer = optim.GhostBatchNorm(num_ghosts=3, in_channels=3, momentum=0.8, epsilon=1e-5)
    layer.initialize()
    if hybrid:
        layer.hybridize()
    with mx.autograd.record():
        result = layer(mx.nd.array(x))
    result.backward()  # MXNet updates the running statistics on the way back, so the last part comes first
    out = result.asnumpy()
    mean, var = np.zeros(3), np.ones(3)
    for k in (2, 1, 0):
        part = x[4 * k : 4 * k + 4]
        m, v = part.mean((0, 2, 3)), part.var((0, 2, 3))
        expected = (part - m[:, None, None]) / np.sqrt(v[:, None, None] + 1e-5)
        np.testing.assert_allclose(out[4 * k : 4 * k + 4], expected, rtol=1e-3, atol=1e-4)
        mean, var = 0.8 * mean + 0.2 * m, 0.8 * var + 0.2 * v  # algorithm 1: one part after the other
    mx.nd.waitall()
    np.testing.assert_allclose(layer.running_mean.data().asnumpy(), mean, rtol=1e-4)
    np.testing.assert_allclose(layer.running_var.data().asnumpy(), var, rtol=2e-2)  # n or n - 1
    whole = layer(mx.nd.array(x)).asnumpy()  # inference: the running statistics, no parts
    now_mean, now_var = layer.running_mean.data().asnumpy(), layer.running_var.data().asnumpy()
    expected = (x - now_mean[:, None, None]) / np.sqrt(now_var[:, None, None] + 1e-5)
    np.testing.assert_allclose(whole, expected, rtol=1e-3, atol=1e-4)


def test_a_net_is_turned_with_its_parameters():
    net = small_net()
    net.hybridize()
    batch = labelled()[0][0]
    inference = net(batch).asnumpy()
    names = list(net.collect_params())
    with mx.autograd.record():
        plain = net(batch).asnumpy()
    assert optim.use_ghost_batch_norm(net, 4) == 1
    assert list(net.collect_params()) == names and isinstance(net[1], optim.GhostBatchNorm)
    with mx.autograd.record():
        ghost = net(batch).asnumpy()
    assert np.abs(ghost - plain).max() > 0.05  # the traced graph was made anew
    assert inference.shape == net(batch).shape
    with pytest.raises(UsageError, match=r"no gluon.nn.BatchNorm"):
        optim.use_ghost_batch_norm(nn.Dense(2), 4)
    with pytest.raises(UsageError, match="num_ghosts=0"):
        optim.use_ghost_batch_norm(net, 0)
    net.hybridize(False)
    with mx.autograd.record(), pytest.raises(UsageError, match="a batch of 6 cannot be cut into 4"):
        net(batch[:6])
    assert net(batch[:6]).shape == (6, 3)


def test_gradient_noise_keeps_the_mean_and_gives_the_covariance_of_the_small_batch():
    """Gradient of mean(w * a_n * z_n) over 64 samples, against batches of 16 without noise."""
    rng = np.random.default_rng(0)
    a = rng.normal(size=4096).astype("float32")  # mean about 0, so that its square is the covariance
    sigma = optim.noise_sigma(64, 16)
    assert sigma == pytest.approx(math.sqrt(3))
    mx.random.seed(0)
    w = mx.nd.ones((1,))
    w.attach_grad()
    noisy = []
    for _ in range(1500):
        picked = mx.nd.array(rng.choice(a, 64))
        with mx.autograd.record():
            loss = optim.gradient_noise(w * picked, sigma)
        loss.backward()
        noisy.append(w.grad.asscalar() / 64)
    small = rng.choice(a, (20000, 16)).mean(1)
    assert np.std(noisy) == pytest.approx(small.std(), rel=0.08)
    assert np.mean(noisy) == pytest.approx(a.mean(), abs=4 * np.std(noisy) / math.sqrt(1500))
    assert optim.gradient_noise(w, 0.0) is w
    with pytest.raises(UsageError, match="sigma=-1"):
        optim.gradient_noise(w, -1)
    with pytest.raises(UsageError, match="smaller batch"):
        optim.noise_sigma(16, 64)


def test_the_batch_grows_where_the_rate_would_fall():
    falling = multifactor(base_lr=0.1, steps=[30, 60, 80], factor=0.2)
    plan = optim.BatchGrowth(falling, 128, 5120)
    for epoch in (0, 15, 31, 61, 81, 90):
        batch, rate = plan.at(epoch)
        assert rate / batch == pytest.approx(falling(epoch) / 128)  # the noise scale is that of the decay
        assert batch % 128 == 0 and batch <= 5120
    assert [plan.at(e)[0] for e in (0, 31, 61, 81)] == [128, 640, 3200, 5120]
    updates = plan.updates(50_000, 90)
    assert sum(batch for batch, _ in updates) >= 90 * 50_000 > sum(batch for batch, _ in updates[:-1])
    assert len(updates) < 0.45 * 90 * 50_000 / 128
    assert optim.BatchGrowth(cosine(base_lr=1, max_update=10), 32, 128).at(10) == (128, 0)
    with pytest.raises(UsageError, match="max_batch_size=64"):
        optim.BatchGrowth(falling, 128, 64)


def test_trust_ratios_by_layer(tmp_path):
    net = small_net()
    data, label = labelled()[0]
    trainer = optim.setup("lars", net, learning_rate=1.0, global_batch_size=16, wd=0.1, momentum=0.0)
    with mx.autograd.record():
        loss = LOSS(net(data), label)
    loss.backward()
    before = {n: p.data().asnumpy() for n, p in net.collect_params().items()}
    trainer.step()
    moved = {n: before[n] - p.data().asnumpy() for n, p in net.collect_params().items()}
    ratios = optim.trust_ratios(trainer)
    assert sorted(ratios) == sorted(n for n in before if n.endswith("weight"))
    for n, ratio in ratios.items():
        step = net.collect_params()[n].grad().asnumpy() / 16 + 0.1 * before[n]
        # read after the update, which moved the weight by 0.1 % of its norm at most
        assert np.linalg.norm(moved[n]) / np.linalg.norm(step) == pytest.approx(ratio, rel=5e-3)
    optim.plot_trust_ratios(ratios, path=tmp_path / "bars.png")
    lines = optim.plot_trust_ratios([ratios, ratios, ratios])
    assert len(lines.axes[0].lines) == 2 and (tmp_path / "bars.png").exists()
    with pytest.raises(UsageError, match="has no trust ratio"):
        optim.trust_ratios(optim.setup("nag", net, learning_rate=1.0, global_batch_size=16))
