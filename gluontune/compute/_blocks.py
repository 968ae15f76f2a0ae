"""Layers with the results of Gluon's by a faster path, first values, the input stage; imported where mxnet is needed.

A rewrite changes nothing but the *class* of an existing layer: parameters, names, children and references stay
the same objects, and the old class undoes it. A new class keeps Gluon's ``__name__``, which ``Block.save`` writes
to files; pickle looks up ``__qualname__``.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from gluontune.compute import process
from gluontune.compute._passes import HYBRID_STATE
from gluontune.compute._traversal import as_called, either_kind, walk
from gluontune.core.errors import UsageError
from gluontune.runtime import mxnet, uses_np

mx: Any = mxnet()
nn: Any = mx.gluon.nn
bfloat16 = np.dtype([("bfloat16", np.uint16)])  # as MXNet names it in Python


def give(targets: Iterable[Any]) -> None:
    for target in targets:
        target.block.__class__ = target.new_class
        if target.new_class is WholeSequential:
            target.block.begin()


def take_back(before: Sequence[tuple[Any, type]]) -> None:
    for block, original in reversed(before):
        block.__class__ = original
        if original is nn.Sequential:
            for key in HYBRID_STATE:
                vars(block).pop(key, None)


class WholeSequential(nn.HybridSequential):
    """A plain Sequential of hybrid layers with the state of a new HybridBlock."""

    def begin(self) -> None:
        """Set the state: not compiled yet, in the mode of its layers."""
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
    """The mean after a depthwise convolution by 1, whose gradient comes in blocks of channels."""

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
    """The class of a :class:`_BlockedMean` for maps with this number of channels."""
    return type(nn.GlobalAvgPool2D.__name__, (_BlockedMean,), {"channels": channels})


def _remake_blocked_mean(channels: int) -> Any:
    kind: Any = blocked_mean(channels)
    return kind.__new__(kind)


class MeanAvgPool2D(nn.AvgPool2D):
    """Average pooling whose window is the whole map, as a mean.

    The pooling still runs forward (it is fast) and contributes only its shape: a larger map, for which it returns
    more than one value, raises an error of shapes. In MXNet 1.9 a reshape that does not fit corrupts memory.
    """

    @either_kind
    def hybrid_forward(self, F: Any, x: Any) -> Any:
        mean = F.mean(x, axis=_spatial(self), keepdims=True)
        return F.elemwise_add(mean, F.BlockGrad(F.zeros_like(as_called(super().hybrid_forward, F, x))))


class PickedGlobalMaxPool1D(nn.GlobalMaxPool1D):
    """Global max pooling of sequences as a look-up of the first largest value, which alone gets the gradient."""

    @either_kind
    def hybrid_forward(self, F: Any, x: Any) -> Any:
        axis = self._kwargs["layout"].find("W")
        return F.pick(x, F.argmax(x, axis=axis), axis=axis, keepdims=True)


class PaddedConv2D(nn.Conv2D):
    """A convolution that adds channels of zeros to its input and weight in the graph; the parameter keeps its shape."""

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
    """A convolution in float32 where AMP casts other convolutions to bfloat16."""

    @either_kind
    def hybrid_forward(self, F: Any, x: Any, weight: Any, bias: Any = None) -> Any:
        if process.started_dtype() != "bfloat16":
            return as_called(super().hybrid_forward, F, x, weight, bias)
        inputs = [F.amp_cast(x, dtype="float32"), weight, *([] if bias is None else [bias])]
        out = process.float32_convolution(F)(*inputs, name="fwd", **self._kwargs)
        return out if self.act is None else self.act(out)


class Bfloat16BatchNorm(nn.BatchNorm):
    """BatchNorm over float32 with a bfloat16 output, in a process with bfloat16 AMP."""

    @either_kind
    def hybrid_forward(self, F: Any, x: Any, **parameters: Any) -> Any:
        out = as_called(super().hybrid_forward, F, x, **parameters)
        return F.amp_cast(out, dtype=bfloat16) if process.started_dtype() == "bfloat16" else out


class PassedActivation(nn.Activation):
    """The identity, in place of a relu that the BatchNorm before it applies."""

    @either_kind
    def hybrid_forward(self, F: Any, x: Any) -> Any:
        return x


def _with_zeros(F: Any, x: Any, channels: int, axis: int) -> Any:
    zeros = F.zeros_like(F.slice_axis(x, axis=axis, begin=0, end=1))
    return F.concat(x, *[zeros] * channels, dim=axis)


def _spatial(pool: Any) -> tuple[int, int]:
    return (1, 2) if pool._kwargs["layout"] == "NHWC" else (2, 3)


for _class in (
    Bfloat16BatchNorm, Float32Conv2D, FusedBatchNorm, MeanGlobalAvgPool2D, MeanAvgPool2D, PaddedConv2D,
    PassedActivation, PickedGlobalMaxPool1D,
):  # fmt: skip
    _class.__name__ = _class.__mro__[1].__name__
WholeSequential.__name__ = nn.Sequential.__name__


class FirstValues(mx.init.Xavier):
    """Xavier's rule; parameters that are no matrix, and have no rule, are initialized by their names.

    Layers made from a symbol (gluon-cv's SSD, any ``SymbolBlock``) have such parameters, which Xavier's rule refuses.

    >>> mx = mxnet()
    >>> norm = mx.sym.BatchNorm(mx.sym.var("x"), name="norm", fix_gamma=False)
    >>> net = mx.gluon.SymbolBlock(norm, mx.sym.var("x"))
    >>> net.initialize(FirstValues())
    >>> net(mx.nd.ones((1, 2))).shape, net.collect_params()["norm_gamma"].data().asnumpy()
    ((1, 2), array([1., 1.], dtype=float32))
    """

    def __init__(self) -> None:
        super().__init__(magnitude=2)

    def _init_weight(self, name: Any, array: Any) -> None:
        if len(array.shape) > 1:
            super()._init_weight(name, array)
        elif name.endswith(("gamma", "var")):
            self._init_one(name, array)
        elif name.endswith(("beta", "bias", "mean")):
            self._init_zero(name, array)
        else:
            mx.init.Uniform()._init_weight(name, array)


gluon: Any = mx.gluon


class InputStage(gluon.HybridBlock):
    """uint8 pixels, ``(N, H, W, C)``, to normalized floats, ``(N, C, H, W)``.

    A loader of uint8 moves a quarter of the bytes and does no arithmetic in Python; the stage computes
    ``(pixel / 255 - mean) / std`` on the device. It has no parameters and no gradient of its input.

    The order cast, multiply, add, transpose was the fastest of seven on a 2-core CPU (64 × 32 × 32 × 3: 0.29 ms;
    ``to_tensor`` and ``normalize`` 1.2 ms; transposing the bytes first 5.6 ms: only float32 has a oneDNN kernel).

    Args:
        mean, std: one value a channel, of pixels scaled to 0 … 1 (as in ``transforms.Normalize``).
        dtype: of the output, ``float32`` or ``float16``. Keep float32 for bfloat16: AMP casts by itself.

    Raises:
        UsageError: lengths that differ, a deviation that is not positive, values above 1.

    >>> stage = InputStage([0.5], [0.25])
    >>> out = stage(mx.nd.array([[[[0]], [[255]]]], dtype="uint8"))  # (1, 2, 1, 1): one column
    >>> out.shape, out.asnumpy().ravel().tolist()
    ((1, 1, 2, 1), [-2.0, 2.0])
    """

    def __init__(self, mean: Sequence[float], std: Sequence[float], *, dtype: str = "float32", **kwargs: Any):
        super().__init__(**kwargs)
        self.mean, self.std = _checked(mean, std)
        self._dtype = _checked_dtype(dtype)

    @either_kind
    def hybrid_forward(self, F: Any, x: Any) -> Any:
        scale = [1 / (255 * s) for s in self.std]
        shift = [-m / s for m, s in zip(self.mean, self.std)]
        modern = uses_np()
        x = F.cast(x.as_nd_ndarray() if modern else x, "float32")
        if len(scale) == 1:
            x = x * scale[0] + shift[0]
        else:
            x = F.broadcast_add(F.broadcast_mul(x, _row(F, x, scale)), _row(F, x, shift))
        # Nothing is trained before this point; it also avoids a gradient of integers.
        x = F.BlockGrad(F.transpose(x, axes=(0, 3, 1, 2)))
        x = x if self._dtype == "float32" else F.cast(x, self._dtype)
        return x.as_np_ndarray() if modern else x

    def cast(self, dtype: Any) -> None:
        """Cast the output with the network; the input stays uint8."""
        self._dtype = _checked_dtype(dtype)
        super().cast(dtype)

    def __repr__(self) -> str:
        return f"InputStage(mean={self.mean}, std={self.std}, dtype={self._dtype})"


class _StagedNet:
    """The common part of both wrappers: the parameters are the inner network's, in files too."""

    def __init__(self, net: Any, stage: Any):
        super().__init__()
        self.stage, self.net = stage, net

    def save_parameters(self, filename: str, deduplicate: bool = False) -> None:
        self.net.save_parameters(filename, deduplicate=deduplicate)

    def load_parameters(self, filename: str, *args: Any, **kwargs: Any) -> None:
        self.net.load_parameters(filename, *args, **kwargs)


class _HybridStagedNet(_StagedNet, gluon.HybridBlock):
    def hybrid_forward(self, F: Any, x: Any) -> Any:
        return self.net(self.stage(x))


class _PlainStagedNet(_StagedNet, gluon.Block):
    def forward(self, x: Any) -> Any:
        return self.net(self.stage(x))


def with_input_stage(net: Any, stage: Any) -> Any:
    """A block that computes ``net(stage(x))``, with the parameters, names and files of ``net``.

    Args:
        net: a network that takes normalized ``(N, C, H, W)``; a HybridBlock stays hybridizable as a whole.
        stage: an :class:`InputStage`, or any block.

    >>> net = gluon.nn.Dense(2)
    >>> staged = with_input_stage(net, InputStage([0.5], [0.25]))
    >>> list(staged.collect_params()) == list(net.collect_params())
    True
    """
    hybrid = isinstance(net, gluon.HybridBlock) and isinstance(stage, gluon.HybridBlock)
    return (_HybridStagedNet if hybrid else _PlainStagedNet)(net, stage)


def _checked_dtype(dtype: Any) -> str:
    name = dtype if isinstance(dtype, str) else np.dtype(dtype).name
    if name not in ("float32", "float16"):
        raise UsageError(f"InputStage dtype {name!r}: choose float32 or float16 (AMP casts to bfloat16)")
    return name


def _row(F: Any, like: Any, values: Sequence[float]) -> Any:
    """``values`` along the last axis, on the device of ``like``.

    Made from one element of the data: a constant Parameter would be in the network's files, and AMP cannot wrap
    operators without inputs (``full``).
    """
    zero = F.zeros_like(F.slice(like, begin=(0, 0, 0, 0), end=(1, 1, 1, 1)))
    return F.concat(*[zero + value for value in values], dim=3)


def _checked(mean: Sequence[float], std: Sequence[float]) -> tuple[tuple[float, ...], tuple[float, ...]]:
    try:
        means, stds = tuple(float(m) for m in mean), tuple(float(s) for s in std)
    except (TypeError, ValueError):
        raise UsageError(f"InputStage mean={mean!r}, std={std!r}: give one number a channel") from None
    if not means or len(means) != len(stds):
        raise UsageError(f"InputStage has {len(means)} means and {len(stds)} deviations: give one a channel")
    if not all(math.isfinite(v) for v in means + stds) or min(stds) <= 0:
        raise UsageError(f"InputStage mean={means}, std={stds}: finite means and positive deviations, please")
    if max(means) > 1 or min(means) < 0 or max(stds) > 1:
        raise UsageError(
            f"InputStage mean={means}, std={stds}: these are of pixels scaled to 0 … 1; divide them by 255"
        )
    return means, stds
