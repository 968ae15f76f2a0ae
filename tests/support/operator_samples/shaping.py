"""Drawn cases of ``gluontune.convert.bridge.operators.shaping``."""

from __future__ import annotations

from typing import Any

from operator_samples.cases import Draw, Sample


def _reshape_sample(draw: Draw) -> Sample:
    shape = (2, draw.int(1, 3), 4)
    codes = draw.pick(
        [(0, -1), (-1,), (-3, 0), (0, -2), (-2,), (0, 0, -4, 2, -1), (-1, 4), (0, -3), (-4, 1, 2, -2), (-2, 2, 2, -4)]
    )
    turned = codes[-1] == -4
    return Sample(
        [("normal", shape)],
        {"shape": codes, "reverse": turned or draw.pick([False, False, codes in ((0, -1), (-1, 4))])},
    )


def _npx_reshape_sample(draw: Draw) -> Sample:
    codes = [(-2, -1), (-1,), (-5, -2, -2), (-2, -3, -4), (-4,), (-2, -2, -2, -6, 2, -1), (-2, -3, -6, -1, 2, 4)]
    return Sample([("normal", (3, 1, 2, 4))], {"newshape": draw.pick(codes)})


def _transpose_sample(draw: Draw) -> Sample:
    return Sample([("normal", (2, 3, 4))], {"axes": draw.pick([(), (0, 2, 1), (2, 0, 1), (1, 0, 2)])})


def _slice_sample(draw: Draw) -> Sample:
    begin, end = (
        (draw.pick([None, 0, 1, -3]), draw.pick([None, 0, 1])),
        (draw.pick([None, 3, -1]), draw.pick([None, 4])),
    )
    return Sample([("normal", (4, 5, 2))], {"begin": begin, "end": end, "step": draw.pick([(), (1, 2)])})


def _split_sample(draw: Draw) -> Sample:
    how: dict[str, Any] = {"indices": (), "sections": 2} if draw.int(0, 1) else {"indices": (0, 1, 3)}
    return Sample([("normal", (2, 4, 4))], {**how, "axis": draw.pick([1, 2])})


def _joined(draw: Draw) -> Sample:
    return Sample(
        [("normal", (2, n + 1)) for n in range(draw.int(1, 3))], {"axis": draw.pick([1, -1]), "num_args": "?"}
    )


def _np_pad_sample(draw: Draw) -> Sample:
    mode = draw.pick(["constant", "edge", "reflect", "symmetric", "maximum", "minimum"])
    grads = mode == "constant"  # MXNet lacks the other gradients
    attrs = {"mode": mode, "pad_width": ((0, 0), (draw.int(0, 2), 1), (2, draw.int(0, 2)))}
    more = {"constant_value": draw.pick([0.0, 0.5])} if mode == "constant" else {}
    return Sample([("normal", (2, 3, 4))], {**attrs, **more}, grads=grads)


def _blocks(draw: Draw, shape: tuple[int, ...]) -> Sample:
    return Sample([("normal", shape)], {"block_size": 2})


