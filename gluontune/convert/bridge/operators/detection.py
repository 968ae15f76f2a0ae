"""SSD's layers (MultiBox…), Fast R-CNN's ROIPooling, and deformable convolutions.

In these, each tap of the kernel reads where its offset points to: Dai et al., *Deformable Convolutional Networks*,
arXiv:1703.06211; Zhu et al., *Deformable ConvNets v2*, arXiv:1811.11168, for the mask.
"""

from __future__ import annotations

import math
from typing import Any

from gluontune.convert.bridge.operators.vision import overlaps
from gluontune.convert.bridge.registry import operator
from gluontune.runtime import pytorch

torch: Any = pytorch.torch()


@operator("ROIPooling")
def roi_pooling(x: Any, rois: Any, pooled_size: Any, spatial_scale: float) -> Any:
    corners = (rois[:, 1:] * spatial_scale + 0.5).floor().to(x.dtype)
    image = x[rois[:, 0].long().clamp(min=0)]
    rows, columns = (
        _bins(corners[:, low], corners[:, low + 2], size, side)
        for low, size, side in ((1, pooled_size[0], x.shape[2]), (0, pooled_size[-1], x.shape[3]))
    )
    found = []
    for row in rows.unbind(1):  # (regions, height)
        strip = image.masked_fill(~row[:, None, :, None], -torch.inf).amax(2)
        cells = [strip.masked_fill(~column[:, None], -torch.inf).amax(2) for column in columns.unbind(1)]
        found.append(torch.stack(cells, -1))
    best = torch.stack(found, 2)
    return torch.where(torch.isinf(best), torch.zeros_like(best), best)  # a bin without a pixel is 0


def _bins(start: Any, end: Any, count: int, size: int) -> Any:
    """Whether each pixel of a side belongs to each bin: (regions, bins, size)."""
    width = (end - start + 1).clamp(min=1).unsqueeze(1) / count
    place = torch.arange(count, device=start.device, dtype=start.dtype)
    low = ((place * width).floor() + start.unsqueeze(1)).clamp(0, size).unsqueeze(2)
    high = (((place + 1) * width).ceil() + start.unsqueeze(1)).clamp(0, size).unsqueeze(2)
    pixel = torch.arange(size, device=start.device, dtype=start.dtype)
    return (pixel >= low) & (pixel < high)


@operator("_contrib_MultiBoxPrior")
def multibox_prior(x: Any, sizes: Any = (1.0,), ratios: Any = (1.0,), clip: bool = False, steps: Any = (-1.0, -1.0),
                   offsets: Any = (0.5, 0.5)) -> Any:  # fmt: skip
    height, width = x.shape[2:]
    middles = []
    for side, step, offset in zip((height, width), steps, offsets):
        places = torch.arange(side, device=x.device, dtype=x.dtype)
        middles.append((places + offset) * (step if step > 0 else 1.0 / side))
    first = math.sqrt(ratios[0])
    shapes = [(size, first) for size in sizes] + [(sizes[0], math.sqrt(ratio)) for ratio in ratios[1:]]
    halves = x.new_tensor([[size * height / width * root / 2, size / root / 2] for size, root in shapes])
    cy, cx = torch.meshgrid(*middles, indexing="ij")
    centers = torch.stack([cx, cy], -1).reshape(-1, 1, 2)
    boxes = torch.cat([centers - halves, centers + halves], -1).reshape(1, -1, 4)
    return boxes.clamp(0, 1) if clip else boxes


@operator("_contrib_MultiBoxTarget", many=True, rounded=True)
def multibox_target(anchors: Any, labels: Any, scores: Any, overlap_threshold: float = 0.5,
                    ignore_label: float = -1.0, negative_mining_ratio: float = -1.0,
                    negative_mining_thresh: float = 0.5, minimum_negative_samples: int = 0,
                    variances: Any = (0.1, 0.1, 0.2, 0.2)) -> Any:  # fmt: skip
    dtype = labels.dtype  # MXNet knows float32 alone here, and whether two overlaps are equal hangs on it
    anchors, labels, scores = anchors[0].detach().float(), labels.detach().float(), scores.detach().float()
    real = (labels[:, :, 0] == -1).cumsum(1) == 0  # all objects before the first row of -1
    shared = overlaps(anchors, labels[:, :, 1:5])  # (batch, anchors, objects)
    shared = shared.masked_fill(~real.unsqueeze(1), -1)
    best, match = _first_max(shared, 2)
    positive, match = _pairs(shared, match)
    if overlap_threshold > 0:
        positive = positive | (best > overlap_threshold)
    negative = ~positive
    if negative_mining_ratio > 0:
        negative = negative & (best < negative_mining_thresh)
        wanted = (positive.sum(1) * negative_mining_ratio).long()
        hard = scores.softmax(1)[:, 0].masked_fill(~negative, torch.inf).argsort(stable=True, dim=1).argsort(dim=1)
        negative = negative & (hard < wanted.unsqueeze(1))
    found = labels.gather(1, match.unsqueeze(2).expand(-1, -1, labels.shape[2]))
    some = real.any(1, keepdim=True)  # without objects no anchor has a label
    positive, negative = positive & some, negative & some
    classes = torch.where(negative, 0.0, torch.where(positive, found[..., 0] + 1, ignore_label)).to(dtype)
    mask = positive.unsqueeze(2).expand(-1, -1, 4).to(dtype)
    moves = torch.where(positive.unsqueeze(2), _moves(anchors, found[..., 1:5], variances), 0.0)
    return moves.flatten(1).to(dtype), mask.flatten(1), classes


