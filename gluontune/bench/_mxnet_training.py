"""A training step in MXNet, as it comes and as gluontune makes it: work of ``gluontune bench training``."""

from __future__ import annotations

from typing import Any

__all__ = ["build", "make"]


def make(
    net: str,
    batch_size: int,
    image_size: int,
    dtype: str = "float32",
    mode: str = "imperative",
    rewrites: tuple[str, ...] = (),
    trainer: str = "mxnet",
) -> MxnetStep:
    """A step of ``net`` on one synthetic batch.

    Args:
        net: a name of ``gluontune.bench.training.NETS``.
        dtype: ``float32``, or ``bfloat16`` by AMP.
        mode: of ``gluontune.compute.MODES``.
        rewrites: names of ``gluontune.compute.REWRITES``.
        trainer: ``mxnet``, Gluon's with its nag, or ``gluontune``, that of ``gt.optim.setup``.
    """
    return MxnetStep(net, batch_size, image_size, dtype, mode, tuple(rewrites), trainer)


class MxnetStep:
    """Forward, cross entropy, backward, and the update by Nesterov's momentum."""

    def __init__(
        self, net: str, batch_size: int, side: int, dtype: str, mode: str, rewrites: tuple[str, ...], trainer: str
    ):
        from gluontune import compute, optim
        from gluontune.runtime import mxnet

        mx = self.mx = mxnet()
        compute.start_process(dtype, "cpu")
        mx.random.seed(0)
        self.batch_size = batch_size
        self.x = mx.nd.random.normal(shape=(batch_size, 3, side, side))
        self.y = mx.nd.random.randint(0, 10, shape=(batch_size,)).astype("float32")
        self.net = build(net)
        self.net.initialize(mx.init.Xavier(magnitude=2))
        self.net(self.x)
        applied = compute.apply_rewrites(self.net, rewrites, self.x)
        compute.set_mode(self.net, mode)
        self.loss = mx.gluon.loss.SoftmaxCrossEntropyLoss()
        parameters = self.net.collect_params()
        options: dict[str, Any] = {"learning_rate": 0.01, "momentum": 0.9, "wd": 5e-4}
        if trainer == "gluontune":
            self.trainer: Any = optim.setup("nag", self.net, batch_size=batch_size, lr_scaling="none", **options)
        else:
            self.trainer = mx.gluon.Trainer(parameters, "nag", options)
        self.step()  # compiles
        self.sync()
        trained = [p for p in parameters.values() if p.grad_req != "null"]
        self.info: dict[str, Any] = {
            "versions": {"mxnet": mx.__version__},
            "parameter_shapes": [list(p.shape) for p in trained],
            "changes": len(applied),
        }

    def step(self) -> int:
        """One whole step, queued; returns its images."""
        with self.mx.autograd.record():
            self.value = self.loss(self.net(self.x), self.y)
        self.value.backward()
        self.trainer.step(self.batch_size)
        return self.batch_size

    def sync(self) -> None:
        """Wait until the queued steps are done."""
        self.mx.nd.waitall()

    def last_loss(self) -> float:
        """Mean loss of the last step."""
        return float(self.value.astype("float32").mean().asscalar())


def build(name: str) -> Any:
    """A new network by its name in ``gluontune.bench.training.NETS``, with 10 classes."""
    from gluontune.runtime import mxnet
    from gluontune.train.models import build_net

    if name != "small_vgg":
        return build_net(name, 10)
    nn = mxnet().gluon.nn
    net = nn.HybridSequential()
    for width in (64, 128, 256):
        for _ in range(2):
            net.add(nn.Conv2D(width, 3, padding=1), nn.BatchNorm(), nn.Activation("relu"))
        net.add(nn.MaxPool2D(2))
    net.add(nn.Flatten(), nn.Dense(256, activation="relu"), nn.Dense(10))
    return net
