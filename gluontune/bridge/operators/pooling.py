"""Pooling with MXNet's conventions."""

from __future__ import annotations

import math
from typing import Any

from gluontune.bridge.operators.neural import channels_back, channels_first
from gluontune.bridge.registry import Draw, Sample, operator
from gluontune.runtime import pytorch

torch: Any = pytorch.torch()
F = torch.nn.functional

_MAX = {1: F.max_pool1d, 2: F.max_pool2d, 3: F.max_pool3d}
_AVG = {1: F.avg_pool1d, 2: F.avg_pool2d, 3: F.avg_pool3d}


def _sample(draw: Draw, sides: int = 0) -> Sample:
    kernel = tuple(draw.int(2, 3) for _ in range(sides or draw.int(1, 2)))
    attrs: dict[str, Any] = {
        "kernel": kernel, "stride": tuple(draw.int(1, 3) for _ in kernel), "pad": tuple(draw.int(0, 1) for _ in kernel),
        "pool_type": draw.pick(["max", "avg", "sum"]), "pooling_convention": draw.pick(["valid", "full"]),
        "count_include_pad": draw.pick([True, False]), "global_pool": draw.int(0, 4) == 0,
    }  # fmt: skip
    return Sample([("distinct", (1, 2, *[draw.int(4, 8) for _ in kernel]))], attrs)


@operator("Pooling", sample=_sample)
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
    """How many more elements than ``pad`` are wanted behind the last, so that the last window is whole."""
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
    least = torch.finfo(x.dtype).min  # what MXNet gives for a window that lies beyond the image
    return _MAX[n](F.pad(x, _padding(pad, after), value=least), kernel, stride)


def _total(x: Any, kernel: Any, stride: Any, pad: Any, after: Any) -> Any:
    return _AVG[len(kernel)](F.pad(x, _padding(pad, after)), kernel, stride) * math.prod(kernel)


def _counts(x: Any, kernel: Any, stride: Any, pad: Any, after: Any, include: bool) -> Any:
    """How many elements each window counts; those behind the padding never count."""
    if include:
        shape = [size + 2 * p for size, p in zip(x.shape[2:], pad)]
        pad = (0,) * len(kernel)
    else:
        shape = list(x.shape[2:])
    ones = torch.ones([1, 1, *shape], dtype=x.dtype, device=x.device)
    # A window that lies beyond the image counts none; its sum is 0, and so is its mean.
    return _total(ones, kernel, stride, pad, after).round().clamp(min=1)


@operator("_contrib_AdaptiveAvgPooling2D", sample=lambda d: Sample(
    [("normal", (1, 2, d.int(3, 7), d.int(3, 7)))], {"output_size": d.pick([1, 2, 3, (2, 3)])}))  # fmt: skip
def adaptive_avg_pooling(x: Any, output_size: Any = ()) -> Any:
    size = output_size or (1,)
    return F.adaptive_avg_pool2d(x, size if len(size) == 2 else size[0])


def _old_sample(draw: Draw) -> Sample:
    drawn = _sample(draw, sides=2)
    attrs = {k: v for k, v in drawn.attrs.items() if k != "count_include_pad"}
    return Sample(drawn.inputs, {**attrs, "pad": (0, 0), "stride": (1, 2)})


@operator("Pooling_v1", sample=_old_sample, rounded=True)
def pooling_v1(x: Any, kernel: Any = (), pool_type: str = "max", global_pool: bool = False,
               pooling_convention: str = "valid", stride: Any = (), pad: Any = ()) -> Any:  # fmt: skip
    """The old one: its mean is always over the whole window, also where that reaches beyond the image."""
    if pool_type == "avg" and not global_pool:
        total = pooling(x, kernel, "sum", False, pooling_convention, stride, pad)
        return total / math.prod(kernel)
    return pooling(x, kernel, pool_type, global_pool, pooling_convention, stride, pad)
