"""Drawn cases of ``gluontune.convert.bridge.operators.neural``."""

from __future__ import annotations

from dataclasses import replace

from operator_samples.cases import Draw, Sample


def _bn_sample(draw: Draw) -> Sample:
    shape, axis = (draw.int(2, 3), 3, *[draw.int(1, 4) for _ in range(draw.int(0, 2))]), 1
    attrs = {"eps": draw.pick([1e-3, 1e-5]), "momentum": draw.pick([0.9, 0.5]), "axis": axis,
             "fix_gamma": draw.pick([True, False]), "use_global_stats": draw.pick([False, False, True])}  # fmt: skip
    channel = [("positive", (3,)), ("normal", (3,)), ("normal", (3,)), ("positive", (3,))]
    return Sample([("normal", shape), *channel], attrs, draw.pick([True, False]))


def _old_sample(draw: Draw) -> Sample:
    drawn = _bn_sample(draw)
    return replace(drawn, attrs={k: v for k, v in drawn.attrs.items() if k != "axis"}, dtype="float32")


def _sync_sample(draw: Draw) -> Sample:
    drawn = _old_sample(draw)
    return replace(drawn, attrs={**drawn.attrs, "key": "bn"})


def _relu_sample(draw: Draw) -> Sample:
    drawn = _bn_sample(draw)  # oneDNN's alone, for images
    return replace(drawn, inputs=[("normal", (2, 3, draw.int(2, 4), 4)), *drawn.inputs[1:]], dtype="float32")


def _layer_sample(draw: Draw) -> Sample:
    shape = draw.shape(2, 4)
    axis = draw.pick([-1, 1])
    return Sample(
        [("normal", shape), ("normal", (shape[axis],)), ("normal", (shape[axis],))], {"axis": axis, "eps": 1e-4}
    )


def _instance_sample(draw: Draw) -> Sample:
    inputs = [("normal", (2, 3, draw.int(2, 4), 3)), ("normal", (3,)), ("normal", (3,))]
    return Sample(inputs, {"eps": draw.pick([1e-3, 1e-5])}, dtype="float32")


def _group_sample(draw: Draw) -> Sample:
    groups = draw.pick([1, 2, 4])
    scales = [("normal", (groups,)), ("normal", (groups,))]
    return Sample([("normal", (2, 4, draw.int(1, 3), 3)), *scales], {"num_groups": groups})


SAMPLES = {
    "BatchNorm_v1": _old_sample,
    "BatchNorm": _bn_sample,
    "_contrib_BatchNormWithReLU": _relu_sample,
    "_contrib_SyncBatchNorm": lambda d: _sync_sample(d),
    "LayerNorm": _layer_sample,
    "InstanceNorm": _instance_sample,
    "GroupNorm": _group_sample,
    "L2Normalization": lambda d: Sample(
        [("normal", d.shape(3, 4))], {"mode": d.pick(["instance", "channel", "spatial"]), "eps": 1e-5}
    ),
    "LRN": lambda d: Sample(
        [("normal", (2, 6, 3, 3))], {"nsize": d.pick([3, 5]), "alpha": 1e-2, "knorm": 2.0}, dtype="float32"
    ),
}
