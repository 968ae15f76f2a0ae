"""Several contexts of one process: uneven batches, idle contexts, gradient compression (CPU contexts)."""

from __future__ import annotations

import numpy as np
import pytest

from gluontune import optim
from gluontune.core.errors import UsageError
from gluontune.parallel.kvstore import choose_kvstore, clear_idle, contexts, split_batch
from gluontune.runtime import mxnet

mx = mxnet()
SIZES = (7, 2, 1, 4)  # over three contexts: uneven, and twice some have nothing


def trained(count, kvstore="device", **options):
    ctxs = contexts("cpu", count)
    net = mx.gluon.nn.Dense(3, in_units=5)
    net.initialize(ctx=ctxs)
    net.weight.set_data(mx.nd.arange(15).reshape((3, 5)) / 15)
    trainer = optim.setup("nag", net, learning_rate=0.1, global_batch_size=7, kvstore=kvstore, **options)
    random = np.random.default_rng(0)
    loss = mx.gluon.loss.L2Loss()
    for size in SIZES:
        xs = split_batch(random.normal(size=(size, 5)).astype("float32"), ctxs)
        with mx.autograd.record():
            losses = [loss(net(x), mx.nd.ones((len(x), 3), ctx=x.context)) for x in xs]
        mx.autograd.backward(losses)
        clear_idle(net.collect_params().values(), len(xs))
        trainer.step(size)
    return [net.weight.data(ctx).asnumpy() for ctx in ctxs]


@pytest.mark.parametrize("kvstore", ["device", "local"])
def test_uneven_batches_over_three_contexts_are_one_context(kvstore):
    (alone,) = trained(1)
    several = trained(3, kvstore)
    assert all(np.abs(weights - alone).max() <= 1e-6 for weights in several)


def test_without_care_for_idle_contexts_the_step_is_refused(monkeypatch):
    monkeypatch.setitem(globals(), "clear_idle", lambda parameters, used: None)
    with pytest.raises(UsageError, match="has not been updated"):
        trained(3)


def test_two_bits_with_error_feedback_send_nothing_until_the_threshold():
    """Gradients of 0.3 with threshold 0.5: the first sends 0, the second (residual 0.6) sends 0.5."""
    ctxs = contexts("cpu", 2)
    store = mx.kv.create("device")
    store.set_gradient_compression({"type": "2bit", "threshold": 0.5})
    store.init(0, mx.nd.zeros((4,)))
    seen = []
    for _ in range(3):
        grads = [mx.nd.full((4,), 0.3, ctx=ctx) for ctx in ctxs]
        store.push(0, grads)
        store.pull(0, grads)
        seen.append(float(grads[0][0].asscalar()))
    assert seen == pytest.approx([0.0, 1.0, 0.0])


def test_the_choice_of_kvstore_is_the_fastest_measured(monkeypatch):
    name, times = choose_kvstore(contexts("cpu", 2), [(64, 64), (64,)])
    assert times[name] == min(times.values()) and all(ms > 0 for ms in times.values())


def test_two_bits_move_the_weights_and_keep_the_replicas_alike():
    first, second = trained(2, compression_params={"type": "2bit", "threshold": 0.05})
    start = np.arange(15).reshape(3, 5) / 15
    assert (first == second).all() and np.abs(first - start).max() > 1e-4
    assert np.abs(first - trained(2)[0]).max() > 1e-4
