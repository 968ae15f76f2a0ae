"""Drawn cases of ``gluontune.convert.bridge.operators.vision``."""

from __future__ import annotations

from typing import Any

from operator_samples.cases import Draw, Sample


def _resize_sample(draw: Draw) -> Sample:
    shape = (1, 2, draw.int(2, 5), draw.int(2, 5))
    corners = draw.pick([True, False])
    how: dict[str, Any] = draw.pick([
        {"height": 7, "width": 4}, {"scale_height": 2.0, "scale_width": 3.0, "mode": "odd_scale"},
        {"scale_height": 2.0, "scale_width": 1.5}, {"mode": "to_even_up"}, {"mode": "to_odd_down"}])  # fmt: skip
    return Sample([("normal", shape)], {**how, "align_corners": corners})


def _up_sample(draw: Draw) -> Sample:
    if draw.int(0, 1):
        inputs = [("normal", (1, 2, 4, 4)), ("normal", (1, 2, 2, 2))][: draw.int(1, 2)]
        return Sample(inputs, {"scale": 2, "sample_type": "nearest", "num_args": "?"})
    return Sample([("normal", (1, 2, 3, 4)), ("normal", (2, 1, 4, 4))], {
        "scale": 2, "sample_type": "bilinear", "num_filter": 2, "num_args": 2})  # fmt: skip


def _decode_sample(draw: Draw) -> Sample:
    how = {"clip": draw.pick([-1.0, 0.1]), "format": draw.pick(["center", "corner"])}
    return Sample([("normal", (2, 3, 4)), ("boxes", (1, 3, 4))], {"std0": 0.1, "std2": 0.2, **how})


def _nms_sample(draw: Draw) -> Sample:
    attrs = {"overlap_thresh": draw.pick([0.1, 0.5]), "valid_thresh": draw.pick([0.0, 0.3]), "coord_start": 2,
             "topk": draw.pick([-1, 0, 3]), "score_index": 1, "id_index": draw.pick([-1, 0]),
             "force_suppress": draw.pick([True, False]), "background_id": draw.pick([-1, 0]),
             "out_format": draw.pick(["corner", "center"])}  # fmt: skip
    # MXNet's gradient ignores the conversion of formats
    return Sample(
        [("detections", draw.pick([(6, 6), (2, 7, 6), (2, 300, 6)]))], attrs, grads=attrs["out_format"] == "corner"
    )


def _roi_sample(draw: Draw) -> Sample:
    attrs = {"pooled_size": draw.pick([(2, 2), (3, 2)]), "spatial_scale": draw.pick([1.0, 0.5]),
             "sample_ratio": draw.pick([1, 2]), "aligned": draw.pick([True, False])}  # fmt: skip
    return Sample([("normal", (2, 3, 6, 7)), ("rois", (draw.int(1, 3), 5), 2, 8)], attrs)


SAMPLES = {
    "GridGenerator": lambda d: d.pick(
        [
            Sample([("normal", (2, 6))], {"transform_type": "affine", "target_shape": (3, 4)}, dtype="float32"),
            Sample([("normal", (2, 2, 3, 4))], {"transform_type": "warp"}, dtype="float32"),
        ]
    ),
    "BilinearSampler": lambda d: Sample([("normal", (2, 3, 4, 5)), ("unit", (2, 2, 3, d.int(2, 4)))], {}),
    "SpatialTransformer": lambda d: Sample(
        [("normal", (2, 3, 4, 5)), ("given", (2, 6), [[0.5, 0.1, 0.05, -0.1, 0.6, 0.1], [0.4, 0, 0, 0, 0.3, 0.2]])],
        {"transform_type": "affine", "sampler_type": "bilinear", "target_shape": (3, d.int(2, 5))},
    ),
    "_contrib_BilinearResize2D": _resize_sample,
    "UpSampling": _up_sample,
    "_eye": lambda d: Sample([], {"N": 3, "M": d.int(0, 4), "k": d.int(-1, 1)}, grads=False),
    "_contrib_box_iou": lambda d: Sample([("boxes", (3, 4)), ("boxes", (d.int(1, 4), 4))], {"format": "corner"}),
    "_contrib_box_decode": _decode_sample,
    "_contrib_box_nms": _nms_sample,
    "_contrib_ROIAlign": _roi_sample,
}
