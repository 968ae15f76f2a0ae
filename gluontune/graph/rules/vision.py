"""Detection, segmentation and pose: boxes, regions, resizing."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from gluontune.graph.rules.layers import convolution
from gluontune.graph.shapes import MaybeShape, Shape, merged, rule


def resized(size: int, scale: float | None, mode: str) -> int:
    """One side of an image that BilinearResize2D makes in its modes without a size."""
    if mode == "size":
        return int(size * (scale or 1))
    if mode == "odd_scale":
        return int(size * (scale or 1)) if size % 2 == 0 else int((size - 1) * (scale or 1)) + 1
    _, parity, way = mode.split("_")
    return size if (size % 2 == 0) == (parity == "even") else size + (1 if way == "up" else -1)


@rule("_contrib_BilinearResize2D")
def bilinear_resize(attrs: Mapping[str, Any], shapes: list[MaybeShape]) -> list[MaybeShape]:
    x = shapes[0] or ()
    if attrs["mode"] == "like":
        like = shapes[1]
        return [None if like is None else x[:2] + like[2:]]
    if attrs["mode"] == "size" and not attrs["scale_height"]:
        return [(*x[:2], attrs["height"], attrs["width"])]
    scales = (attrs["scale_height"], attrs["scale_width"])
    return [(*x[:2], *[resized(n, s, attrs["mode"]) for n, s in zip(x[2:], scales)])]


@rule("_contrib_AdaptiveAvgPooling2D")
def adaptive_pooling(attrs: Mapping[str, Any], shapes: list[MaybeShape]) -> list[MaybeShape]:
    size = tuple(attrs["output_size"]) or (1,)
    return [(*(shapes[0] or ())[:2], size[0], size[-1])]


@rule("UpSampling")
def up_sampling(attrs: Mapping[str, Any], shapes: list[MaybeShape]) -> list[MaybeShape]:
    x, scale = shapes[0] or (), attrs["scale"]
    if attrs["sample_type"] == "bilinear":
        kernel = 2 * scale - scale % 2
        shapes[1] = merged(shapes[1], (x[1], 1, kernel, kernel))
        return [(*x[:2], x[2] * scale, x[3] * scale)]
    if any(shape is None for shape in shapes):
        return [None]
    side = x[2] * scale, x[3] * scale
    channels = sum((s or ())[1] for s in shapes) if attrs["multi_input_mode"] == "concat" else x[1]
    return [(x[0], channels, *side)]


@rule("_contrib_box_nms")
def box_nms(attrs: Mapping[str, Any], shapes: list[MaybeShape]) -> list[MaybeShape]:
    return [shapes[0]]


@rule("_contrib_box_decode")
def box_decode(attrs: Mapping[str, Any], shapes: list[MaybeShape]) -> list[MaybeShape]:
    x = shapes[0] or ()
    shapes[1] = merged(shapes[1], (1, *x[1:]))
    return [x]


@rule("_contrib_box_encode", needs=3)
def box_encode(attrs: Mapping[str, Any], shapes: list[MaybeShape]) -> list[MaybeShape]:
    return [shapes[2], shapes[2]]


@rule("_contrib_bipartite_matching")
def bipartite_matching(attrs: Mapping[str, Any], shapes: list[MaybeShape]) -> list[MaybeShape]:
    x = shapes[0] or ()
    return [x[:-1], x[:-2] + x[-1:]]


@rule("_contrib_box_iou", needs=2)
def box_iou(attrs: Mapping[str, Any], shapes: list[MaybeShape]) -> list[MaybeShape]:
    return [(shapes[0] or ())[:-1] + (shapes[1] or ())[:-1]]


def _regions(x: Shape, rois: Shape, size: Any, by_position: bool = False) -> Shape:
    height, width = size[0], size[-1]
    return rois[0], x[1] // (height * width) if by_position else x[1], height, width


@rule("_contrib_ROIAlign", needs=2)
def roi_align(attrs: Mapping[str, Any], shapes: list[MaybeShape]) -> list[MaybeShape]:
    return [_regions(shapes[0] or (), shapes[1] or (), attrs["pooled_size"], attrs["position_sensitive"])]


@rule("ROIPooling", needs=2)
def roi_pooling(attrs: Mapping[str, Any], shapes: list[MaybeShape]) -> list[MaybeShape]:
    return [_regions(shapes[0] or (), shapes[1] or (), attrs["pooled_size"])]


@rule("_contrib_MultiBoxPrior")
def multibox_prior(attrs: Mapping[str, Any], shapes: list[MaybeShape]) -> list[MaybeShape]:
    x = shapes[0] or ()
    each = len(attrs["sizes"]) + len(attrs["ratios"]) - 1
    return [(1, x[2] * x[3] * each, 4)]


@rule("_contrib_MultiBoxTarget", needs=2)
def multibox_target(attrs: Mapping[str, Any], shapes: list[MaybeShape]) -> list[MaybeShape]:
    (_, count, _), batch = shapes[0] or (), (shapes[1] or ())[0]
    return [(batch, 4 * count), (batch, 4 * count), (batch, count)]


@rule("_contrib_MultiBoxDetection", needs=1)
def multibox_detection(attrs: Mapping[str, Any], shapes: list[MaybeShape]) -> list[MaybeShape]:
    batch, _, count = shapes[0] or ()
    shapes[1] = merged(shapes[1], (batch, 4 * count))
    return [(batch, count, 6)]


def _deformed(attrs: Mapping[str, Any], shapes: list[MaybeShape], weight: int) -> list[MaybeShape]:
    """As a convolution; between its image and its weight stand offsets, and perhaps a mask."""
    layer = [shapes[0], *shapes[weight:]]
    found = convolution(attrs, layer)
    shapes[weight:] = layer[1:]
    (image,), groups = found, attrs["num_deformable_group"]
    if image is not None:
        taps = groups * math.prod(attrs["kernel"])
        for place, each in zip(range(1, weight), (2, 1)):
            shapes[place] = merged(shapes[place], (image[0], each * taps, *image[2:]))
    return list(found)


@rule("_contrib_DeformableConvolution")
def deformable(attrs: Mapping[str, Any], shapes: list[MaybeShape]) -> list[MaybeShape]:
    return _deformed(attrs, shapes, 2)


@rule("_contrib_ModulatedDeformableConvolution")
def modulated_deformable(attrs: Mapping[str, Any], shapes: list[MaybeShape]) -> list[MaybeShape]:
    return _deformed(attrs, shapes, 3)
