"""Layers that compute what Gluon's compute, by a faster path.

A rewrite changes the *class* of a layer that exists and nothing else: parameters, names, prefix, place
among the children and references that the user holds stay the same objects, and undoing it is to give
the class back. Each class keeps the ``__name__`` of Gluon's, because ``Block.save`` writes it to files;
``__qualname__`` is where pickle finds it.

Imported only where mxnet is needed.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from gluontune.compute import process
from gluontune.compute._kinds import as_called, either_kind
from gluontune.compute._preserve import HYBRID_STATE
from gluontune.compute._traversal import walk
from gluontune.runtime import mxnet

__all__ = [
    "Bfloat16BatchNorm",
    "Float32Conv2D",
    "FusedBatchNorm",
    "MeanAvgPool2D",
    "MeanGlobalAvgPool2D",
    "PaddedConv2D",
    "PassedActivation",
    "WholeSequential",
    "blocked_mean",
    "give",
    "take_back",
]

mx: Any = mxnet()
nn: Any = mx.gluon.nn
bfloat16 = np.dtype([("bfloat16", np.uint16)])  # as MXNet names it in Python


def give(targets: Iterable[Any]) -> None:
    """Give each target's block its new class."""
    for target in targets:
        target.block.__class__ = target.new_class
        if target.new_class is WholeSequential:
            target.block.begin()


def take_back(before: Sequence[tuple[Any, type]]) -> None:
    """Give each block the class that it had, the last first."""
    for block, original in reversed(before):
        block.__class__ = original
        if original is nn.Sequential:
            for key in HYBRID_STATE:
                vars(block).pop(key, None)


class WholeSequential(nn.HybridSequential):
    """What was a plain Sequential of hybrid layers, with the state that a HybridBlock has from its beginning."""

    def begin(self) -> None:
        """Not compiled yet, and in the mode of its layers."""
        hybrid = [b for _, b in walk(self) if isinstance(b, nn.HybridBlock)]
        layers = [b for b in hybrid if not isinstance(b, WholeSequential)]
        self.__dict__.update(
            _active=all(b._active for b in layers), _flags=list(layers[0]._flags), _backend=None, _backend_opts={},
            _cached_graph=(), _cached_op=None, _cached_op_args=[], _in_format=None, _out_format=None,
            _callback=None, _monitor_all=False,
        )  # fmt: skip


class MeanGlobalAvgPool2D(nn.GlobalAvgPool2D):
    """Global average pooling as a mean over height and width."""

    @either_kind
    def hybrid_forward(self, F: Any, x: Any) -> Any:
        return F.mean(x, axis=_spatial(self), keepdims=True)


class _BlockedMean(MeanGlobalAvgPool2D):
    """The mean behind a depthwise convolution by 1, which gives the gradient back in blocks of channels."""

    channels = 0

    @either_kind
    def hybrid_forward(self, F: Any, x: Any) -> Any:
        one = F.slice(x, begin=(0, 0, 0, 0), end=(1, self.channels, 1, 1))
        ones = F.BlockGrad(F.ones_like(F.transpose(one, axes=(1, 0, 2, 3))))
        each = {"num_filter": self.channels, "num_group": self.channels}
        same = F.Convolution(x, ones, kernel=(1, 1), no_bias=True, **each)  # AMP casts both
        return as_called(super().hybrid_forward, F, same)

    def __reduce_ex__(self, protocol: Any) -> Any:
        return _remake_blocked_mean, (self.channels,), self.__dict__


@functools.cache
def blocked_mean(channels: int) -> type:
    """The class of a :class:`_BlockedMean` for maps of so many channels."""
    return type(nn.GlobalAvgPool2D.__name__, (_BlockedMean,), {"channels": channels})


def _remake_blocked_mean(channels: int) -> Any:
    kind: Any = blocked_mean(channels)
    return kind.__new__(kind)


class MeanAvgPool2D(nn.AvgPool2D):
    """Average pooling whose window is the whole map, as a mean.

    The pooling still runs forward (it is fast there), and adds nothing but its shape: a larger map, for
    which it would give more than one value, is an error of shapes and never a silent change of the
    result. A reshape to the known size would not do: in MXNet 1.9 one that does not fit corrupts memory.
    """

    @either_kind
    def hybrid_forward(self, F: Any, x: Any) -> Any:
        mean = F.mean(x, axis=_spatial(self), keepdims=True)
        return F.elemwise_add(mean, F.BlockGrad(F.zeros_like(as_called(super().hybrid_forward, F, x))))


class PaddedConv2D(nn.Conv2D):
    """A convolution that adds channels of zeros to its input and to its weight, in the graph.

    The parameter keeps its shape; the gradient of the added part is dropped by concat's own backward.
    """

    padded_to = 4

    @either_kind
    def hybrid_forward(self, F: Any, x: Any, weight: Any, bias: Any = None) -> Any:
        axis = self._kwargs["layout"].find("C")
        extra = self.padded_to - self.weight.shape[axis]
        padded = _with_zeros(F, x, extra, axis), _with_zeros(F, weight, extra, axis)
        return as_called(super().hybrid_forward, F, *padded, bias)


class FusedBatchNorm(nn.BatchNorm):
    """BatchNorm that applies the relu after it in the same kernel, forward and backward."""

    @either_kind
    def hybrid_forward(self, F: Any, x: Any, gamma: Any, beta: Any, running_mean: Any, running_var: Any) -> Any:
        return F.contrib.BatchNormWithReLU(x, gamma, beta, running_mean, running_var, name="fwd", **self._kwargs)


class Float32Conv2D(nn.Conv2D):
    """A convolution that stays in float32 where AMP casts the others to bfloat16."""

    @either_kind
    def hybrid_forward(self, F: Any, x: Any, weight: Any, bias: Any = None) -> Any:
        if process.started_dtype() != "bfloat16":
            return as_called(super().hybrid_forward, F, x, weight, bias)
        inputs = [F.amp_cast(x, dtype="float32"), weight, *([] if bias is None else [bias])]
        out = process.float32_operator(F, "Convolution")(*inputs, name="fwd", **self._kwargs)
        return out if self.act is None else self.act(out)


class Bfloat16BatchNorm(nn.BatchNorm):
    """BatchNorm over float32 that hands on bfloat16, in a process where AMP computes in it."""

    @either_kind
    def hybrid_forward(self, F: Any, x: Any, **parameters: Any) -> Any:
        out = as_called(super().hybrid_forward, F, x, **parameters)
        return F.amp_cast(out, dtype=bfloat16) if process.started_dtype() == "bfloat16" else out


class PassedActivation(nn.Activation):
    """A relu that the BatchNorm before it has already applied."""

    @either_kind
    def hybrid_forward(self, F: Any, x: Any) -> Any:
        return x


def _with_zeros(F: Any, x: Any, channels: int, axis: int) -> Any:
    zeros = F.zeros_like(F.slice_axis(x, axis=axis, begin=0, end=1))
    return F.concat(x, *[zeros] * channels, dim=axis)


def _spatial(pool: Any) -> tuple[int, int]:
    return (1, 2) if pool._kwargs["layout"] == "NHWC" else (2, 3)


for _class in (
    Bfloat16BatchNorm,
    Float32Conv2D,
    FusedBatchNorm,
    MeanGlobalAvgPool2D,
    MeanAvgPool2D,
    PaddedConv2D,
    PassedActivation,
):
    _class.__name__ = _class.__mro__[1].__name__
WholeSequential.__name__ = nn.Sequential.__name__
