"""Training loops with exactly one bottleneck, to test whether the verdict names it.

Each situation is a real MXNet training on this machine's CPU, built so that one cause dominates; where the
cause is a GPU's heat, the readings come from a fake NVML and are called simulated.
"""

from __future__ import annotations

import inspect
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import numpy as np

from gluontune import compute, datasets, loading

__all__ = ["SITUATIONS", "Loop", "Situation", "guilty_line"]

_CLASSES = 10


@dataclass(frozen=True)
class Situation:
    """A training with one bottleneck.

    Args:
        kind: the verdict that is right.
        what: a description, for the report.
        build: makes the loop from mxnet and a seeded generator.
        world: processes that train together, by a parameter server if there are two.
        crowd: processes of background load that never idle.
        steps: a fixed number of steps, where ranks must agree on it; None goes by time.
        threads: OpenMP threads; None takes the tuned number.
        simulated: its simulated part, or "".
    """

    kind: str
    what: str
    build: Callable[[Any, random.Random, int], Loop]
    world: int = 1
    crowd: int = 0
    steps: int | None = None
    threads: int | None = None
    simulated: str = ""


@dataclass
class Loop:
    """One training loop: its step and its facts."""

    step: Callable[[Any], None]
    facts: dict[str, Any] = field(default_factory=dict)
    close: Callable[[], None] = lambda: None
    pynvml: Any = None


def _net(mx: Any, *layers: Any, hybridize: bool = True) -> Any:
    net = mx.gluon.nn.HybridSequential()
    net.add(*layers)
    net.initialize(mx.init.Xavier(magnitude=2))
    if hybridize:
        net.hybridize(static_alloc=True, static_shape=True)
    return net


def _trainer(mx: Any, net: Any, kvstore: Any = None) -> Any:
    settings = {"learning_rate": 1e-3, "momentum": 0.9}
    return mx.gluon.Trainer(net.collect_params(), "sgd", settings, kvstore=kvstore)


def _learn(mx: Any, net: Any, trainer: Any, phase: Any, x: Any, y: Any, loss_of: Any, guard: Any = None) -> Any:
    """Forward, backward and update, as in any Gluon loop; returns the losses."""
    with mx.autograd.record():
        with phase("forward"):
            loss = loss_of(net(x), y)
        with phase("backward"):
            loss.backward()
    with phase("update"):
        if guard is not None:
            guard()
        trainer.step(x.shape[0])
    with phase("metrics"):
        return loss.mean()


def _ready_batch(mx: Any, batch: int, shape: tuple[int, ...]) -> tuple[Any, Any]:
    rng = np.random.default_rng(0)
    images = mx.nd.array(rng.standard_normal((batch, *shape), dtype=np.float32))
    return images, mx.nd.array(rng.integers(0, _CLASSES, batch))


def _resnet(mx: Any, batch: int) -> Callable[[Any], None]:
    """ResNet-20 for CIFAR-10 on a fixed batch: only the net takes time."""
    from gluontune.job.job import build_net

    net = build_net("cifar_resnet20_v1", _CLASSES)
    net.initialize(mx.init.Xavier(magnitude=2))
    x, y = _ready_batch(mx, batch, (3, 32, 32))
    compute.apply_rewrites(net, compute.rewrites_for(net, x[:2], device="cpu"), x[:2])
    net.hybridize(static_alloc=True, static_shape=True)
    trainer, loss_of = _trainer(mx, net), mx.gluon.loss.SoftmaxCrossEntropyLoss()
    return lambda phase: _learn(mx, net, trainer, phase, x, y, loss_of) and None


_STATIC = {"device": "cpu", "num_workers": 0, "loader": "resident", "hybridize": "static"}


def _input_bound(mx: Any, rng: random.Random, rank: int) -> Loop:
    data = datasets.open("sample")
    assert data.image_shape is not None
    loader = loading.build(
        "gluon", data.train, batch_size=64, image_shape=data.image_shape, mean=data.mean, std=data.std,
        augment=data.augment, shuffle=True, seed=rng.randrange(1000), num_workers=0, last_batch="discard",
        prefetch=None, rank=0, world_size=1,
    )  # fmt: skip
    nn = mx.gluon.nn
    net = _net(mx, nn.Conv2D(8, 3, strides=4), nn.Activation("relu"), nn.Flatten(), nn.Dense(_CLASSES))
    trainer, loss_of = _trainer(mx, net), mx.gluon.loss.SoftmaxCrossEntropyLoss()
    batches = _endless(loader)

    def step(phase: Any) -> None:
        with phase("data"):
            x, y = next(batches)
        _learn(mx, net, trainer, phase, x, y, loss_of)

    return Loop(step, {**_STATIC, "loader": "gluon"}, loader.close)


def _endless(loader: Any) -> Any:
    number = 0
    while True:
        yield from loader.epoch(number)
        number += 1


def _copy_bound(mx: Any, rng: random.Random, rank: int) -> Loop:
    """Large batches of float64 from numpy, for a net that looks at every 16th pixel."""
    nn = mx.gluon.nn
    net = _net(mx, nn.Conv2D(4, 1, strides=16), nn.Activation("relu"), nn.Flatten(), nn.Dense(_CLASSES))
    trainer, loss_of = _trainer(mx, net), mx.gluon.loss.SoftmaxCrossEntropyLoss()
    images = np.random.default_rng(rng.randrange(1000)).random((32, 3, 224, 224))
    labels = np.arange(32) % _CLASSES

    def step(phase: Any) -> None:
        with phase("data"):
            host = images
        with phase("copy"):
            x, y = mx.nd.array(host, dtype="float32"), mx.nd.array(labels)
        _learn(mx, net, trainer, phase, x, y, loss_of)

    return Loop(step, _STATIC)


