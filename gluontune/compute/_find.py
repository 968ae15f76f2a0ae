"""Which layers of a network each rewrite would change.

Only layers of exactly Gluon's class are taken: a subclass may compute something of its own.
"""

from __future__ import annotations

from typing import Any

from gluontune.compute import _blocks
from gluontune.compute._walk import Seen, walk
from gluontune.compute.rewrites import Target
from gluontune.runtime import mxnet

__all__ = ["fuse_bn_relu", "narrow_in_float32", "pad_channels", "pool_to_mean"]

_AMX_CHANNELS = 32  # a tile holds 32 bfloat16; oneDNN pads fewer, and MXNet refuses padded weights

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


def fuse_bn_relu(net: Any, seen: dict[int, Seen]) -> list[Target]:
    """BatchNorm and relu that follow each other in a HybridSequential which runs them itself, once each.

    Without sample inputs nothing is changed: only a forward pass shows that the container was called as
    a whole, that nothing else took what stands between the two, and that the map is ``(N, C, H, W)``.
    """
    targets = []
    for path, block in walk(net):
        if type(block) is not nn.HybridSequential or id(block) not in seen:
            continue
        children = list(block._children.items())
        for (name, norm), (next_name, relu) in zip(children, children[1:]):
            if _fusible(norm, relu, seen.get(id(norm)), seen.get(id(relu)), len(seen[id(block)].inputs)):
                prefix = f"{path}." if path else ""
                targets.append(Target(prefix + name, norm, _blocks.FusedBatchNorm))
                targets.append(Target(prefix + next_name, relu, _blocks.PassedActivation))
    return targets


def narrow_in_float32(net: Any, seen: dict[int, Seen]) -> list[Target]:
    """Convolutions whose channels do not fill AMX's tiles, and the BatchNorms that lead back to bfloat16.

    The latter stand after such a convolution with enough outputs, and hand their output to code (an
    addition of branches) rather than to a layer: float32 would spread through the addition. Sample inputs
    are needed to see them; without, nothing is changed.
    """
    if not seen:
        return []
    targets: list[Target] = []
    outputs: list[int] = []
    taken: set[int] = set()
    for path, block in walk(net):
        if id(block) not in seen:
            continue
        taken |= {id(call[0]) for call in seen[id(block)].inputs if call and not block._children}
        if type(block) in (nn.Conv2D, _blocks.PaddedConv2D):
            fits = block._channels % _AMX_CHANNELS == 0
            if fits and _input_channels(block) % _AMX_CHANNELS == 0 and block._kwargs["num_group"] == 1:
                continue
            targets.append(Target(path, block, _blocks.Float32Conv2D))
            if fits:
                outputs += [id(call[0]) for call in seen[id(block)].outputs if call]
    for path, block in walk(net):
        if type(block) is nn.BatchNorm and id(block) in seen:
            calls = seen[id(block)]
            after = all(call and id(call[0]) in outputs for call in calls.inputs)
            if after and not any(call and id(call[0]) in taken for call in calls.outputs):
                targets.append(Target(path, block, _blocks.Bfloat16BatchNorm))
    return targets


def _fusible(norm: Any, relu: Any, before: Seen | None, after: Seen | None, calls: int) -> bool:
    if type(norm) is not nn.BatchNorm or type(relu) is not nn.Activation or relu._act_type != "relu":
        return False
    if norm.fuse_relu or norm._kwargs["axis"] != 1 or norm._kwargs["use_global_stats"]:
        return False
    if norm._forward_hooks or relu._forward_pre_hooks:
        return False  # someone looks at what stands between them
    if before is None or after is None or not len(before.inputs) == len(after.inputs) == calls == 1:
        return False
    return after.inputs[0][0] is before.outputs[0][0] and len(before.input_shapes()[0]) == 4


def _input_channels(conv: Any) -> int:
    shape = conv.weight.shape
    return shape[conv._kwargs["layout"].find("C")] if shape else 0
