"""Nets by name: gluoncv's and MXNet's model zoos, and small ones that need neither."""

from __future__ import annotations

import functools
import importlib
from typing import Any

from gluontune import compute
from gluontune.core.errors import GluontuneError, UsageError, nearest
from gluontune.recipe.registry import Registry
from gluontune.runtime import mxnet

SMALL_NETS: Registry[Any] = Registry("net")


@SMALL_NETS.register("small_cnn")
def _small_cnn(classes: int) -> Any:
    """Three convolutions with BatchNorm: learns the sample in seconds on a laptop."""
    nn = mxnet().gluon.nn
    net = nn.HybridSequential()
    for channels in (16, 32, 64):
        net.add(nn.Conv2D(channels, 3, strides=2, padding=1, use_bias=False), nn.BatchNorm(), nn.Activation("relu"))
    net.add(nn.GlobalAvgPool2D(), nn.Flatten(), nn.Dense(classes))
    return net


@SMALL_NETS.register("airbench94")
def _airbench94(classes: int) -> Any:
    """A whitening layer, three pairs of wide convolutions, 2 million parameters: 94 % on CIFAR-10 in 8 epochs.

    Jordan, 94% on CIFAR-10 in 3.29 Seconds on a Single GPU, 2024, and its script airbench94_muon. Its parameters have
    multiples of rate and decay that suit Muon's 0.24: the recipe ``dawnbench-94``.
    """
    mx = mxnet()
    nn = mx.gluon.nn
    net = nn.HybridSequential()
    net.add(nn.Conv2D(24, 2, in_channels=3), nn.GELU())
    for channels in (64, 256, 256):
        net.add(nn.Conv2D(channels, 3, padding=1, use_bias=False), nn.MaxPool2D(2))
        net.add(nn.BatchNorm(momentum=0.6, scale=False), nn.GELU())
        net.add(nn.Conv2D(channels, 3, padding=1, use_bias=False))
        net.add(nn.BatchNorm(momentum=0.6, scale=False), nn.GELU())
    # The script divides the scores by 256 and sums the loss over 2,000 images; here rates and decays include both.
    head = nn.Dense(classes, use_bias=False, weight_initializer=mx.init.Normal(1 / 256))
    net.add(nn.MaxPool2D(3), nn.Flatten(), head)
    head.weight.lr_mult = 0.67 * 2000 / 256**2 / 0.24
    offsets = net.collect_params(".*(bias|beta)")
    offsets.setattr("lr_mult", 0.053 * 2000 / 0.24)
    offsets.setattr("wd_mult", head.weight.lr_mult * 0.24 / (0.053 * 2000))
    return net


def _dense(classes: int, hidden: list[tuple[int, str]]) -> Any:
    nn = mxnet().gluon.nn
    net = nn.HybridSequential()
    net.add(nn.Flatten(), *(nn.Dense(units, activation=kind) for units, kind in hidden), nn.Dense(classes))
    return net


#: Hidden layers and their activations: softmax regression; a difficult start for plain gradient descent; and one for
#: tests and the cost of a batch without convolutions.
for _name, _hidden in {
    "softmax": [],
    "sigmoid_100": [(100, "sigmoid")],
    "sigmoid_300_100_50": [(300, "sigmoid"), (100, "relu"), (50, "sigmoid")],
    "mlp": [(256, "relu"), (256, "relu")],
}.items():
    SMALL_NETS.add(_name, functools.partial(_dense, hidden=_hidden))


def _zoos() -> list[Any]:
    """The available ``get_model`` functions, gluoncv's first, each with its names."""
    found = []
    try:
        mxnet()
        zoo = importlib.import_module("gluoncv.model_zoo.model_zoo")
        found.append((zoo.get_model, set(zoo._models)))
    except ImportError:
        pass
    vision = mxnet().gluon.model_zoo.vision
    names = {n for n in dir(vision) if callable(getattr(vision, n)) and n[0].islower() and n != "get_model"}
    found.append((lambda name, **kw: getattr(vision, name)(**kw), names - {"get_resnet", "get_vgg"}))
    return found


def net_names() -> list[str]:
    """Every available name for :func:`build_net`.

    >>> "small_cnn" in net_names()
    True
    """
    names = set(SMALL_NETS.names())
    for _, known in _zoos():
        names |= known
    return sorted(names)


def build_net(name: str, classes: int) -> Any:
    """A new, uninitialized net with ``classes`` outputs.

    Raises:
        UsageError: unknown name; offers the nearest ones.
        GluontuneError: the net cannot be built with that number of classes.

    >>> build_net("small_cnn", 10)[-1]
    Dense(None -> 10, linear)
    """
    if name in SMALL_NETS:
        return SMALL_NETS[name](classes)
    for get_model, known in _zoos():
        if name.lower() in known:
            try:
                return get_model(name.lower(), classes=classes, pretrained=False)
            except TypeError as error:
                raise GluontuneError(f"net {name!r} cannot be built for {classes} classes: {error}") from error
    known_names = net_names()
    close = nearest(name, known_names, n=3)
    hint = f"did you mean {', '.join(close)}?" if close else "gluontune train --list net shows them"
    raise UsageError(f"unknown net {name!r} among {len(known_names)} known ones: {hint}")


def give_values(net: Any, ctx: Any = None) -> bool:
    """Initialize a net if a parameter has no values. Returns whether it did."""
    lacks = any(not p._data and not p._deferred_init for p in net.collect_params().values())
    if lacks:
        net.initialize(compute.FirstValues(), ctx=ctx)
    return lacks
