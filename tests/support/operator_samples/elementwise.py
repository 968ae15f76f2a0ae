"""Drawn cases of ``gluontune.convert.bridge.operators.arithmetic``."""

from __future__ import annotations

from dataclasses import replace
from typing import Callable

from operator_samples.cases import Draw, Sample


def _unary(kind: str) -> Callable[[Draw], Sample]:
    return lambda draw: Sample([(kind, draw.shape())], {})


def _whole_pair(draw: Draw) -> Sample:
    return Sample([("whole", (2, 3, 4)), ("whole", draw.pick([(2, 3, 4), (3, 1), (1, 4)]))], {}, grads=False)


def _whole_number(draw: Draw) -> Sample:
    return Sample([("whole", draw.shape())], {"scalar": draw.pick([0.0, 1.0, 0.5])}, grads=False)


def _pair(draw: Draw) -> Sample:
    shape = draw.shape()
    other = tuple(1 if draw.int(0, 2) == 0 else n for n in shape)
    return Sample([("positive", shape), ("positive", other)], {})


def _alike(draw: Draw) -> Sample:
    shape = draw.shape()
    return Sample([("positive", shape), ("positive", shape)], {})


def _number(draw: Draw) -> Sample:
    return Sample([("positive", draw.shape())], {"scalar": draw.pick([0.5, 1.0, 2.0, 3.0, 1.7])})


def _leaky(draw: Draw) -> Sample:
    kind = draw.pick(["leaky", "elu", "selu", "gelu", "prelu"])
    shape = (2, 3, draw.int(1, 4))
    gamma = [("normal", (3,))] if kind == "prelu" else []
    return Sample(
        [("normal", shape), *gamma], {"act_type": kind, "slope": draw.pick([0.1, 0.25])}, grads=kind != "selu"
    )


_ONE = {
    "normal": ["abs", "sign", "floor", "ceil", "trunc", "fix", "rint", "round", "square", "exp", "expm1", "sin", "cos",
               "arctan", "sinh", "cosh", "tanh", "arcsinh", "degrees", "radians", "negative", "erf", "relu", "sigmoid",
               "softsign", "logical_not", "_copy"],
    "positive": ["sqrt", "rsqrt", "cbrt", "rcbrt", "log", "log2", "log10", "log1p", "reciprocal", "gammaln", "gamma"],
    "unit": ["tan", "arcsin", "arccos", "arctanh", "erfinv"],
    "above_one": ["arccosh"],
}  # fmt: skip
_NUMPY = ["sign", "floor", "ceil", "trunc", "square", "sqrt", "exp", "expm1", "log", "log2", "log10", "log1p", "sin",
          "cos", "tan", "tanh", "sinh", "cosh", "arctan", "reciprocal", "negative", "arcsin", "arccos"]  # fmt: skip
_KIND = {name: kind for kind, names in _ONE.items() for name in names}
_COMPARE = ["equal", "not_equal", "greater", "greater_equal", "lesser", "lesser_equal"]
_LOGICAL = ["logical_and", "logical_or", "logical_xor"]
_SIGNS, _MORE = ["add", "sub", "mul", "div"], ["mod", "power", "maximum", "minimum", "hypot"]
_NUMPY_TWO = ["add", "subtract", "multiply", "mod", "power"]
_NUMPY_COMPARE = ["equal", "not_equal", "greater", "greater_equal", "less", "less_equal"]
_TURNED = ["minus", "div", "mod", "power"]

SAMPLES = {
    "_contrib_gradientmultiplier": lambda d: Sample([("normal", d.shape())], {"scalar": d.pick([-0.5, 2.0])}),
    "_contrib_round_ste": _unary("normal"),
    "_contrib_sign_ste": _unary("normal"),
    **{name: _unary(kind) for name, kind in _KIND.items()},
    **{f"_npi_{name}": _unary(_KIND[name]) for name in _NUMPY},
    "_npi_absolute": _unary("normal"),
    "_np_copy": _unary("normal"),
    **{f"broadcast_{name}": _pair for name in (*_SIGNS, *_MORE, *_COMPARE, *_LOGICAL)},
    **{f"elemwise_{name}": _alike for name in _SIGNS},
    **{f"_{name}": _alike for name in (*_MORE, *_COMPARE, *_LOGICAL)},
    **{f"_npi_{name}": _pair for name in _NUMPY_TWO},
    **{f"_npi_{name}": _whole_pair for name in _NUMPY_COMPARE},
    **{f"_{name}_scalar": _number for name in ("plus", "mul", *_TURNED[:2], *_MORE, *_COMPARE, *_LOGICAL)},
    **{f"_r{name}_scalar": _number for name in _TURNED},
    **{
        f"_npi_{name}_scalar": _number
        for name in (*_NUMPY_TWO, "true_divide", "rsubtract", "rtrue_divide", "rpower", "rmod")
    },
    **{f"_npi_{name}_scalar": _whole_number for name in _NUMPY_COMPARE},
    "BlockGrad": _unary("normal"),
    "_grad_add": lambda d: replace(_alike(d), grads=False),
    "_npi_true_divide": _pair,
    "add_n": lambda draw: Sample([("normal", (2, 3))] * draw.int(1, 4), {"num_args": "?"}),
    "clip": lambda d: Sample([("normal", d.shape())], {"a_min": -0.5, "a_max": d.pick([0.0, 0.5])}),
    "smooth_l1": lambda d: Sample([("normal", d.shape())], {"scalar": d.pick([0.5, 1.0, 3.0])}),
    "hard_sigmoid": lambda d: Sample([("normal", d.shape())], {"alpha": d.pick([0.2, 0.5])}),
    "Activation": lambda d: Sample(
        [("normal", d.shape())], {"act_type": d.pick(["relu", "sigmoid", "tanh", "softrelu", "softsign"])}
    ),
    "LeakyReLU": _leaky,
}
