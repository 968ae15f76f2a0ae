"""Changes of a converted graph keep outputs, gradients and running statistics, bit by bit."""

import numpy as np
import pytest

import gluontune as gt
from gluontune.runtime import mxnet

torch = pytest.importorskip("torch", reason="wants PyTorch (make setup TORCH=cpu)")

from gluontune.convert.bridge.names import quicken  # noqa: E402

mx = mxnet()
nn = mx.gluon.nn


class Residual(mx.gluon.HybridBlock):
    def __init__(self):
        super().__init__()
        self.body = nn.HybridSequential()
        self.body.add(nn.Conv2D(4, 3, padding=1), nn.BatchNorm())

    def hybrid_forward(self, F, x):
        return F.Activation(self.body(x) + x, act_type="relu")


class ReadTwice(mx.gluon.HybridBlock):
    """What a rectifier reads is read by another layer, and what it gives, too."""

    def __init__(self):
        super().__init__()
        self.first, self.pool = nn.Conv2D(4, 3, padding=1), nn.MaxPool2D(2)

    def hybrid_forward(self, F, x):
        x = self.first(x)
        y = F.Activation(x, act_type="relu")
        return F.concat(self.pool(y), self.pool(x), self.pool(F.sigmoid(y)), dim=1)


def sequential(*layers):
    net = nn.HybridSequential()
    net.add(nn.Conv2D(4, 3, padding=1, in_channels=3), *layers, nn.Flatten(), nn.Dense(5))
    return net


def vgg():
    parts = [part for _ in range(2) for part in (nn.BatchNorm(), nn.Activation("relu"), nn.MaxPool2D(2))]
    return sequential(*parts, nn.Conv2D(4, 3, activation="relu"))


NETS = {
    "conv bn relu pool": (vgg, 5),
    "residual": (lambda: sequential(Residual(), nn.MaxPool2D(3, 2)), 1 + 1),
    "global": (lambda: sequential(nn.Activation("relu"), nn.GlobalMaxPool2D()), 1 + 0),
    "padded": (lambda: sequential(nn.Activation("relu"), nn.MaxPool2D(3, 2, padding=1)), 1),
    "beyond the image": (lambda: sequential(nn.Activation("relu"), nn.MaxPool2D(2, 2, ceil_mode=True)), 1),
    "mean": (lambda: sequential(nn.Activation("relu"), nn.AvgPool2D(2)), 1),
    "read twice": (lambda: sequential(ReadTwice()), 0),
    "sigmoid": (lambda: sequential(nn.Activation("sigmoid"), nn.MaxPool2D(2)), 0),
}


@pytest.mark.parametrize("name", NETS)
def test_nothing_but_the_time_changes(name):
    make, expected = NETS[name]
    net = make()
    net.initialize(mx.init.Xavier(), force_reinit=True)
    x = np.random.default_rng(len(name)).standard_normal((3, 3, 13, 13)).astype("float32")
    net(mx.nd.array(x))
    plain, quick = gt.bridge.to_torch(net), gt.bridge.to_torch(net)
    changed = quicken(quick)
    found = []
    for module in (plain, quick):
        data = torch.tensor(x, requires_grad=True)
        torch.manual_seed(0)
        out = module.train()(data)
        (out * torch.linspace(-1, 1, out.numel()).reshape(out.shape)).sum().backward()
        grads = {n: p.grad for n, p in module.named_parameters() if p.grad is not None}
        module.eval()
        with torch.no_grad():
            again = module(torch.tensor(x))
        found.append({"out": out, "x": data.grad, "eval": again, **grads, **dict(module.named_buffers())})
    assert found[0].keys() == found[1].keys() and len(grads) > 3
    for key, value in found[0].items():
        assert torch.equal(value, found[1][key]), key
    assert changed == expected
