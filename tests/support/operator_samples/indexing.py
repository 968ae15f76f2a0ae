"""Drawn cases of ``gluontune.convert.bridge.operators.shaping``."""

from __future__ import annotations

from operator_samples.cases import Draw, Sample


def _take_sample(draw: Draw) -> Sample:
    attrs = {"axis": draw.pick([0, 1, -1]), "mode": draw.pick(["clip", "wrap"])}
    return Sample([("normal", (4, 5)), ("index", draw.shape(1, 2), 6)], attrs)


def _axis(draw: Draw) -> Sample:
    return Sample([("distinct", draw.shape(2, 3))], {"axis": draw.pick([0, 1, -1])}, grads=False)


def _top_sample(draw: Draw) -> Sample:
    axis = draw.pick([1, -1, 0])
    attrs = {"k": draw.int(1, 4 if axis else 3), "axis": axis, "is_ascend": draw.pick([True, False])}
    kind = draw.pick(["indices", "value", "both", "mask"])
    return Sample([("distinct", (3, 5))], {**attrs, "ret_typ": kind}, grads=False)


_seq = lambda d: Sample([("normal", (4, 2, 3)), ("length", (2,), 4)], {"use_sequence_length": True})  # noqa: E731


SAMPLES = {
    "scatter_nd": lambda d: Sample([("normal", (3, 2)), ("given", (1, 3), [[2, 0, 3]])], {"shape": (d.int(4, 5), 2)}),
    "argmax_channel": lambda d: Sample([("distinct", (3, d.int(2, 4)))], {}, grads=False),
    "_npi_where_scalar2": lambda d: Sample(
        [("index", d.shape(), 2)], {"x": 2.0, "y": -1.5}, grads=False, dtype="float32"
    ),
    "take": _take_sample,
    "pick": lambda d: Sample([("normal", (4, 5)), ("index", (4,), 5)], {"axis": 1, "keepdims": d.pick([True, False])}),
    "one_hot": lambda d: Sample(
        [("index", d.shape(1, 2), 4)], {"depth": 4, "on_value": d.pick([1.0, 2.0])}, grads=False
    ),
    "gather_nd": lambda d: Sample([("normal", (3, 4, 2)), ("index", (d.int(1, 2), 5), 3)], {}),
    "batch_take": lambda d: Sample([("normal", (4, 5)), ("integer", (4,), 5)], {}, grads=False),
    "where": lambda d: Sample([("index", (3, 4), 2), ("normal", (3, 4)), ("normal", (3, 4))], {}),
    "_npi_where": lambda d: Sample(
        [("index", d.pick([(3, 4), (2, 1, 4)]), 2), ("normal", (2, 3, 4)), ("normal", (2, 3, 4))], {}
    ),
    "argmax": _axis,
    "argmin": _axis,
    "_npi_argmax": _axis,
    "argsort": _axis,
    "sort": lambda d: Sample(
        [("distinct", d.shape(2, 3))], {"axis": d.pick([0, -1]), "is_ascend": d.pick([True, False])}
    ),
    "topk": _top_sample,
    "SequenceMask": _seq,
    "SequenceLast": _seq,
    "SequenceReverse": _seq,
}
