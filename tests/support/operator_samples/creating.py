"""Drawn cases of ``gluontune.convert.bridge.operators.creating``."""

from __future__ import annotations

from typing import Any

from operator_samples.cases import Sample


def _one(draw: Any) -> Sample:
    return Sample([("normal", draw.shape())], {}, grads=False)


def _cast_sample(draw: Any) -> Sample:
    return Sample([("whole", draw.shape())], {"dtype": draw.pick(["float64", "float32"])})


def _amp_sample(draw: Any) -> Sample:
    return Sample([("whole", draw.shape())], {"dtype": "float32"}, dtype="float32")


def _multicast_sample(draw: Any) -> Sample:
    attrs = {"num_outputs": 2, "cast_narrow": draw.pick([True, False])}
    return Sample([("whole", (2, 3)), ("whole", draw.shape())], attrs, dtype="float32")


SAMPLES = {
    **dict.fromkeys(
        ("_zeros", "_ones", "_npi_zeros", "_npi_ones"),
        lambda d: Sample([], {"shape": d.shape(), "dtype": "float32"}, grads=False),
    ),
    "zeros_like": _one,
    "ones_like": _one,
    "_npi_full_like": lambda d: Sample([("normal", d.shape())], {"fill_value": 0.7}, grads=False),
    "Cast": _cast_sample,
    "amp_cast": _amp_sample,
    "amp_multicast": _multicast_sample,
    "shape_array": _one,
    "size_array": _one,
    "_full": lambda d: Sample([], {"shape": d.shape(), "value": 0.7, "dtype": "float32"}, grads=False, dtype="float32"),
    "_arange": lambda d: Sample(
        [],
        {"start": d.pick([0.0, 1.0]), "stop": d.pick([3.0, 4.5]), "step": d.pick([1.0, 0.5]), "dtype": "float32"},
        grads=False,
    ),
    "_npi_arange": lambda d: Sample(
        [],
        {"start": d.pick([0.0, 1.0]), "stop": d.pick([3.0, 4.5]), "step": d.pick([1.0, 0.5]), "dtype": "float32"},
        grads=False,
    ),
    "_contrib_arange_like": lambda d: Sample([("normal", d.shape(2, 3))], {"axis": d.pick([0, 1])}, grads=False),
}
