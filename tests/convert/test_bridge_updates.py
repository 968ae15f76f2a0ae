"""Updates in float64 on both engines, from the same weights and batches: only the last digits may differ."""

from __future__ import annotations

import numpy as np
import pytest

import gluontune as gt

torch = pytest.importorskip("torch", reason="wants PyTorch (make setup TORCH=cpu)")

BATCH, STEPS = 16, 8


def net_of(mx):
    nn = mx.gluon.nn
    net = nn.HybridSequential()
    with net.name_scope():
        net.add(nn.Conv2D(8, 3, padding=1), nn.BatchNorm(), nn.Activation("relu"), nn.MaxPool2D())
        net.add(nn.Conv2D(16, 3), nn.BatchNorm(), nn.Activation("relu"), nn.GlobalAvgPool2D(), nn.Dense(10))
    net.initialize(mx.init.Xavier())
    net(mx.nd.zeros((1, 3, 12, 12)))
    return net


@pytest.mark.parametrize(
    ("optimizer", "learning_rate", "options"),
    [("nag", 0.03, {"momentum": 0.9}), ("adamw", 0.003, {}), ("muon", 0.01, {})],
)
def test_updates_in_float64_agree_to_the_last_digits(optimizer, learning_rate, options):
    from gluontune.optim.torch_rules import TorchOptimizer

    mx = gt.runtime.mxnet()
    mx.random.seed(3)
    net, rng = net_of(mx), np.random.default_rng(3)
    module = gt.bridge.to_torch(net).double().train()
    net.cast("float64")
    loss = mx.gluon.loss.SoftmaxCrossEntropyLoss()
    trainer = gt.optim.setup(
        optimizer, net, learning_rate=learning_rate, global_batch_size=BATCH, lr_scaling="none", wd=1e-3, **options
    )
    weights = {n: p for n, p in net.collect_params().items() if p.grad_req != "null"}
    tensors = dict(module.named_parameters())
    assert set(weights) <= set(tensors)
    rule = TorchOptimizer(optimizer, {n: tensors[n] for n in weights}, lambda number: learning_rate, wd=1e-3, **options)
    before = {n: p.data().asnumpy() for n, p in weights.items()}
    for _ in range(STEPS):
        images, labels = rng.standard_normal((BATCH, 3, 12, 12)), rng.integers(0, 10, BATCH)
        with mx.autograd.record():
            value = loss(net(mx.nd.array(images, dtype="float64")), mx.nd.array(labels, dtype="float64"))
        value.backward()
        trainer.step(BATCH)
        module.zero_grad()
        torch.nn.functional.cross_entropy(
            module(torch.tensor(images)), torch.tensor(labels), reduction="sum"
        ).backward()
        rule.step(1 / BATCH)
    for n, p in weights.items():
        want, got = p.data().asnumpy(), tensors[n].detach().numpy()
        scale = np.abs(want).max()
        if n.endswith("_bias") and "conv" in n:
            continue  # before a BatchNorm: its true gradient is 0, and what is left are last digits
        assert np.abs(want - before[n]).max() > 1e-3 * scale, n
        assert np.abs(want - got).max() <= 1e-10 * scale, n
