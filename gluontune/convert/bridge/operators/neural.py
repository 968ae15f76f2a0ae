"""Convolutions, dense layers, embeddings, dropout; pooling with MXNet's conventions."""

from __future__ import annotations

import math
from typing import Any

from gluontune.convert.bridge.registry import operator, operators
from gluontune.runtime import pytorch

torch: Any = pytorch.torch()
F = torch.nn.functional

_CONV = {1: F.conv1d, 2: F.conv2d, 3: F.conv3d}
_DECONV = {1: F.conv_transpose1d, 2: F.conv_transpose2d, 3: F.conv_transpose3d}


def channels_first(x: Any, layout: str | None) -> Any:
    return x.movedim(-1, 1) if layout and layout.endswith("C") else x


def channels_back(x: Any, layout: str | None) -> Any:
    return x.movedim(1, -1) if layout and layout.endswith("C") else x


@operator("Convolution", "Convolution_v1")
def convolution(x: Any, weight: Any, bias: Any = None, kernel: Any = (), stride: Any = (), dilate: Any = (),
                pad: Any = (), num_filter: int = 0, num_group: int = 1, no_bias: bool = False,
                layout: str | None = None) -> Any:  # fmt: skip
    found = _CONV[len(kernel)](channels_first(x, layout), channels_first(weight, layout), None if no_bias else bias,
                               stride or 1, pad or 0, dilate or 1, num_group)  # fmt: skip
    return channels_back(found, layout)