SAMPLES = {
    "Crop": lambda d: d.pick(
        [
            Sample(
                [("normal", (1, 2, 5, 6)), ("normal", (1, 1, 3, 4))],
                {"num_args": 2, "center_crop": True},
                dtype="float32",
            ),
            Sample(
                [("normal", (1, 2, 5, 6)), ("normal", (1, 1, 3, 4))], {"num_args": 2, "offset": (1, 2)}, dtype="float32"
            ),
            Sample([("normal", (1, 2, 5, 6))], {"num_args": 1, "offset": (2, 0), "h_w": (2, 5)}, dtype="float32"),
        ]
    ),
    "im2col": lambda d: Sample(
        [("normal", (2, 2, 5, 6))],
        {"kernel": (2, 3), "stride": (d.int(1, 2), 1), "pad": (0, d.int(0, 1)), "dilate": (d.int(1, 2), 1)},
    ),
    "col2im": lambda d: Sample([("normal", (2, 2 * 6, 4 * 4))], {"output_size": (5, 6), "kernel": (2, 3)}),
    "Reshape": _reshape_sample,
    "_npx_reshape": _npx_reshape_sample,
    "_np_reshape": lambda d: Sample([("normal", (2, 6))], {"newshape": d.pick([(3, 4), (-1, 2), (12,)])}),
    "reshape_like": lambda d: Sample([("normal", (2, 6)), ("normal", (3, 4))], {}),
    "Flatten": lambda d: Sample([("normal", d.shape(2, 4))], {}),
    "transpose": _transpose_sample,
    "_np_transpose": lambda d: Sample([("normal", (2, 3, 4))], {"axes": d.pick([(0, 2, 1), (2, 0, 1)])}),
    "SwapAxis": lambda d: Sample([("normal", (2, 3, 4))], {"dim1": d.int(0, 2), "dim2": d.int(0, 2)}),
    "expand_dims": lambda d: Sample([("normal", (2, 3))], {"axis": d.int(-3, 2)}),
    "squeeze": lambda d: Sample([("normal", (2, 1, 3, 1))], {"axis": d.pick([None, (1,), (1, 3), (-1,)])}),
    "_np_squeeze": lambda d: Sample([("normal", (2, 1, 3, 1))], {"axis": d.pick([None, (1,), (1, 3), (-1,)])}),
    "slice": _slice_sample,
    "slice_axis": lambda d: Sample(
        [("normal", (4, 5))], {"axis": d.pick([0, -1]), "begin": d.int(0, 2), "end": d.pick([None, 4, -1])}
    ),
    "slice_like": lambda d: Sample(
        [("normal", (4, 5)), ("normal", (2, 3))], {"axes": d.pick([(), (0,), (-1,), (0, 1)])}
    ),
    "SliceChannel": lambda d: Sample(
        [("normal", (2, 4, 4))], {"num_outputs": d.pick([2, 4]), "axis": d.pick([1, 2, -1]), "squeeze_axis": False}
    ),
    "_split_v2": _split_sample,
    "Concat": lambda d: Sample([("normal", (2, n + 1)) for n in range(d.int(1, 3))], {"dim": 1, "num_args": "?"}),
    "_npi_concatenate": _joined,
    "stack": lambda d: Sample([("normal", (2, 3))] * d.int(1, 3), {"axis": d.int(-1, 2), "num_args": "?"}),
    "_npi_stack": lambda d: Sample([("normal", (2, 3))] * d.int(1, 3), {"axis": d.int(-1, 2), "num_args": "?"}),
    "tile": lambda d: Sample([("normal", (2, 3))], {"reps": d.pick([(2,), (2, 1), (1, 2, 2)])}),
    "repeat": lambda d: Sample([("normal", (2, 3))], {"repeats": d.int(1, 3), "axis": d.pick([None, 0, -1])}),
    "reverse": lambda d: Sample([("normal", (2, 3))], {"axis": d.pick([(0,), (1,), (0, 1)])}),
    "broadcast_axis": lambda d: Sample([("normal", (1, 3, 1))], {"axis": d.pick([(0,), (2,)]), "size": (4,)}),
    "broadcast_to": lambda d: Sample([("normal", (1, 3))], {"shape": (d.int(1, 4), 3)}),
    "_npi_broadcast_to": lambda d: Sample([("normal", (1, 3))], {"shape": (d.int(1, 4), 3)}),
    "broadcast_like": lambda d: Sample([("normal", (1, 3)), ("normal", (4, 3))], {}),
    "Pad": lambda d: Sample(
        [("normal", (1, 2, 4, 4))],
        {"mode": d.pick(["constant", "edge", "reflect"]), "pad_width": (0, 0, 0, 0, 1, 2, 2, 1)},
    ),
    "_npi_pad": _np_pad_sample,
    "depth_to_space": lambda d: _blocks(d, (1, 4 * d.int(1, 2), 2, 3)),
    "space_to_depth": lambda d: _blocks(d, (1, d.int(1, 2), 2, 4)),
}
