"""Drawn cases of ``gluontune.convert.bridge.operators.reducing``."""

from __future__ import annotations

from typing import Any

from operator_samples.cases import Draw, Sample


def _reduced(draw: Draw, kind: str = "normal", exclude: bool = True) -> Sample:
    shape = draw.shape(2, 4)
    attrs: dict[str, Any] = {"keepdims": draw.pick([True, False])}
    if draw.int(0, 3):
        attrs["axis"] = draw.pick([0, -1, (0, 1), (len(shape) - 1,)])
        if exclude and draw.int(0, 2) == 0:  # of two axes, both may be left out
            attrs["exclude"] = True
    return Sample([(kind, shape)], attrs)


def _numpy_sample(draw: Draw) -> Sample:
    attrs = {"axis": draw.pick([0, -1, (0, 1)]), "keepdims": draw.pick([True, False])}
    return Sample([("distinct", (2, 3, 2))], attrs)


def _scores(draw: Draw) -> Sample:
    attrs: dict[str, Any] = {"axis": draw.pick([-1, 1, 0])}
    if draw.int(0, 2) == 0:
        attrs["temperature"] = 2.0
    return Sample([("normal", draw.shape(2, 4))], attrs)


_alike = lambda d: Sample([("normal", (4, 3)), ("normal", (4, 3))], {"grad_scale": d.pick([1.0, 0.5])}, True)  # noqa: E731


def _loss_sample(draw: Draw) -> Sample:
    return Sample(
        [("normal", (4, 3))], {"grad_scale": draw.pick([1.0, 0.5]), "normalization": draw.pick(["null", "batch"])}
    )


def _softmax_output(draw: Draw) -> Sample:
    attrs: dict[str, Any] = {
        "grad_scale": draw.pick([1.0, 0.5]),
        "normalization": draw.pick(["null", "batch", "valid"]),
    }
    if draw.int(0, 3) == 0:  # labels are probabilities
        return Sample([("normal", (4, 5)), ("unit", (4, 5))], attrs, True)
    attrs |= {"multi_output": draw.pick([True, False]), "use_ignore": draw.pick([True, False])}
    attrs["ignore_label"] = draw.pick([0, 1, 4])
    shape, places = (
        draw.pick([((4, 5, 3), (4, 3)), ((2, 5, 2, 3), (2, 2, 3))]) if attrs["multi_output"] else ((4, 5), (4,))
    )
    return Sample([("normal", shape), ("index", places, 5)], attrs, True)


def _ctc_sample(draw: Draw) -> Sample:
    last = draw.pick([True, False])
    rows = [[1, 2, -1], [0, -1, -1]] if last else [[1, 2, 0], [3, 0, 0]]
    lengths = draw.pick([True, False])
    more = [("given", (2,), [5, 6]), ("given", (2,), [2, 1])] if lengths else []
    attrs = {"blank_label": "last" if last else "first", "use_data_lengths": lengths, "use_label_lengths": lengths}
    return Sample([("normal", (6, 2, 4)), ("given", (2, 3), rows), *more], attrs, dtype="float32")


SAMPLES = {
    "moments": lambda d: Sample(
        [("normal", (2, 3, 4))], {"axes": d.pick([(0,), (0, 2)]), "keepdims": d.pick([True, False])}
    ),
    **dict.fromkeys(("sum", "mean", "prod", "max", "nansum", "min", "nanprod"), lambda d: _reduced(d, "distinct")),
    **dict.fromkeys(("_np_sum", "_npi_mean", "_np_max", "_np_min", "_np_prod"), _numpy_sample),
    "norm": lambda d: Sample([("normal", d.shape(2, 3))], {"ord": d.pick([1, 2]), "axis": d.pick([0, -1])}),
    "softmax": _scores,
    "log_softmax": _scores,
    "softmin": _scores,
    "SoftmaxActivation": lambda d: d.pick(
        [
            Sample([("normal", (2, 3, 4))], {"mode": "channel"}, dtype="float32"),
            Sample([("normal", (2, 3))], {"mode": "instance"}, dtype="float32"),
        ]
    ),
    "SoftmaxOutput": _softmax_output,
    "LinearRegressionOutput": _alike,
    "LogisticRegressionOutput": _alike,
    "MAERegressionOutput": _alike,
    "make_loss": lambda d: Sample([("normal", d.shape(1, 3))], {}),
    "MakeLoss": _loss_sample,
    "softmax_cross_entropy": lambda d: Sample([("normal", (4, 5)), ("index", (4,), 5)], {}),
    "CTCLoss": _ctc_sample,
}
