"""A training step in PyTorch: the work of the peers in ``gluontune bench training``.

The networks have the layers of gluoncv's of the same name (``small_vgg``: of our ``_gluon_training``), in
the same order and shapes. torch is imported by the contender, in the peers' environment.
"""

from __future__ import annotations

import importlib
from typing import Any


class TorchStep:
    """A step of ``net`` on one synthetic batch: forward, cross entropy, backward, update by Nesterov's momentum."""

    def __init__(
        self, net: str, batch_size: int, image_size: int, threads: int, dtype: str = "float32",
        channels_last: bool = False, compiled: bool = False,
    ):  # fmt: skip
        torch, side = importlib.import_module("torch"), image_size
        torch.set_num_threads(threads)
        made = build(torch.nn, net)
        torch.manual_seed(0)
        self.torch, self.dtype, self.batch_size = torch, dtype, batch_size
        x, self.y = torch.randn(batch_size, 3, side, side), torch.randint(0, 10, (batch_size,))
        if channels_last:
            made = made.to(memory_format=torch.channels_last)
            x = x.contiguous(memory_format=torch.channels_last)
        self.x = x
        self.model = torch.compile(made) if compiled else made
        self.update = torch.optim.SGD(made.parameters(), lr=0.01, momentum=0.9, nesterov=True, weight_decay=5e-4)
        self.loss = torch.nn.CrossEntropyLoss()
        self.step()  # compiles
        self.info: dict[str, Any] = {
            "versions": {"torch": torch.__version__},
            "parameter_shapes": [list(p.shape) for p in made.parameters()],
        }

    def step(self) -> int:
        torch = self.torch
        self.update.zero_grad(set_to_none=True)
        with torch.autocast("cpu", torch.bfloat16, enabled=self.dtype == "bfloat16"):
            self.value = self.loss(self.model(self.x), self.y)
        self.value.backward()
        self.update.step()
        return self.batch_size

    def last_loss(self) -> float:
        return float(self.value.detach())


def build(nn: Any, name: str, channels: int = 3, classes: int = 10) -> Any:
    """The twin of a network of ``gluontune.search.bench.training.NETS``; other images and classes for residual nets."""
    if name.startswith("cifar_resnet") and name.endswith("_v1"):
        layers = _cifar_resnet(nn, int(name[len("cifar_resnet") :].partition("_")[0]), channels, classes)
    elif name.startswith("mobilenet"):
        layers = _mobilenet(nn, float(name[len("mobilenet") :]))
    elif name == "small_vgg":
        layers = _small_vgg(nn)
    else:
        raise ValueError(f"no PyTorch twin of {name!r}")
    return nn.Sequential(*layers).train()


def _residual(nn: Any, inputs: int, channels: int, stride: int) -> Any:
    def forward(self: Any, x: Any) -> Any:
        shortcut = x if self.downsample is None else self.downsample(x)
        return nn.functional.relu(shortcut + self.body(x), inplace=True)

    block = type("Residual", (nn.Module,), {"forward": forward})()
    block.body = nn.Sequential(
        nn.Conv2d(inputs, channels, 3, stride, 1, bias=False), nn.BatchNorm2d(channels), nn.ReLU(inplace=True),
        nn.Conv2d(channels, channels, 3, 1, 1, bias=False), nn.BatchNorm2d(channels),
    )  # fmt: skip
    block.downsample = None
    if inputs != channels:
        shortcut = nn.Conv2d(inputs, channels, 1, stride, bias=False)
        block.downsample = nn.Sequential(shortcut, nn.BatchNorm2d(channels))
    return block


def _cifar_resnet(nn: Any, depth: int, inputs: int, classes: int) -> list[Any]:
    layers = [nn.Conv2d(inputs, 16, 3, 1, 1, bias=False), nn.BatchNorm2d(16)]
    channels = 16
    for stage, width in enumerate((16, 32, 64)):
        for block in range((depth - 2) // 6):
            layers.append(_residual(nn, channels, width, 2 if stage and not block else 1))
            channels = width
    return [*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, classes)]


def _mobilenet(nn: Any, multiplier: float) -> list[Any]:
    def unit(inputs: int, outputs: int, kernel: int, stride: int, groups: int = 1) -> list[Any]:
        conv = nn.Conv2d(inputs, outputs, kernel, stride, kernel // 2, groups=groups, bias=False)
        return [conv, nn.BatchNorm2d(outputs), nn.ReLU(inplace=True)]

    widths = [int(w * multiplier) for w in (32, 64, 128, 128, 256, 256, *[512] * 6, 1024, 1024)]
    layers = unit(3, widths[0], 3, 2)
    for inputs, outputs, stride in zip(widths, widths[1:], (1, 2, 1, 2, 1, 2, 1, 1, 1, 1, 1, 2, 1)):
        layers += unit(inputs, inputs, 3, stride, groups=inputs) + unit(inputs, outputs, 1, 1)
    return [*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(widths[-1], 10)]


def _small_vgg(nn: Any) -> list[Any]:
    layers: list[Any] = []
    channels = 3
    for width in (64, 128, 256):
        for _ in range(2):
            layers += [nn.Conv2d(channels, width, 3, 1, 1), nn.BatchNorm2d(width), nn.ReLU(inplace=True)]
            channels = width
        layers.append(nn.MaxPool2d(2))
    return [*layers, nn.Flatten(), nn.Linear(256 * 16, 256), nn.ReLU(inplace=True), nn.Linear(256, 10)]