def _first_max(values: Any, axis: int) -> tuple[Any, Any]:
    """The greatest, and its first place."""
    best = values.amax(axis, keepdim=True)
    places = torch.arange(values.shape[axis], device=values.device)
    first = torch.where(values == best, places, values.shape[axis]).amin(axis)
    return best.squeeze(axis), first


def _pairs(shared: Any, match: Any) -> tuple[Any, Any]:
    """The anchor of each object with the largest overlap, the best pair first."""
    batch, count, objects = shared.shape
    left, images = shared.clone(), torch.arange(batch, device=shared.device)
    positive = torch.zeros(batch, count, dtype=torch.bool, device=shared.device)
    match = match.clone()
    for _ in range(objects):
        best, place = _first_max(left.flatten(1), 1)
        take, anchor, thing = best > 1e-6, place // objects, place % objects
        positive[images, anchor] |= take
        match[images, anchor] = torch.where(take, thing, match[images, anchor])
        left[images, anchor] = -1
        left[images, :, thing] = -1
    return positive, match


def _moves(anchors: Any, boxes: Any, variances: Any) -> Any:
    """The net's targets for boxes, relative to their anchors."""
    size, sides = anchors[:, 2:] - anchors[:, :2], boxes[..., 2:] - boxes[..., :2]
    middle = (boxes[..., 2:] + boxes[..., :2]) * 0.5 - (anchors[:, 2:] + anchors[:, :2]) * 0.5
    return torch.cat([middle / size, (sides / size).log()], -1) / boxes.new_tensor(variances)


@operator("_contrib_MultiBoxDetection")
def multibox_detection(scores: Any, moves: Any, anchors: Any, clip: bool = True, threshold: float = 0.01,
                       background_id: int = 0, nms_threshold: float = 0.5, force_suppress: bool = False,
                       variances: Any = (0.1, 0.1, 0.2, 0.2), nms_topk: int = -1) -> Any:  # fmt: skip
    scores, moves, anchors = scores.detach(), moves.detach(), anchors.detach()  # MXNet has no gradient here
    best, label = scores[:, 1:].max(1)
    label = label.masked_fill(best < threshold, -1)
    size = anchors[..., 2:] - anchors[..., :2]
    moved = moves.reshape(moves.shape[0], -1, 4) * moves.new_tensor(variances)
    center = moved[..., :2] * size + (anchors[..., :2] + anchors[..., 2:]) / 2
    half = moved[..., 2:].exp() * size / 2
    boxes = torch.cat([center - half, center + half], -1)
    boxes = boxes.clamp(0, 1) if clip else boxes
    rows = torch.cat([label.to(boxes.dtype).unsqueeze(-1), best.unsqueeze(-1), boxes], -1)
    return torch.stack([_kept(r, nms_threshold, force_suppress, nms_topk) for r in rows])


def _kept(rows: Any, overlap: float, force: bool, topk: int) -> Any:
    """Detections of one image, the best first; suppressed ones have the class -1, background rows are -1."""
    found = rows[rows[:, 0] >= 0]
    count = len(found)
    if count and 0 < overlap <= 1:
        keep = min(count, topk) if topk > 0 else count
        order = found[:, 1].argsort(descending=True, stable=True)[:keep]
        head = found[order].clone()
        over = (overlaps(head[:, 2:], head[:, 2:]) >= overlap).triu(1)
        for place in range(keep):
            if head[place, 0] >= 0:
                same = over[place] if force else over[place] & (head[:, 0] == head[place, 0])
                head[:, 0] = torch.where(same, torch.full_like(head[:, 0], -1), head[:, 0])
        rest = found[keep:].clone()
        rest[:, 0] = -1
        found = torch.cat([head, rest])
    return torch.cat([found, rows.new_full((len(rows) - count, 6), -1.0)])


@operator("_contrib_DeformableConvolution")
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


@operator("_contrib_ModulatedDeformableConvolution")
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
    """Sampled rows and columns: (batch, deformable groups, taps · height · width), in pixels of the image."""
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
    """Bilinear samples of the image, zero outside it: (batch, groups, channels, places)."""
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
    batch, filters = len(taken), len(weight)
    columns = taken.reshape(batch, groups, -1, math.prod(image))  # of each group: channels · taps
    kernels = weight.reshape(groups, filters // groups, -1)
    found = torch.einsum("gfc,bgcp->bgfp", kernels, columns).reshape(batch, filters, *image)
    return found if bias is None else found + bias.reshape(1, -1, 1, 1)
