"""Drawn cases of ``gluontune.convert.bridge.operators.neural``."""

from __future__ import annotations

from typing import Any

from operator_samples.cases import Draw, Sample


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


def _deconv_sample(draw: Draw) -> Sample:
    groups, kernel = draw.pick([1, 2]), (draw.int(2, 4), draw.int(2, 4))
    stride = (draw.int(1, 2), draw.int(1, 2))
    attrs = {
        "kernel": kernel, "num_filter": 2 * groups, "num_group": groups, "no_bias": draw.pick([True, False]),
        "stride": stride, "pad": (draw.int(0, 1), draw.int(0, 1)), "adj": tuple(s - 1 for s in stride),
    }  # fmt: skip
    inputs = [("normal", (2, 2 * groups, draw.int(3, 5), 4)), ("normal", (2 * groups, 2, *kernel))]
    return Sample(inputs if attrs["no_bias"] else [*inputs, ("normal", (2 * groups,))], attrs)


def _dense_sample(draw: Draw) -> Sample:
    shape, flatten, no_bias = draw.shape(2, 4), draw.pick([True, False]), draw.pick([True, False])
    width = 1
    for size in shape[1:] if flatten else shape[-1:]:
        width *= size
    inputs = [("normal", shape), ("normal", (3, width)), *([] if no_bias else [("normal", (3,))])]
    return Sample(inputs, {"num_hidden": 3, "flatten": flatten, "no_bias": no_bias})


def _sample(draw: Draw, sides: int = 0) -> Sample:
    kernel = tuple(draw.int(2, 3) for _ in range(sides or draw.int(1, 2)))
    attrs: dict[str, Any] = {
        "kernel": kernel, "stride": tuple(draw.int(1, 3) for _ in kernel), "pad": tuple(draw.int(0, 1) for _ in kernel),
        "pool_type": draw.pick(["max", "avg", "sum"]), "pooling_convention": draw.pick(["valid", "full"]),
        "count_include_pad": draw.pick([True, False]), "global_pool": draw.int(0, 4) == 0,
    }  # fmt: skip
    return Sample([("distinct", (1, 2, *[draw.int(4, 8) for _ in kernel]))], attrs)


def _old_sample(draw: Draw) -> Sample:
    drawn = _sample(draw, sides=2)
    attrs = {k: v for k, v in drawn.attrs.items() if k != "count_include_pad"}
    return Sample(drawn.inputs, {**attrs, "pad": (0, 0), "stride": (1, 2)})


SAMPLES = {
    "Convolution_v1": lambda d: Sample(
        [("normal", (2, 2, 5, 6)), ("normal", (3, 2, 2, 3)), ("normal", (3,))],
        {"kernel": (2, 3), "num_filter": 3, "stride": (1, d.int(1, 2)), "pad": (d.int(0, 1), 1)},
    ),
    "Convolution": _conv_sample,
    "Deconvolution": _deconv_sample,
    "FullyConnected": _dense_sample,
    "Embedding": lambda d: Sample([("index", (2, 3), 5), ("normal", (5, 4))], {"input_dim": 5, "output_dim": 4}),
    "Dropout": lambda d: Sample([("normal", d.shape())], {"p": 0.0}),
    "Pooling": _sample,
    "_contrib_AdaptiveAvgPooling2D": lambda d: Sample(
        [("normal", (1, 2, d.int(3, 7), d.int(3, 7)))], {"output_size": d.pick([1, 2, 3, (2, 3)])}
    ),
    "Pooling_v1": _old_sample,
}
