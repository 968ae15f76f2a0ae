"""The layers of a network that each rewrite would change; imported only where mxnet is needed.

Only layers of exactly Gluon's class are taken: a subclass may compute differently. Code of a block, which is no
layer, is rewritten in the traced graph: the block gets a class derived from its own that changes the graph after
Gluon's trace. In imperative mode, without a trace, such a rewrite does nothing.
"""

from __future__ import annotations

import functools
import json
from collections import Counter
from collections.abc import Iterator
from typing import Any

import numpy as np

from gluontune.compute import _blocks, process
from gluontune.compute._traversal import Seen, walk
from gluontune.compute.mode import topmost_hybrid
from gluontune.compute.rewrites import Target
from gluontune.compute.tracing import trace_of
from gluontune.runtime import mxnet

_BLOCK = 16  # channels of a block in oneDNN's layout for AVX-512
_AMX_CHANNELS = 32  # a tile holds 32 bfloat16; oneDNN pads fewer, and MXNet refuses padded weights

nn = mxnet().gluon.nn
_containers = (nn.HybridSequential, _blocks.WholeSequential)  # in a plain one the gradient is wrong


def whole_sequential(net: Any, seen: dict[int, Seen]) -> list[Target]:
    """Plain Sequentials whose layers can all be compiled, themselves Sequentials of such layers, or hybrid."""
    return [Target(path, block, _blocks.WholeSequential) for path, block in walk(net) if _joinable(block)]


def _joinable(block: Any) -> bool:
    if type(block) is not nn.Sequential or not block._children:
        return False
    layers = list(block._children.values())
    hooked = any(layer._forward_hooks or layer._forward_pre_hooks for layer in layers)  # a graph never calls them
    return not hooked and all(isinstance(layer, nn.HybridBlock) or _joinable(layer) for layer in layers)


def pool_to_mean(net: Any, seen: dict[int, Seen]) -> list[Target]:
    """Average pooling layers whose output is 1×1 for any input, or for the sample input."""
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


def max_to_pick(net: Any, seen: dict[int, Seen]) -> list[Target]:
    """Global max poolings of sequences in float32 or more: a value's place has the value's type in MXNet."""
    narrow = process.started_dtype() == "bfloat16"
    return [
        Target(path, block, _blocks.PickedGlobalMaxPool1D)
        for path, block, calls in ([] if narrow else _called(net, seen))
        if type(block) is nn.GlobalMaxPool1D and all(np.dtype(call[0].dtype).itemsize >= 4 for call in calls.inputs)
    ]


def pad_channels(net: Any, seen: dict[int, Seen]) -> list[Target]:
    """Convolutions over 1 or 3 channels with a known shape of weights."""
    return [
        Target(path, block, _blocks.PaddedConv2D)
        for path, block in walk(net)
        if type(block) is nn.Conv2D
        and block._kwargs["num_group"] == 1
        and _input_channels(block) in (1, 3)
        and (not seen or id(block) in seen)
    ]


def fuse_bn_relu(net: Any, seen: dict[int, Seen]) -> list[Target]:
    """BatchNorm and relu in sequence in a HybridSequential which runs each of them once.

    Without sample inputs nothing is changed: only a forward pass shows that the container was called as a whole, that
    nothing else reads the map between the two, and that it is ``(N, C, H, W)``.

    The map must come from a convolution with an output in blocks of channels. The fused kernel stores the relu's mask
    in the order of the map's layout; MXNet reorders a plain map before the backward pass, but not the mask, and
    gradients would be silently wrong. Nor may the map go to a layer whose gradient has another layout, without a
    fused kernel.
    """
    targets = []
    blocked = _blocked_outputs(net, seen)
    odd = _odd_layouts(net, seen)
    for path, block, calls in _called(net, seen):
        if plain_class(block) not in _containers:
            continue
        children = list(block._children.items())
        for (name, norm), (next_name, relu) in zip(children, children[1:]):
            before, after = seen.get(id(norm)), seen.get(id(relu))
            if _fusible(norm, relu, before, after, len(calls.inputs), blocked, odd):
                prefix = f"{path}." if path else ""
                targets.append(Target(prefix + name, norm, _blocks.FusedBatchNorm, with_next=True))
                targets.append(Target(prefix + next_name, relu, _blocks.PassedActivation))
    return targets


