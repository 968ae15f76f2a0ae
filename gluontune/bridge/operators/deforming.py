"""Deformable convolutions: each tap of the kernel reads where its offset points to.

Sources: Dai et al., *Deformable Convolutional Networks*, arXiv:1703.06211; Zhu et al., *Deformable ConvNets v2*,
arXiv:1811.11168, for the mask.
"""

from __future__ import annotations

import math
from typing import Any

from gluontune.bridge.registry import Draw, Sample, operator
from gluontune.runtime import pytorch

torch: Any = pytorch.torch()


def _drawn(draw: Draw, masked: bool) -> Sample:
    groups, deformed = draw.pick([1, 2]), draw.pick([1, 2])
    kernel, stride = (draw.int(1, 3), draw.int(2, 3)), (draw.int(1, 2), 1)
    pad, dilate, sides = (draw.int(0, 1), 1), (1, draw.int(1, 2)), (draw.int(4, 6), 6)
    image = [(n + 2 * p - d * (k - 1) - 1) // s + 1 for n, p, d, k, s in zip(sides, pad, dilate, kernel, stride)]
    taps = deformed * math.prod(kernel)
    attrs = {"kernel": kernel, "num_filter": 2 * groups, "num_group": groups, "num_deformable_group": deformed,
             "stride": stride, "pad": pad, "dilate": dilate, "no_bias": draw.pick([True, False]),
             "layout": draw.pick(["None", "NCHW"])}  # fmt: skip
    moved = (2, 2 * taps, *image)
    offsets = draw.pick([("normal", moved), ("whole", moved)])  # between pixels, and on them
    inputs: list[tuple[Any, ...]] = [("normal", (2, 4, *sides)), offsets]
    if masked:
        inputs.append(("positive", (2, taps, *image)))
    inputs.append(("normal", (2 * groups, 4 // groups, *kernel)))
    inputs = inputs if attrs["no_bias"] else [*inputs, ("normal", (2 * groups,))]
    return Sample(inputs, attrs, grads=not masked)  # MXNet has the masked one's gradients on GPUs only


@operator("_contrib_DeformableConvolution", sample=lambda draw: _drawn(draw, masked=False))
def deformable_convolution(x: Any, offset: Any, weight: Any, bias: Any = None, kernel: Any = (), stride: Any = (),
                           dilate: Any = (), pad: Any = (), num_filter: int = 0, num_group: int = 1,
                           num_deformable_group: int = 1, no_bias: bool = False,
                           layout: str = "NCHW") -> Any:  # fmt: skip
    rows, columns = _places(offset, kernel, stride, dilate, pad, num_deformable_group)
    height, width = x.shape[2:]
    inside = (rows >= 0) & (columns >= 0) & (rows < height) & (columns < width)
    last = [torch.where(place >= side - 1, side - 1, place) for place, side in ((rows, height), (columns, width))]
    taken = _read(x, last[0], last[1], inside, num_deformable_group)
    return _applied(taken, weight, None if no_bias else bias, num_group, offset.shape[2:])


@operator("_contrib_ModulatedDeformableConvolution", sample=lambda draw: _drawn(draw, masked=True))
def modulated_deformable_convolution(x: Any, offset: Any, mask: Any, weight: Any, bias: Any = None, kernel: Any = (),
                                     stride: Any = (), dilate: Any = (), pad: Any = (), num_filter: int = 0,
                                     num_group: int = 1, num_deformable_group: int = 1, no_bias: bool = False,
                                     im2col_step: int = 64, layout: str = "NCHW") -> Any:  # fmt: skip
    rows, columns = _places(offset, kernel, stride, dilate, pad, num_deformable_group)
    height, width = x.shape[2:]
    inside = (rows > -1) & (columns > -1) & (rows < height) & (columns < width)
    taken = _read(x, rows, columns, inside, num_deformable_group)
    taken = taken * mask.reshape(len(x), num_deformable_group, 1, -1)
    return _applied(taken, weight, None if no_bias else bias, num_group, offset.shape[2:])


def _places(offset: Any, kernel: Any, stride: Any, dilate: Any, pad: Any, groups: int) -> tuple[Any, Any]:
    """Rows and columns that are read: (batch, deformable groups, taps · height · width), in pixels of the image."""
    count, image = math.prod(kernel), offset.shape[2:]
    moved = offset.reshape(len(offset), groups, count, 2, *image)
    found = []
    for axis in range(2):
        tap = torch.arange(kernel[axis], device=offset.device, dtype=offset.dtype) * (dilate or (1, 1))[axis]
        tap = tap.repeat_interleave(kernel[1]) if axis == 0 else tap.repeat(kernel[0])
        place = torch.arange(image[axis], device=offset.device, dtype=offset.dtype) * (stride or (1, 1))[axis]
        start = place - (pad or (0, 0))[axis]
        start = start.unsqueeze(1) if axis == 0 else start.unsqueeze(0)
        found.append((moved[:, :, :, axis] + start + tap[:, None, None]).flatten(2))
    return found[0], found[1]


def _read(x: Any, rows: Any, columns: Any, inside: Any, groups: int) -> Any:
    """The image between its pixels, bilinear; beside it is nothing: (batch, groups, channels, places)."""
    height, width = x.shape[2:]
    pixels = x.reshape(len(x), groups, -1, height * width)
    top, left = rows.floor(), columns.floor()
    down, right = rows - top, columns - left
    found = 0.0
    for row, by_row in ((top, 1 - down), (top + 1, down)):
        for column, by_column in ((left, 1 - right), (left + 1, right)):
            there = inside & (row >= 0) & (row < height) & (column >= 0) & (column < width)
            index = (row.clamp(0, height - 1) * width + column.clamp(0, width - 1)).long()
            value = pixels.gather(3, index.unsqueeze(2).expand(-1, -1, pixels.shape[2], -1))
            share = torch.where(there, by_row * by_column, torch.zeros_like(rows))
            found = found + value * share.unsqueeze(2)
    return found


def _applied(taken: Any, weight: Any, bias: Any, groups: int, image: Any) -> Any:
    """The kernel over what its taps have read."""
    batch, filters = len(taken), len(weight)
    columns = taken.reshape(batch, groups, -1, math.prod(image))  # of each group: channels · taps
    kernels = weight.reshape(groups, filters // groups, -1)
    found = torch.einsum("gfc,bgcp->bgfp", kernels, columns).reshape(batch, filters, *image)
    return found if bias is None else found + bias.reshape(1, -1, 1, 1)
