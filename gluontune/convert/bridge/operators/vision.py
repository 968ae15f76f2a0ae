"""Operators of detection, segmentation and pose nets: boxes, resizing, regions of interest."""

from __future__ import annotations

from typing import Any

from gluontune.convert.bridge.registry import operator, operators
from gluontune.convert.graph.schemas import resized
from gluontune.core.errors import GluontuneError
from gluontune.runtime import pytorch

torch: Any = pytorch.torch()
_RANKS = 256  # boxes of box_nms that are compared with all others at a time
F = torch.nn.functional


@operator("_contrib_BilinearResize2D")
def bilinear_resize(x: Any, like: Any = None, height: int = 1, width: int = 1, scale_height: float | None = None,
                    scale_width: float | None = None, mode: str = "size",
                    align_corners: bool = True) -> Any:  # fmt: skip
    if mode == "like":
        size = tuple(like.shape[2:])
    elif mode == "size" and not scale_height:
        size = (height, width)
    else:
        size = tuple(resized(n, s, mode) for n, s in zip(x.shape[2:], (scale_height, scale_width)))
    for axis, side in enumerate(size, 2):
        x = x.narrow(axis, 0, 1) if side == 1 else x  # from one pixel MXNet takes the first, not the mean
    if x.dtype != torch.float64:
        return F.interpolate(x, size, mode="bilinear", align_corners=align_corners)
    for axis in (3, 2):
        x = _between(x, axis, size[axis - 2], align_corners)
    return x


def _between(x: Any, axis: int, size: int, align_corners: bool) -> Any:
    """Resize one axis; MXNet computes sample positions in float32 for any dtype."""
    count = x.shape[axis]
    place = torch.arange(size, device=x.device, dtype=torch.float32)
    if align_corners:
        place = place * ((place.new_tensor(count) - 1) / max(1, size - 1))
    else:
        scale = (place.new_tensor(count) / size).double()
        place = ((place.double() + 0.5) * scale - 0.5).clamp(min=0).float()
    low = place.floor().long()
    share = (place - low).to(x.dtype).reshape(-1, *[1] * (x.ndim - axis - 1))
    high = (low + 1).clamp(max=count - 1)
    return x.index_select(axis, low) * (1 - share) + x.index_select(axis, high) * share