def order_sums(net: Any, seen: dict[int, Seen]) -> list[Target]:
    """The compiled roots whose graph has a sum that would be computed into its second operand.

    Sample inputs are needed to trace; a root that cannot be traced is left alone.
    """
    targets = []
    paths = {id(block): path for path, block in walk(net)}
    for root in topmost_hybrid(net):
        if id(root) in seen and not isinstance(root, OrderedSums) and _sums_to_order(root, seen):
            plain: Any = type(root)
            targets.append(Target(paths[id(root)], root, with_ordered_sums(plain)))
    return targets


def _sums_to_order(root: Any, seen: dict[int, Seen]) -> int:
    try:
        return exchange_operands(trace_of(root, seen[id(root)].arguments[0]))[1]
    except Exception:  # tracing runs the user's code; check_hybridizable reports its errors
        return 0


def keep_blocks(net: Any, seen: dict[int, Seen]) -> list[Target]:
    """Global average poolings over blocked channels whose gradient meets no layer that would block it again.

    That is, the map comes from code (the relu after a residual sum), not from a convolution or a BatchNorm. Without
    sample inputs nothing is changed.
    """
    norms = {nn.Conv2D, nn.BatchNorm, _blocks.FusedBatchNorm, _blocks.PaddedConv2D}
    blocking: set[int] = set()
    for _, block, calls in _called(net, seen):
        if type(block) in norms:
            blocking |= calls.given
    for _, block, calls in _called(net, seen):
        if isinstance(block, nn.Activation):
            pairs = zip(calls.inputs, calls.outputs)
            blocking |= {id(out[0]) for taken, out in pairs if taken and out and id(taken[0]) in blocking}
    targets = []
    for path, block, calls in _called(net, seen):
        if type(block) not in (nn.GlobalAvgPool2D, _blocks.MeanGlobalAvgPool2D):
            continue
        shapes = calls.input_shapes()
        channels = shapes[0][1] if shapes and block._kwargs["layout"] == "NCHW" else 0
        alike = channels % _BLOCK == 0 and all(shape[1] == channels for shape in shapes)
        if channels and alike and not calls.taken & blocking:
            targets.append(Target(path, block, _blocks.blocked_mean(channels)))
    return targets


def _called(net: Any, seen: dict[int, Seen]) -> Iterator[tuple[str, Any, Seen]]:
    """The blocks that the forward pass called, with their paths and arrays."""
    return ((path, block, seen[id(block)]) for path, block in walk(net) if id(block) in seen)


def narrow_in_float32(net: Any, seen: dict[int, Seen]) -> list[Target]:
    """Convolutions whose channels do not fill AMX's tiles, and the BatchNorms that lead back to bfloat16.

    These follow such a convolution with enough outputs, and their output goes to code (an addition of branches)
    rather than to a layer: float32 would spread through the addition. Without sample inputs nothing is changed.
    """
    targets: list[Target] = []
    outputs: set[int] = set()
    taken: set[int] = set()
    for path, block, calls in _called(net, seen):
        taken |= set() if block._children else calls.taken
        if type(block) in (nn.Conv2D, _blocks.PaddedConv2D):
            fits = block._channels % _AMX_CHANNELS == 0
            if fits and _input_channels(block) % _AMX_CHANNELS == 0 and block._kwargs["num_group"] == 1:
                continue
            targets.append(Target(path, block, _blocks.Float32Conv2D))
            outputs |= calls.given if fits else set()
    for path, block, calls in _called(net, seen):
        if type(block) is nn.BatchNorm and all(calls.inputs) and calls.taken <= outputs and not calls.given & taken:
            targets.append(Target(path, block, _blocks.Bfloat16BatchNorm))
    return targets


def _blocked_outputs(net: Any, seen: dict[int, Seen]) -> set[int]:
    """Identities of the maps that convolutions return in blocks of channels, forward and backward.

    Over a first layer's 1 or 3 channels such a kernel exists in float32 only; in bfloat16 over padded ones.
    """
    found: set[int] = set()
    kinds = (nn.Conv2D, _blocks.PaddedConv2D, _blocks.Float32Conv2D)
    for _, block, calls in _called(net, seen):
        if type(block) not in kinds or block._kwargs["layout"] != "NCHW":
            continue
        inputs, groups = _input_channels(block), block._kwargs["num_group"]
        first = inputs in (1, 3) and (type(block) is not nn.Conv2D or process.started_dtype() != "bfloat16")
        dense = groups == 1 and (first or inputs % _BLOCK == 0)
        depthwise = groups == block._channels and inputs == 1
        if process.amx_bfloat16() and type(block) is not _blocks.Float32Conv2D:
            dense = dense and block._channels % _AMX_CHANNELS == inputs % _AMX_CHANNELS == 0
        if block._channels % _BLOCK == 0 and (dense or depthwise):
            found |= calls.given
    return found