@operator("Deconvolution")
def deconvolution(x: Any, weight: Any, bias: Any = None, kernel: Any = (), stride: Any = (), dilate: Any = (),
                  pad: Any = (), adj: Any = (), target_shape: Any = (), num_filter: int = 0, num_group: int = 1,
                  no_bias: bool = True, layout: str | None = None) -> Any:  # fmt: skip
    n = len(kernel)
    stride, dilate, pad, adj = stride or (1,) * n, dilate or (1,) * n, pad or (0,) * n, adj or (0,) * n
    x = channels_first(x, layout)
    if target_shape and any(target_shape):
        total = [s * (i - 1) + d * (k - 1) + 1 - t for s, i, d, k, t in
                 zip(stride, x.shape[2:], dilate, kernel, target_shape)]  # fmt: skip
        pad, adj = tuple((t + 1) // 2 for t in total), tuple(t % 2 for t in total)
    found = _DECONV[n](
        x, channels_first(weight, layout), None if no_bias else bias, stride, pad, adj, num_group, dilate
    )
    return channels_back(found, layout)


@operator("Dropout", stateful=True)
class Dropout(torch.nn.Module):
    """Drops in training, or always; along ``axes`` the same mask is shared."""

    def __init__(self, p: float = 0.5, mode: str = "training", axes: Any = ()):
        super().__init__()
        self.p, self.mode, self.axes = p, mode, tuple(axes)

    def forward(self, x: Any) -> Any:
        if not (self.training or self.mode == "always") or self.p == 0:
            return x
        if not self.axes:
            return F.dropout(x, self.p)
        shape = [1 if axis in self.axes else size for axis, size in enumerate(x.shape)]
        return x * F.dropout(torch.ones(shape, dtype=x.dtype, device=x.device), self.p)


_MAX = {1: F.max_pool1d, 2: F.max_pool2d, 3: F.max_pool3d}
_AVG = {1: F.avg_pool1d, 2: F.avg_pool2d, 3: F.avg_pool3d}


@operator("Pooling")
def pooling(x: Any, kernel: Any = (), pool_type: str = "max", global_pool: bool = False,
            pooling_convention: str = "valid", stride: Any = (), pad: Any = (), p_value: int | None = None,
            count_include_pad: bool | None = None, layout: str | None = None) -> Any:  # fmt: skip
    x = channels_first(x, layout)
    if global_pool:
        return channels_back(_global(x, pool_type, p_value), layout)
    n = len(kernel)
    stride, pad = stride or (1,) * n, pad or (0,) * n
    after = [_extra(i, k, s, p, pooling_convention) for i, k, s, p in zip(x.shape[2:], kernel, stride, pad)]
    if pool_type == "max":
        out = _max(x, kernel, stride, pad, after)
    elif pool_type == "lp":
        total = _total(x.abs() ** p_value, kernel, stride, pad, after)
        out = total ** (1 / (p_value or 1))
    else:
        include = count_include_pad is None or count_include_pad
        if pool_type == "avg" and include and not any(after):
            out = _AVG[n](x, kernel, stride, pad)
        else:
            out = _total(x, kernel, stride, pad, after)
            if pool_type == "avg":
                out = out / _counts(x, kernel, stride, pad, after, include)
    return channels_back(out, layout)


def _global(x: Any, kind: str, p: int | None) -> Any:
    axes = tuple(range(2, x.dim()))
    if kind == "max":
        return F.adaptive_max_pool2d(x, 1) if x.dim() == 4 else x.amax(axes, keepdim=True)
    if kind == "avg":
        return x.mean(axes, keepdim=True)
    return x.sum(axes, keepdim=True) if kind == "sum" else (x.abs() ** p).sum(axes, keepdim=True) ** (1 / (p or 1))


def _extra(size: int, kernel: int, stride: int, pad: int, convention: str) -> int:
    """Additional padding after the last element, for a whole last window."""
    space = size + 2 * pad - kernel
    windows = {"valid": space // stride, "full": math.ceil(space / stride)}.get(convention)
    if windows is None:  # same
        windows = math.ceil((size + 2 * pad) / stride) - 1
    return max(0, windows * stride + kernel - size - 2 * pad)


def _padding(pad: Any, after: Any) -> list[int]:
    return [n for p, a in zip(reversed(pad), reversed(after)) for n in (p, p + a)]


def _max(x: Any, kernel: Any, stride: Any, pad: Any, after: Any) -> Any:
    n = len(kernel)
    if not any(after) and all(2 * p <= k for p, k in zip(pad, kernel)):
        return _MAX[n](x, kernel, stride, pad)
    least = torch.finfo(x.dtype).min  # MXNet's value of a window beyond the image
    return _MAX[n](F.pad(x, _padding(pad, after), value=least), kernel, stride)


def _total(x: Any, kernel: Any, stride: Any, pad: Any, after: Any) -> Any:
    return _AVG[len(kernel)](F.pad(x, _padding(pad, after)), kernel, stride) * math.prod(kernel)


def _counts(x: Any, kernel: Any, stride: Any, pad: Any, after: Any, include: bool) -> Any:
    """The number of elements in each window; those after the padding never count."""
    if include:
        shape = [size + 2 * p for size, p in zip(x.shape[2:], pad)]
        pad = (0,) * len(kernel)
    else:
        shape = list(x.shape[2:])
    ones = torch.ones([1, 1, *shape], dtype=x.dtype, device=x.device)
    # A window beyond the image has no elements; its sum and mean are 0.
    return _total(ones, kernel, stride, pad, after).round().clamp(min=1)


@operator("_contrib_AdaptiveAvgPooling2D")
def adaptive_avg_pooling(x: Any, output_size: Any = ()) -> Any:
    size = output_size or (1,)
    return F.adaptive_avg_pool2d(x, size if len(size) == 2 else size[0])


@operator("Pooling_v1", rounded=True)
def pooling_v1(x: Any, kernel: Any = (), pool_type: str = "max", global_pool: bool = False,
               pooling_convention: str = "valid", stride: Any = (), pad: Any = ()) -> Any:  # fmt: skip
    """The old operator: its mean is always over the whole window, also beyond the image."""
    if pool_type == "avg" and not global_pool:
        total = pooling(x, kernel, "sum", False, pooling_convention, stride, pad)
        return total / math.prod(kernel)
    return pooling(x, kernel, pool_type, global_pool, pooling_convention, stride, pad)


operators(globals(), {
    "FullyConnected": lambda x, weight, bias=None, num_hidden=0, no_bias=False, flatten=True:
        F.linear(x.flatten(1) if flatten else x, weight, None if no_bias else bias),
    "Embedding": lambda x, weight, input_dim, output_dim, dtype="float32":
        F.embedding(x.long().clamp(0, weight.shape[0] - 1), weight),
})  # fmt: skip
