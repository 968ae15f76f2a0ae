"""Convolutions, dense layers, embeddings, dropout, pooling, and normalizations with MXNet's statistics."""

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
    "LRN": lambda x, nsize, alpha=1e-4, beta=0.75, knorm=2.0: F.local_response_norm(x, nsize, alpha, beta, knorm),
    "Embedding": lambda x, weight, input_dim, output_dim, dtype="float32":
        F.embedding(x.long().clamp(0, weight.shape[0] - 1), weight),
})  # fmt: skip


@operator("BatchNorm", "BatchNorm_v1", stateful=True, many=lambda attrs: bool(attrs.get("output_mean_var")))
class BatchNorm(torch.nn.Module):
    """Batch normalization with a biased running variance, as in MXNet.

    gamma, beta and the running statistics are inputs; the statistics are changed in place in training, but where
    no gradient passes: MXNet changes them in the backward pass, so one at the input with a fixed gamma and beta
    (ResNet v2) keeps 0 and 1.
    """

    def __init__(self, eps: float = 1e-3, momentum: float = 0.9, fix_gamma: bool = True,
                 use_global_stats: bool = False, axis: int = 1, output_mean_var: bool = False):  # fmt: skip
        super().__init__()
        self.eps, self.momentum, self.fix_gamma, self.axis = eps, momentum, fix_gamma, axis
        self.use_global_stats, self.output_mean_var = use_global_stats, output_mean_var

    def forward(self, x: Any, gamma: Any, beta: Any, mean: Any, var: Any) -> Any:
        if self.axis % x.dim() != 1:
            x = x.movedim(self.axis, 1)
        # MXNet counts in the backward pass, which a fixed gamma lets through if it wants a gradient
        counted = torch.is_grad_enabled() and any(a.requires_grad for a in (x, gamma, beta))
        gamma = torch.ones_like(gamma) if self.fix_gamma else gamma
        if not self.training or self.use_global_stats:
            out, seen = torch.batch_norm(x, gamma, beta, mean, var, False, 0.0, self.eps, False), (mean, var)
        else:
            count = x.numel() // x.shape[1]
            if self.output_mean_var or count == 1:
                axes = [0, *range(2, x.dim())]
                seen = (x.mean(axes), x.var(axes, unbiased=False))
            out, *new = self._train(x, gamma, beta, mean, var, count, seen if count == 1 else None)
            if counted:
                with torch.no_grad():
                    mean.copy_(new[0])
                    var.copy_(new[1])
        out = out if self.axis % x.dim() == 1 else out.movedim(1, self.axis)
        return (out, *seen) if self.output_mean_var else out

    def _train(self, x: Any, gamma: Any, beta: Any, mean: Any, var: Any, count: int, seen: Any) -> Any:
        new_mean, new_var = mean.clone(), var.clone()  # the backward pass keeps the arguments
        if seen is not None:  # one value a channel: the mean itself
            out = torch.batch_norm(x, gamma, beta, None, None, True, 0.0, self.eps, False)
            new_mean = torch.lerp(seen[0], mean, self.momentum)
            new_var = var * self.momentum
        else:
            out = torch.batch_norm(x, gamma, beta, new_mean, new_var, True, 1 - self.momentum, self.eps, False)
            # torch adds the unbiased variance
            new_var = var * (self.momentum / count) + new_var * ((count - 1) / count)
        return out, new_mean, new_var


@operator("_contrib_BatchNormWithReLU", stateful=True)
class BatchNormWithReLU(BatchNorm):
    def forward(self, x: Any, gamma: Any, beta: Any, mean: Any, var: Any) -> Any:
        return super().forward(x, gamma, beta, mean, var).relu()


operator("_contrib_SyncBatchNorm", stateful=True, many=lambda attrs: bool(attrs.get("output_mean_var")))(BatchNorm)


@operator("LayerNorm", many=lambda attrs: bool(attrs.get("output_mean_var")))
def layer_norm(x: Any, gamma: Any, beta: Any, axis: int = -1, eps: float = 1e-5, output_mean_var: bool = False) -> Any:
    moved = x.movedim(axis, -1)
    out = F.layer_norm(moved, moved.shape[-1:], gamma, beta, eps).movedim(-1, axis)
    if not output_mean_var:
        return out
    return out, x.mean(axis, keepdim=True), (x.var(axis, unbiased=False, keepdim=True) + eps).sqrt()


@operator("InstanceNorm")
def instance_norm(x: Any, gamma: Any, beta: Any, eps: float = 1e-3) -> Any:
    axes = tuple(range(2, x.dim()))
    shape = [1, -1] + [1] * len(axes)
    out = (x - x.mean(axes, keepdim=True)) * torch.rsqrt(x.var(axes, unbiased=False, keepdim=True) + eps)
    return out * gamma.reshape(shape) + beta.reshape(shape)


@operator("GroupNorm")
def group_norm(x: Any, gamma: Any, beta: Any, num_groups: int = 1, eps: float = 1e-5) -> Any:
    def each(scale: Any) -> Any:  # MXNet 1.9 has one number a group
        scale = scale.repeat_interleave(x.shape[1] // scale.shape[0])
        return scale.reshape([1, -1] + [1] * (x.dim() - 2))

    return F.group_norm(x, num_groups, None, None, eps) * each(gamma) + each(beta)


@operator("L2Normalization")
def l2_normalization(x: Any, mode: str = "instance", eps: float = 1e-10) -> Any:
    axes = {"instance": tuple(range(1, x.dim())), "channel": (1,), "spatial": tuple(range(2, x.dim()))}[mode]
    return x / ((x * x).sum(axes, keepdim=True) + eps).sqrt()
