"""Drawn cases of ``gluontune.convert.bridge.operators.reducing``."""

from __future__ import annotations

from operator_samples.cases import Draw, Sample


def _one(draw: Draw) -> Sample:
    return Sample([("normal", draw.shape(2, 3))], {})


def _two(draw: Draw) -> Sample:
    shape = draw.shape()
    return Sample([("positive", shape), ("positive", shape)], {})


def _some_sample(draw: Draw) -> Sample:
    attrs = {"axis": draw.pick([0, -1, (0, 1)]), "keepdims": draw.pick([True, False])}
    return Sample([("index", (2, 3, 2), 2)], attrs, grads=False)


def _moment_sample(draw: Draw) -> Sample:
    attrs = {"axis": draw.pick([0, -1, (0, 1)]), "ddof": draw.int(0, 1), "keepdims": draw.pick([True, False])}
    return Sample([("normal", (3, 4))], attrs, grads=False)


def _norm_sample(draw: Draw) -> Sample:
    axis, flag = draw.pick([((1,), 1), ((2,), 1), ((0, 2), 1), ((1, 2), 2), (None, -2)])
    return Sample([("normal", (2, 3, 4))], {"ord": 2, "flag": flag, "axis": axis, "keepdims": draw.pick([True, False])})


def _joined(draw: Draw) -> Sample:
    return Sample([("normal", (2, 3)), ("normal", (2, 3))], {"num_args": 2})


def _chosen(draw: Draw) -> Sample:
    """MXNet returns the other side's gradient (``references.FAULTS``)."""
    shape = draw.pick([(3, 4), (2, 3, 4)])
    return Sample([("index", (3, 4), 2), ("normal", shape)], {"scalar": draw.pick([0.0, -1e4, 0.7])}, grads=False)


def _linspace_sample(draw: Draw) -> Sample:
    attrs = {"start": draw.pick([0.0, -1.0]), "stop": 2.0, "num": draw.int(1, 5), "dtype": "float32"}
    return Sample([], {**attrs, "endpoint": draw.pick([True, False])}, grads=False)


SAMPLES = {
    "_npi_arccosh": lambda d: Sample([("above_one", d.shape())], {}),
    **dict.fromkeys(
        ("_npx_relu", "_npx_sigmoid", "_npi_arcsinh", "_npi_degrees", "_npi_radians", "_npi_fix"),
        lambda d: Sample([("normal", d.shape())], {}),
    ),
    "_npi_arctanh": lambda d: Sample([("unit", d.shape())], {}),
    **dict.fromkeys(
        ("_npi_logical_not", "_npi_isnan", "_npi_isinf", "_npi_isfinite"),
        lambda d: Sample([("whole", d.shape())], {}, grads=False),
    ),
    "_npi_arctan2": _two,
    "_npi_hypot": _two,
    "_npi_cbrt": lambda d: Sample([("positive", d.shape())], {}),
    "_npi_rint": _one,
    "_npi_around": lambda d: Sample([("normal", d.shape())], {"decimals": d.int(0, 2)}, grads=False),
    "_np_any": _some_sample,
    "_np_all": _some_sample,
    "_npi_var": _moment_sample,
    "_npi_std": _moment_sample,
    "_npi_norm": _norm_sample,
    "_npi_argmin": lambda d: Sample([("distinct", d.shape(2, 3))], {"axis": d.pick([0, 1, -1])}, grads=False),
    "_np_cumsum": lambda d: Sample([("normal", (3, 4))], {"axis": d.pick([None, 0, 1])}),
    "_np_moveaxis": lambda d: Sample([("normal", (2, 3, 4))], {"source": (0,), "destination": (d.int(-2, 2),)}),
    "_np_roll": lambda d: Sample([("normal", (3, 4))], {"shift": (d.int(-2, 2),), "axis": (d.int(0, 1),)}),
    "_npi_flip": lambda d: Sample([("normal", (3, 4))], {"axis": (d.int(0, 1),)}),
    "_npi_tril": lambda d: Sample([("normal", (3, 4))], {"k": d.int(-1, 1)}),
    "_np_trace": lambda d: Sample([("normal", (3, 4, 2))], {"offset": d.int(-1, 1)}),
    "diag": lambda d: Sample([("normal", d.pick([(3,), (3, 4)]))], {"k": d.int(-1, 1)}),
    "_np_diag": lambda d: Sample([("normal", d.pick([(3,), (3, 4)]))], {"k": d.int(-1, 1)}),
    "_np_diagonal": lambda d: Sample([("normal", (3, 4, 2))], {"offset": d.int(-1, 1)}),
    "_npi_diff": lambda d: Sample([("normal", (3, 4))], {"n": d.int(1, 2), "axis": d.pick([-1, 0])}),
    "_npi_vstack": _joined,
    "_npi_hstack": _joined,
    "_npi_dstack": _joined,
    "_npi_column_stack": _joined,
    "_npi_hsplit": lambda d: Sample([("normal", (2, 4, 3))], {"indices": (), "sections": 2}),
    "_npi_where_lscalar": _chosen,
    "_npi_where_rscalar": _chosen,
    "_npi_nan_to_num": lambda d: Sample([("normal", d.shape())], {"nan": 1.5}),
    "_npi_eye": lambda d: Sample([], {"N": 3, "M": d.pick([None, 4]), "k": d.int(-1, 1)}, grads=False),
    "_npi_identity": lambda d: Sample([], {"shape": (3, 3)}, grads=False),
    "_linspace": _linspace_sample,
}
