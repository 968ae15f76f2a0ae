"""The input stage, which normalizes decoded pixels in the graph."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from gluontune.compute._traversal import either_kind
from gluontune.core.errors import UsageError
from gluontune.runtime import mxnet, uses_np

mx: Any = mxnet()
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