def _odd_layouts(net: Any, seen: dict[int, Seen]) -> set[int]:
    """Identities of the maps whose gradient has another layout.

    Such gradients come from a pooling of Gluon's class (not a rewritten one) to 1×1, and from a grouped convolution
    that is not depthwise, which has blocks by group.
    """
    poolings = (nn.GlobalAvgPool2D, nn.GlobalMaxPool2D, nn.AvgPool2D, nn.MaxPool2D)
    found: set[int] = set()
    for _, block, calls in _called(net, seen):
        if isinstance(block, nn.Conv2D) and block._kwargs["num_group"] not in (1, block._channels):
            found |= calls.taken
        elif type(block) in poolings:
            pairs = zip(calls.inputs, calls.output_shapes())
            found |= {id(call[0]) for call, shape in pairs if call and shape[2:] == (1, 1)}
    return found


def _fusible(
    norm: Any, relu: Any, before: Seen | None, after: Seen | None, calls: int, blocked: set[int], odd: set[int]
) -> bool:
    if type(norm) is not nn.BatchNorm or type(relu) is not nn.Activation or relu._act_type != "relu":
        return False
    if norm.fuse_relu or norm._kwargs["axis"] != 1 or norm._kwargs["use_global_stats"]:
        return False
    if norm._forward_hooks or relu._forward_pre_hooks:
        return False  # a hook reads the map between them
    if before is None or after is None or not len(before.inputs) == len(after.inputs) == calls == 1:
        return False
    follows = after.inputs[0][0] is before.outputs[0][0] and len(before.input_shapes()[0]) == 4
    return follows and id(before.inputs[0][0]) in blocked and id(after.outputs[0][0]) not in odd


def _input_channels(conv: Any) -> int:
    shape = conv.weight.shape
    return shape[conv._kwargs["layout"].find("C")] if shape else 0


_SUM = "elemwise_add"
_FREE_OUTPUT = ("BatchNorm", "Convolution")  # their backward does not read their output


class OrderedSums:
    """The mix-in of ``with_ordered_sums``."""

    plain: type
    _cached_graph: Any

    def _get_graph(self, *args: Any) -> Any:
        if not self._cached_graph:
            inputs, out = super()._get_graph(*args)  # type: ignore[misc]
            self._cached_graph = inputs, exchange_operands(out)[0]
        return self._cached_graph

    def __reduce_ex__(self, protocol: Any) -> Any:
        return _remake, (self.plain,), self.__dict__


@functools.cache
def with_ordered_sums(plain: Any) -> type:
    """A class like ``plain``, of the same name, with ordered sums in its graph."""
    names = {"plain": plain, "__module__": plain.__module__, "__qualname__": plain.__qualname__}
    return type(plain.__name__, (OrderedSums, plain), names)


def plain_class(block: Any) -> type:
    """The class of ``block`` before a rewrite of its graph."""
    kind = type(block)
    return kind.plain if issubclass(kind, OrderedSums) else kind


def exchange_operands(symbol: Any) -> tuple[Any, int]:
    """``symbol`` with the operands of some sums exchanged, and the number of these.

    They are exchanged if only the second operand may be overwritten (nothing else reads it). Addition commutes
    exactly: no bit of the result changes.

    >>> mx = mxnet()
    >>> x = mx.sym.relu(mx.sym.var("x"))
    >>> y = mx.sym.BatchNorm(x, name="norm")
    >>> exchange_operands(x + y)[1], exchange_operands(y + x)[1]
    (1, 0)
    """
    graph = json.loads(symbol.tojson(remove_amp_cast=False))
    nodes = graph["nodes"]
    readers = Counter(tuple(entry[:2]) for entry in [*graph["heads"], *(i for node in nodes for i in node["inputs"])])

    def is_free(entry: list[int]) -> bool:
        return nodes[entry[0]]["op"] in _FREE_OUTPUT and readers[tuple(entry[:2])] == 1

    count = 0
    for node in nodes:
        if node["op"] == _SUM and is_free(node["inputs"][1]) and not is_free(node["inputs"][0]):
            node["inputs"].reverse()
            count += 1
    if not count:
        return symbol, 0
    ordered = mxnet().sym.load_json(json.dumps(graph, ensure_ascii=False))
    return ordered.as_np_ndarray() if isinstance(symbol, mxnet().sym.np._Symbol) else ordered, count


def _remake(plain: type) -> Any:
    """Pickle and copy cannot look up a class made at run time."""
    kind: Any = with_ordered_sums(plain)
    return kind.__new__(kind)
