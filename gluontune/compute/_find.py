"""Which layers of a network each rewrite would change.

Only layers of exactly Gluon's class are taken: a subclass may compute something of its own.
"""

from __future__ import annotations

from typing import Any

from gluontune.compute import _blocks
from gluontune.compute._walk import Seen, walk
from gluontune.compute.rewrites import Target
from gluontune.runtime import mxnet

__all__ = ["pad_channels", "pool_to_mean"]

nn = mxnet().gluon.nn


def pool_to_mean(net: Any, seen: dict[int, Seen]) -> list[Target]:
    """Average pooling layers whose output is 1×1 whatever the input, or for the input that was seen."""
    targets = []
    for path, block in walk(net):
        if type(block) is nn.GlobalAvgPool2D:
            targets.append(Target(path, block, _blocks.MeanGlobalAvgPool2D))
        elif type(block) is nn.AvgPool2D and _covers_map(block, seen.get(id(block))):
            targets.append(Target(path, block, _blocks.MeanAvgPool2D))
    return targets


def _covers_map(pool: Any, seen: Seen | None) -> bool:
    if seen is None or any(pool._kwargs["pad"]):
        return False
    spatial = slice(1, 3) if pool._kwargs["layout"] == "NHWC" else slice(2, 4)
    shapes = seen.input_shapes()
    return bool(shapes) and all(shape[spatial] == tuple(pool._kwargs["kernel"]) for shape in shapes)


def pad_channels(net: Any, seen: dict[int, Seen]) -> list[Target]:
    """Convolutions over 1 or 3 channels. Their weight's shape must be known."""
    return [
        Target(path, block, _blocks.PaddedConv2D)
        for path, block in walk(net)
        if type(block) is nn.Conv2D
        and block._kwargs["num_group"] == 1
        and _input_channels(block) in (1, 3)
        and (not seen or id(block) in seen)
    ]


def _input_channels(conv: Any) -> int:
    shape = conv.weight.shape
    return shape[conv._kwargs["layout"].find("C")] if shape else 0
