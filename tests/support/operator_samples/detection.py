"""Drawn cases of ``gluontune.convert.bridge.operators.detection``."""

from __future__ import annotations

import math
from typing import Any

from operator_samples.cases import Draw, Sample


def _pooled_sample(draw: Draw) -> Sample:
    attrs = {"pooled_size": draw.pick([(2, 2), (3, 2)]), "spatial_scale": draw.pick([1.0, 0.5])}
    return Sample([("distinct", (2, 3, 6, 7)), ("rois", (draw.int(1, 3), 5), 2, 8)], attrs)


def _prior_sample(draw: Draw) -> Sample:
    attrs = {"sizes": draw.pick([(0.5,), (0.4, 0.2)]), "ratios": draw.pick([(1.0,), (1.0, 2.0, 0.5)]),
             "clip": draw.pick([True, False]), "offsets": draw.pick([(0.5, 0.5), (0.3, 0.6)]),
             "steps": draw.pick([(-1.0, -1.0), (0.3, 0.2)])}  # fmt: skip
    return Sample([("normal", (1, 2, draw.int(1, 4), draw.int(1, 4)))], attrs, grads=False, dtype="float32")


def _target_sample(draw: Draw) -> Sample:
    attrs = {"overlap_threshold": draw.pick([0.5, 0.2, 0.05]), "ignore_label": draw.pick([-1.0, 5.0]),
             "negative_mining_ratio": draw.pick([-1.0, 0.5, 1.0]), "negative_mining_thresh": 1.0,
             "variances": draw.pick([(0.1, 0.1, 0.2, 0.2), (1.0, 1.0, 1.0, 1.0)])}  # fmt: skip
    labels = ("objects", (3, draw.int(1, 4), 5))
    return Sample([("boxes", (1, 12, 4)), labels, ("normal", (3, 3, 12))], attrs, dtype="float32")


def _detection_sample(draw: Draw) -> Sample:
    attrs = {"threshold": draw.pick([0.01, 0.5]), "nms_threshold": draw.pick([0.2, 0.5]),
             "force_suppress": draw.pick([True, False]), "nms_topk": draw.pick([-1, 3]),
             "clip": draw.pick([True, False])}  # fmt: skip
    boxes = ("boxes", (1, 6, 4))
    return Sample([("distinct", (2, 3, 6)), ("unit", (2, 24)), boxes], attrs, dtype="float32")


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


SAMPLES = {
    "ROIPooling": _pooled_sample,
    "_contrib_MultiBoxPrior": _prior_sample,
    "_contrib_MultiBoxTarget": _target_sample,
    "_contrib_MultiBoxDetection": _detection_sample,
    "_contrib_DeformableConvolution": lambda draw: _drawn(draw, masked=False),
    "_contrib_ModulatedDeformableConvolution": lambda draw: _drawn(draw, masked=True),
}
