"""Convolutions, dense layers, embeddings, dropout."""

from __future__ import annotations

from typing import Any

from gluontune.bridge.registry import Draw, Sample, operator
from gluontune.runtime import pytorch

torch: Any = pytorch.torch()
F = torch.nn.functional

_CONV = {1: F.conv1d, 2: F.conv2d, 3: F.conv3d}
_DECONV = {1: F.conv_transpose1d, 2: F.conv_transpose2d, 3: F.conv_transpose3d}


def channels_first(x: Any, layout: str | None) -> Any:
    return x.movedim(-1, 1) if layout and layout.endswith("C") else x


def channels_back(x: Any, layout: str | None) -> Any:
    return x.movedim(1, -1) if layout and layout.endswith("C") else x


def _conv_sample(draw: Draw) -> Sample:
    n, groups = draw.int(1, 2), draw.pick([1, 1, 2])
    kernel = tuple(draw.int(1, 3) for _ in range(n))
    attrs = {
        "kernel": kernel, "num_filter": 2 * groups, "num_group": groups, "no_bias": draw.pick([True, False]),
        "stride": tuple(draw.int(1, 2) for _ in kernel), "pad": tuple(draw.int(0, 1) for _ in kernel),
        "dilate": tuple(draw.int(1, 2) for _ in kernel),
    }  # fmt: skip
    inputs = [("normal", (2, 2 * groups, *[draw.int(5, 7) for _ in kernel])), ("normal", (2 * groups, 2, *kernel))]
    return Sample(inputs if attrs["no_bias"] else [*inputs, ("normal", (2 * groups,))], attrs)


@operator("Convolution", sample=_conv_sample)
def convolution(x: Any, weight: Any, bias: Any = None, kernel: Any = (), stride: Any = (), dilate: Any = (),
                pad: Any = (), num_filter: int = 0, num_group: int = 1, no_bias: bool = False,
                layout: str | None = None) -> Any:  # fmt: skip
    found = _CONV[len(kernel)](channels_first(x, layout), channels_first(weight, layout), None if no_bias else bias,
                               stride or 1, pad or 0, dilate or 1, num_group)  # fmt: skip
    return channels_back(found, layout)


def _deconv_sample(draw: Draw) -> Sample:
    groups, kernel = draw.pick([1, 2]), (draw.int(2, 4), draw.int(2, 4))
    stride = (draw.int(1, 2), draw.int(1, 2))
    attrs = {
        "kernel": kernel, "num_filter": 2 * groups, "num_group": groups, "no_bias": draw.pick([True, False]),
        "stride": stride, "pad": (draw.int(0, 1), draw.int(0, 1)), "adj": tuple(s - 1 for s in stride),
    }  # fmt: skip
    inputs = [("normal", (2, 2 * groups, draw.int(3, 5), 4)), ("normal", (2 * groups, 2, *kernel))]
    return Sample(inputs if attrs["no_bias"] else [*inputs, ("normal", (2 * groups,))], attrs)


@operator("Deconvolution", sample=_deconv_sample)
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


def _dense_sample(draw: Draw) -> Sample:
    shape, flatten, no_bias = draw.shape(2, 4), draw.pick([True, False]), draw.pick([True, False])
    width = 1
    for size in shape[1:] if flatten else shape[-1:]:
        width *= size
    inputs = [("normal", shape), ("normal", (3, width)), *([] if no_bias else [("normal", (3,))])]
    return Sample(inputs, {"num_hidden": 3, "flatten": flatten, "no_bias": no_bias})


@operator("FullyConnected", sample=_dense_sample)
def fully_connected(x: Any, weight: Any, bias: Any = None, num_hidden: int = 0, no_bias: bool = False,
                    flatten: bool = True) -> Any:  # fmt: skip
    return F.linear(x.flatten(1) if flatten else x, weight, None if no_bias else bias)


@operator(
    "Embedding", sample=lambda d: Sample([("index", (2, 3), 5), ("normal", (5, 4))], {"input_dim": 5, "output_dim": 4})
)
def embedding(x: Any, weight: Any, input_dim: int, output_dim: int, dtype: str = "float32") -> Any:
    return F.embedding(x.long().clamp(0, weight.shape[0] - 1), weight)


@operator("Dropout", stateful=True, sample=lambda d: Sample([("normal", d.shape())], {"p": 0.0}))
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
