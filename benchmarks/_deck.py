"""Networks of the deck's table of Intel CPUs, a process each: work of ``python -m benchmarks deck``."""

from __future__ import annotations

import importlib
from typing import Any

import numpy as np

__all__ = ["make"]

_OUTPUTS = 2000  # numbers of the output for the comparison


def make(name: str, batch_size: int) -> DeckNet:
    """Called in the process. ``name`` is of :data:`benchmarks.deck.NETWORKS`."""
    return DeckNet(name, batch_size)


class DeckNet:
    """A network with random weights on a synthetic batch; the same weights and inputs in every process."""

    def __init__(self, name: str, batch_size: int):
        from benchmarks.deck import NETWORKS
        from gluontune.runtime import mxnet

        mx = self.mx = mxnet()
        self.batch_size, network = batch_size, NETWORKS[name]
        mx.random.seed(0)
        np.random.seed(0)
        self.net = _build(network.net)
        for name, value in (("gamma|_var", "ones"), ("beta|_mean", "zeros")):
            for parameter in self.net.collect_params(f".*({name})$").values():
                parameter.init = value  # SSD's BatchNorms name no initializer, and Xavier refuses vectors
        self.net.initialize(mx.init.Xavier("gaussian", "in", 2))  # He et al.: features keep their size
        rng = np.random.default_rng(0)
        self.x = mx.nd.array(rng.normal(size=(batch_size, *network.shape)).astype("float32"))
        self.net(self.x[:1])
        self.net.hybridize(static_alloc=True, static_shape=True)
        self.info = {"versions": {"mxnet": mx.__version__}}

    def step(self) -> int:
        """Predict one batch and wait for it; returns its images."""
        outputs = self.net(self.x)
        for value in outputs if isinstance(outputs, (list, tuple)) else [outputs]:
            value.wait_to_read()
        return self.batch_size

    def outputs(self) -> list[float]:
        """The first numbers of the outputs for the first image."""
        found = self.net(self.x)
        first = found if not isinstance(found, (list, tuple)) else found[-1]
        return first[:1].astype("float32").asnumpy().ravel()[:_OUTPUTS].tolist()


def _build(name: str) -> Any:
    from gluontune.job.job import build_net

    if name in _STAND_INS:
        return _STAND_INS[name]()
    if name.startswith("ssd_"):
        zoo = importlib.import_module("gluoncv.model_zoo")
        return zoo.get_model(name, pretrained=False, pretrained_base=False)
    return build_net(name, 1000)


def _small_gnmt() -> Any:
    """Two LSTM layers over a sequence of 16 embeddings, then scores of a small vocabulary: a stand-in for GNMT.

    Cell by cell, because the fused LSTM of MXNet 1.9.1 fails with oneDNN off.
    """
    from gluontune.runtime import mxnet

    mx = mxnet()

    class Encoder(mx.gluon.HybridBlock):  # type: ignore[name-defined]
        def __init__(self) -> None:
            super().__init__()
            with self.name_scope():
                self.lstm = mx.gluon.rnn.HybridSequentialRNNCell()
                self.lstm.add(mx.gluon.rnn.LSTMCell(256, input_size=128))
                self.lstm.add(mx.gluon.rnn.LSTMCell(256, input_size=256))
                self.scores = mx.gluon.nn.Dense(1000, flatten=False, in_units=256)

        def hybrid_forward(self, F: Any, x: Any) -> Any:
            states, _ = self.lstm.unroll(16, x, layout="NTC", merge_outputs=True)
            return self.scores(states)

    return Encoder()


def _small_dcgan() -> Any:
    """The generator of DCGAN for 32 × 32 images, half as wide: a stand-in."""
    from gluontune.runtime import mxnet

    nn = mxnet().gluon.nn
    net = nn.HybridSequential()
    net.add(nn.Conv2DTranspose(256, 4, 1, 0, use_bias=False), nn.BatchNorm(), nn.Activation("relu"))
    for width in (128, 64):
        net.add(nn.Conv2DTranspose(width, 4, 2, 1, use_bias=False), nn.BatchNorm(), nn.Activation("relu"))
    net.add(nn.Conv2DTranspose(3, 4, 2, 1, use_bias=False), nn.Activation("tanh"))
    return net


_STAND_INS = {"small_gnmt": _small_gnmt, "small_dcgan": _small_dcgan}