@operator("UpSampling")
def up_sampling(
    *arrays: Any, scale: int, sample_type: str, num_filter: int = 0, multi_input_mode: str = "concat"
) -> Any:
    if sample_type == "bilinear":
        x, weight = arrays
        pad = scale // 2  # ceil((scale - 1) / 2)
        return F.conv_transpose2d(x, weight, None, scale, pad, groups=x.shape[1])
    side = arrays[0].shape[2] * scale
    grown = [a.repeat_interleave(side // a.shape[2], 2).repeat_interleave(side // a.shape[2], 3) for a in arrays]
    return torch.stack(grown).sum(0) if multi_input_mode == "sum" else torch.cat(grown, 1)


def corners(boxes: Any, form: str) -> Any:
    """Boxes of (…, 4) as xmin, ymin, xmax, ymax."""
    if form == "corner":
        return boxes
    middle, half = boxes[..., :2], boxes[..., 2:] / 2
    return torch.cat([middle - half, middle + half], -1)


def overlaps(a: Any, b: Any) -> Any:
    """Intersection over union of each of ``a`` (…, N, 4) with each of ``b`` (…, M, 4), corners."""
    low = torch.maximum(a[..., :, None, :2], b[..., None, :, :2])
    high = torch.minimum(a[..., :, None, 2:], b[..., None, :, 2:])
    shared = (high - low).clamp(min=0).prod(-1)
    areas = [(x[..., 2:] - x[..., :2]).clamp(min=0).prod(-1) for x in (a, b)]
    union = areas[0][..., :, None] + areas[1][..., None, :] - shared
    return torch.where(union > 0, shared / union.clamp(min=torch.finfo(union.dtype).tiny), torch.zeros_like(union))


@operator("_contrib_box_iou")
def box_iou(a: Any, b: Any, format: str = "corner") -> Any:
    a, b = corners(a.detach(), format), corners(b.detach(), format)
    found = overlaps(a.reshape(-1, 4), b.reshape(-1, 4))
    return found.reshape(*a.shape[:-1], *b.shape[:-1])


@operator("_contrib_box_decode")
def box_decode(x: Any, anchors: Any, std0: float = 1.0, std1: float = 1.0, std2: float = 1.0, std3: float = 1.0,
               clip: float = -1.0, format: str = "center") -> Any:  # fmt: skip
    x, anchors = x.detach(), anchors.detach()  # MXNet has no gradient here
    middle, size = anchors[..., :2], anchors[..., 2:]
    if format == "corner":
        size = size - middle
        middle = middle + size / 2
    std = x.new_tensor([std0, std1, std2, std3])
    moved = x * std
    grown = moved[..., 2:].clamp(max=clip) if clip > 0 else moved[..., 2:]
    half = grown.exp() * size / 2
    middle = moved[..., :2] * size + middle
    return torch.cat([middle - half, middle + half], -1)


@operator("_contrib_box_nms")
def box_nms(x: Any, overlap_thresh: float = 0.5, valid_thresh: float = 0.0, topk: int = -1, coord_start: int = 2,
            score_index: int = 1, id_index: int = -1, background_id: int = -1, force_suppress: bool = False,
            in_format: str = "corner", out_format: str = "corner") -> Any:  # fmt: skip
    if topk == 0:
        return x.clone()
    rows = x.reshape(-1, *x.shape[-2:])
    kept, order = _survivors(rows.detach(), overlap_thresh, valid_thresh, topk, coord_start, score_index, id_index,
                             background_id, force_suppress, in_format)  # fmt: skip
    found = rows.gather(1, order.unsqueeze(-1).expand(-1, -1, rows.shape[2]))
    if in_format != out_format:
        boxes = found[..., coord_start : coord_start + 4]
        if out_format == "corner":
            boxes = corners(boxes, "center")
        else:
            boxes = torch.cat([(boxes[..., :2] + boxes[..., 2:]) / 2, boxes[..., 2:] - boxes[..., :2]], -1)
        found = torch.cat([found[..., :coord_start], boxes, found[..., coord_start + 4 :]], -1)
    found = torch.where(kept.unsqueeze(-1), found, torch.full_like(found, -1.0))
    return found.reshape(x.shape)


def _survivors(x: Any, overlap: float, least: float, topk: int, coords: int, score: int, identity: int, background: int,
               force: bool, form: str) -> tuple[Any, Any]:  # fmt: skip
    """The filled rows and their sources in ``x``: the best first, without suppressed ones."""
    count = x.shape[1]
    valid = x[..., score] > least
    if identity >= 0:
        valid = valid & (x[..., identity] != background)
    ranked = torch.where(valid, x[..., score], torch.full_like(x[..., score], -torch.inf))
    order = ranked.argsort(dim=1, descending=True, stable=True)
    first = min(count, topk) if topk > 0 else count
    head = order[:, :first]
    rows = x.gather(1, head.unsqueeze(-1).expand(-1, -1, x.shape[2]))
    boxes, kept = corners(rows[..., coords : coords + 4], form), valid.gather(1, head)
    for start in range(0, first, _RANKS):  # in parts: all pairs of thousands of boxes take gigabytes
        over = overlaps(boxes[:, start : start + _RANKS], boxes[:, start:]) > overlap
        if identity >= 0 and not force:
            names = rows[:, start:, identity]
            over = over & (names[:, :_RANKS, None] == names[:, None, :])
        over = over.triu(1)
        for place in range(over.shape[1]):
            kept[:, start:] &= ~(over[:, place] & kept[:, start + place : start + place + 1])
    kept = torch.cat([kept, kept.new_zeros(kept.shape[0], count - first)], 1)
    forward = (~kept).to(torch.uint8).argsort(dim=1, stable=True)
    return kept.gather(1, forward), order.gather(1, forward)


@operator("_contrib_ROIAlign")
def roi_align(x: Any, rois: Any, pooled_size: Any, spatial_scale: float, sample_ratio: int = -1,
              position_sensitive: bool = False, aligned: bool = False) -> Any:  # fmt: skip
    if position_sensitive:
        raise GluontuneError("ROIAlign with position_sensitive is not known to the bridge")
    rows, columns = pooled_size if len(pooled_size) == 2 else (pooled_size[0],) * 2
    if sample_ratio <= 0:  # as many samples as pixels: one region after the other
        sides = ((rois[:, 3:] - rois[:, 1:3]) * spatial_scale).detach().clamp(min=0.0 if aligned else 1.0)
        each = [(max(1, -(-h // rows)), max(1, -(-w // columns))) for w, h in sides.ceil().long().tolist()]
    else:
        each = [(sample_ratio, sample_ratio)]
    groups = [rois] if len(each) == 1 else rois.split(1)
    found = [_aligned(x, part, (rows, columns), spatial_scale, n, aligned) for part, n in zip(groups, each)]
    return torch.cat(found)


def _aligned(x: Any, rois: Any, pooled: tuple[int, int], scale: float, samples: tuple[int, int], aligned: bool) -> Any:
    """Each bin as a weighted sum of pixels from one table, without a copy of the image for each region."""
    rois = rois.detach()  # without gradient in MXNet
    height, width = x.shape[2:]
    start = rois[:, 1:3] * scale - (0.5 if aligned else 0.0)
    size = rois[:, 3:] * scale - (0.5 if aligned else 0.0) - start
    size = size if aligned else size.clamp(min=1.0)
    ways = []
    for axis, side in ((1, 0), (0, 1)):  # y, then x
        count, bins = samples[side], pooled[side]
        steps = (torch.arange(bins * count, device=x.device, dtype=rois.dtype) + 0.5) / count
        places = start[:, axis, None] + steps * size[:, axis, None] / bins
        ways.append([part.unflatten(1, (bins, -1)) for part in _taps(places, x.shape[2 + side], count)])
    (rows, of_rows), (columns, of_columns) = ways
    first = rois[:, 0].long().clamp(min=0)[:, None, None] * (height * width)
    where = (first + rows * width)[:, :, None, :, None] + columns[:, None, :, None, :]
    shares = of_rows[:, :, None, :, None] * of_columns[:, None, :, None, :]
    # A region of image -1 (of another level of gluoncv's pyramids) is zero, as on MXNet's GPUs; its CPU kernel leaves
    # uninitialized memory.
    shares = shares * (rois[:, 0] >= 0)[:, None, None, None, None]
    table = x.permute(0, 2, 3, 1).reshape(-1, x.shape[1])
    weights = shares.flatten(3).flatten(0, 2).to(table.dtype)
    found = F.embedding_bag(where.flatten(3).flatten(0, 2), table, mode="sum", per_sample_weights=weights)
    return found.reshape(-1, *pooled, x.shape[1]).permute(0, 3, 1, 2)


def _taps(places: Any, size: int, count: int) -> tuple[Any, Any]:
    """The two pixels of a row beside each sampled place, and the share of each in its bin: (regions, 2 x places)."""
    inside = (places >= -1) & (places <= size)
    places = places.clamp(0, size - 1)
    low = places.floor()
    share = places - low
    low = low.long()
    pixels = torch.stack([low, (low + 1).clamp(max=size - 1)], 2)
    shares = torch.stack([(1 - share) * inside, share * inside], 2) / count
    return pixels.flatten(1), shares.flatten(1)


@operator("GridGenerator")
def grid_generator(x: Any, transform_type: str, target_shape: Any = (0, 0)) -> Any:
    if transform_type == "affine":
        return F.affine_grid(x.reshape(-1, 2, 3), [len(x), 1, *target_shape], True).movedim(-1, 1)
    unit = torch.tensor([[[1.0, 0, 0], [0, 1, 0]]], dtype=x.dtype, device=x.device)
    size = torch.tensor([n - 1 for n in (x.shape[3], x.shape[2])], dtype=x.dtype, device=x.device)
    return F.affine_grid(unit, [1, 1, *x.shape[2:]], True).movedim(-1, 1) + x * (2 / size).reshape(1, 2, 1, 1)


operators(globals(), {
    "BilinearSampler": lambda x, grid: F.grid_sample(x, grid.movedim(1, -1), align_corners=True),
    "SpatialTransformer": lambda x, loc, target_shape=(0, 0), transform_type="affine", sampler_type="bilinear":
        F.grid_sample(x, grid_generator(loc, "affine", target_shape).movedim(1, -1), align_corners=True),
})  # fmt: skip