def _compute_bound(mx: Any, rng: random.Random, rank: int) -> Loop:
    return Loop(_resnet(mx, rng.choice((32, 48, 64))), _STATIC)


def _launch_bound(mx: Any, rng: random.Random, rank: int) -> Loop:
    """Fifty tiny layers, imperative, on a handful of samples."""
    batch = rng.choice((2, 4, 8))
    layers = [mx.gluon.nn.Dense(16, activation="relu") for _ in range(50)]
    net = _net(mx, *layers, mx.gluon.nn.Dense(_CLASSES), hybridize=False)
    trainer, loss_of = _trainer(mx, net), mx.gluon.loss.SoftmaxCrossEntropyLoss()
    x, y = _ready_batch(mx, batch, (16,))
    facts = {**_STATIC, "hybridize": "imperative", "batch_size_per_device": batch}
    return Loop(lambda phase: _learn(mx, net, trainer, phase, x, y, loss_of) and None, facts)


_SHARED: dict[str, Any] = {}  # kept by ranks, because a parameter server cannot reset its keys


def _communication_bound(mx: Any, rng: random.Random, rank: int) -> Loop:
    """Two processes that exchange a million gradients over a parameter server after each small batch."""
    if "step" not in _SHARED:
        nn = mx.gluon.nn
        net = _net(mx, nn.Dense(1024, activation="relu"), nn.Dense(1024, activation="relu"), nn.Dense(_CLASSES))
        x, y = _ready_batch(mx, 4, (256,))
        net(x).wait_to_read()
        trainer, loss_of = (_trainer(mx, net, mx.kv.create("dist_sync")), mx.gluon.loss.SoftmaxCrossEntropyLoss())
        _SHARED["step"] = lambda phase: _learn(mx, net, trainer, phase, x, y, loss_of) and None
    return Loop(_SHARED["step"], {**_STATIC, "ranks": 2, "batch_size_per_device": 4})


def _sync_bound(mx: Any, rng: random.Random, rank: int) -> Loop:
    """The norm of each gradient is read in each step, as in a loop that clips them one by one."""
    nn = mx.gluon.nn
    layers = [layer for _ in range(8) for layer in (nn.Conv2D(16, 3, padding=1), nn.Activation("relu"))]
    net = _net(mx, *layers, nn.Flatten(), nn.Dense(_CLASSES))
    trainer, loss_of = _trainer(mx, net), mx.gluon.loss.SoftmaxCrossEntropyLoss()
    x, y = _ready_batch(mx, rng.choice((4, 8)), (3, 16, 16))

    def clip() -> None:
        for parameter in net.collect_params().values():
            gradient = parameter.grad()
            norm = gradient.norm().asscalar()  # the line that the verdict must name
            if norm > 1e3:
                gradient *= 1e3 / norm

    return Loop(lambda phase: _learn(mx, net, trainer, phase, x, y, loss_of, clip) and None, _STATIC)


def _starved(mx: Any, rng: random.Random, rank: int) -> Loop:
    return Loop(_resnet(mx, 32), _STATIC)


def _throttled(mx: Any, rng: random.Random, rank: int) -> Loop:
    return Loop(_resnet(mx, 32), _STATIC, pynvml=_HotNvml(rng))


class _HotNvml:
    """A stand-in for NVML with one simulated GPU, whose heat holds its clock down in part of the samples."""

    def __init__(self, rng: random.Random):
        import pynvml

        for name, value in vars(pynvml).items():
            if name.startswith("NVML_"):
                setattr(self, name, value)
        self._rng, self._share = rng, rng.uniform(0.3, 0.8)

    def __getattr__(self, name: str) -> Any:
        answers: dict[str, Callable[..., Any]] = {
            "nvmlInit": lambda: None,
            "nvmlShutdown": lambda: None,
            "nvmlDeviceGetCount": lambda: 1,
            "nvmlDeviceGetHandleByIndex": lambda index: index,
            "nvmlDeviceGetName": lambda handle: "simulated GPU",
            "nvmlDeviceGetUtilizationRates": lambda handle: SimpleNamespace(gpu=97, memory=40),
            "nvmlDeviceGetTemperature": lambda handle, kind: self._rng.randint(86, 93),
            "nvmlDeviceGetCurrentClocksThrottleReasons": lambda handle: 0x20 if self._rng.random() < self._share else 0,
        }
        if name not in answers:
            raise AttributeError(name)
        return answers[name]


#: One for each verdict that names a cause.
SITUATIONS = {
    s.kind: s
    for s in (
        Situation("input-bound", "JPEGs decoded by the training thread for a net of one convolution", _input_bound),
        Situation("copy-bound", "large float64 batches copied to the device for a strided net", _copy_bound),
        Situation("compute-bound", "ResNet-20 on a batch that lies ready", _compute_bound),
        Situation("launch-bound", "fifty tiny layers, imperative, on 2 to 8 samples", _launch_bound, threads=1),
        Situation(
            "communication-bound", "two processes, a parameter server, 1.3 M parameters, batch 4",
            _communication_bound, world=2, steps=60,
        ),
        Situation("sync-bound", "the norm of each gradient read by asscalar in each step", _sync_bound),
        Situation("cpu-starved", "ResNet-20 beside three busy processes of others", _starved, crowd=3),
        Situation(
            "thermally-throttled", "ResNet-20, and an NVML that reports heat", _throttled,
            simulated="the GPU and its heat are simulated",
        ),
    )
}  # fmt: skip


def guilty_line() -> str:
    """The line at which :func:`_sync_bound` reads the norms."""
    lines, start = inspect.getsourcelines(_sync_bound)
    return f"{__file__}:{start + next(n for n, line in enumerate(lines) if 'asscalar()' in line)}"
