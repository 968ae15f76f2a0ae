"""Drawn cases of ``gluontune.convert.bridge.operators.arithmetic``."""

from __future__ import annotations

from operator_samples.cases import Draw, Sample


def _batch(draw: Draw) -> Sample:
    a, b = draw.pick([True, False]), draw.pick([True, False])
    left, right = (2, *((3, 4) if not a else (4, 3))), (2, *((4, 5) if not b else (5, 4)))
    return Sample([("normal", left), ("normal", right)], {"transpose_a": a, "transpose_b": b})


def _dot(draw: Draw) -> Sample:
    drawn = _batch(draw)
    return Sample([(kind, shape[1:]) for kind, shape in drawn.inputs], drawn.attrs)


def _attended(draw: Draw, *shapes: tuple[int, ...]) -> Sample:
    return Sample([("normal", shape) for shape in shapes], {"heads": 2}, dtype="float32")


def _square(draw: Draw) -> Sample:
    return Sample([("positive definite", (2, 3, 3))], {})


def _by_triangle(draw: Draw) -> Sample:
    attrs = {"transpose": draw.pick([True, False]), "rightside": draw.pick([True, False]), "lower": True,
             "alpha": draw.pick([1.0, 0.5])}  # fmt: skip
    return Sample([("triangle", (2, 3, 3)), ("normal", (2, 3, 3))], attrs)


SAMPLES = {
    "batch_dot": _batch,
    "dot": _dot,
    "_linalg_gemm2": lambda d: Sample([("normal", (2, 3, 4)), ("normal", (2, 4, 5))], {"alpha": d.pick([0.5, 1.0])}),
    "_npi_matmul": lambda d: Sample([("normal", (2, 3, 4)), ("normal", (2, 4, 5))], {}),
    "_np_dot": lambda d: Sample([("normal", (d.int(1, 3), 4)), ("normal", (4, 5))], {}),
    "_contrib_interleaved_matmul_selfatt_qk": lambda d: _attended(d, (d.int(1, 4), 3, 2 * 3 * 4)),
    "_contrib_interleaved_matmul_selfatt_valatt": lambda d: _attended(d, (4, 3, 2 * 3 * 5), (6, 4, 4)),
    "_contrib_interleaved_matmul_encdec_qk": lambda d: _attended(d, (d.int(1, 4), 3, 10), (4, 3, 20)),
    "_contrib_interleaved_matmul_encdec_valatt": lambda d: _attended(d, (4, 3, 20), (6, d.int(1, 3), 4)),
    "_contrib_div_sqrt_dim": lambda d: Sample([("normal", d.shape())], {}),
    "_linalg_gemm": lambda d: Sample(
        [("normal", (2, 3, 4)), ("normal", (2, 4, 5)), ("normal", (2, 3, 5))],
        {"alpha": d.pick([0.5, 1.0]), "beta": 2.0},
    ),
    "_linalg_syrk": lambda d: Sample([("normal", (2, 3, 4))], {"transpose": d.pick([True, False])}),
    "_linalg_sumlogdiag": lambda d: Sample([("positive", (2, 3, 3))], {}),
    "_linalg_extractdiag": lambda d: Sample([("normal", (2, 3, 3))], {"offset": d.int(-1, 1)}),
    "_linalg_makediag": lambda d: Sample([("normal", (2, 3))], {"offset": d.int(-1, 1)}),
    "_linalg_inverse": _square,
    "_linalg_det": _square,
    "_npi_einsum": lambda d: d.pick(
        [
            Sample([("normal", (2, 3)), ("normal", (3, 4))], {"subscripts": "ij,jk->ik", "num_args": "?"}),
            Sample([("normal", (2, 3, 4))], {"subscripts": "bij->bji", "num_args": "?"}),
        ]
    ),
    "_npi_tensordot_int_axes": lambda d: Sample([("normal", (2, 3)), ("normal", (3, 4))], {"axes": 1}),
    "_npi_tensordot": lambda d: Sample(
        [("normal", (2, 3, 4)), ("normal", (4, 3))], {"a_axes_summed": (1, 2), "b_axes_summed": (1, 0)}
    ),
    "_linalg_potrf": _square,
    "_linalg_potri": lambda d: Sample([("triangle", (2, 3, 3))], {}, grads=False),
    "_linalg_trsm": _by_triangle,
    "_linalg_trmm": _by_triangle,
}
