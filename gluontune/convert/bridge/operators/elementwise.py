"""Operators of one or two arrays, element by element, with broadcasting."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any, Callable

from gluontune.convert.bridge.registry import Draw, Sample, operator
from gluontune.runtime import pytorch

torch: Any = pytorch.torch()
F = torch.nn.functional


def _unary(kind: str) -> Callable[[Draw], Sample]:
    return lambda draw: Sample([(kind, draw.shape())], {})


def _rint(x: Any) -> Any:
    low, high = x.floor(), x.ceil()
    return torch.where(x - low <= high - x, low, high)


def _cast_back(run: Callable[[Any], Any]) -> Callable[[Any], Any]:
    def zero_or_one(x: Any) -> Any:
        return run(x).to(x.dtype)

    return zero_or_one


# name: (function, its domain)
_ONE: dict[str, tuple[Callable[[Any], Any], str]] = {
    "abs": (torch.abs, "normal"), "sign": (torch.sign, "normal"), "floor": (torch.floor, "normal"),
    "ceil": (torch.ceil, "normal"), "trunc": (torch.trunc, "normal"), "fix": (torch.trunc, "normal"),
    "rint": (_rint, "normal"), "round": (lambda x: x.sign() * (x.abs() + 0.5).floor(), "normal"),
    "square": (torch.square, "normal"), "sqrt": (torch.sqrt, "positive"), "rsqrt": (torch.rsqrt, "positive"),
    "cbrt": (lambda x: x.sign() * x.abs().pow(1 / 3), "positive"),
    "rcbrt": (lambda x: x.sign() / x.abs().pow(1 / 3), "positive"),
    "exp": (torch.exp, "normal"), "expm1": (torch.expm1, "normal"), "log": (torch.log, "positive"),
    "log2": (torch.log2, "positive"), "log10": (torch.log10, "positive"), "log1p": (torch.log1p, "positive"),
    "sin": (torch.sin, "normal"), "cos": (torch.cos, "normal"), "tan": (torch.tan, "unit"),
    "arcsin": (torch.arcsin, "unit"), "arccos": (torch.arccos, "unit"), "arctan": (torch.arctan, "normal"),
    "sinh": (torch.sinh, "normal"), "cosh": (torch.cosh, "normal"), "tanh": (torch.tanh, "normal"),
    "arcsinh": (torch.arcsinh, "normal"), "arctanh": (torch.arctanh, "unit"),
    "arccosh": (lambda x: torch.arccosh(x), "above_one"),
    "degrees": (torch.rad2deg, "normal"), "radians": (torch.deg2rad, "normal"),
    "reciprocal": (torch.reciprocal, "positive"), "negative": (torch.neg, "normal"),
    "erf": (torch.erf, "normal"), "erfinv": (torch.erfinv, "unit"), "gammaln": (torch.lgamma, "positive"),
    "gamma": (lambda x: torch.lgamma(x).exp(), "positive"),
    "relu": (torch.relu, "normal"), "sigmoid": (torch.sigmoid, "normal"), "softsign": (F.softsign, "normal"),
    "logical_not": (_cast_back(torch.logical_not), "normal"),
    "_copy": (lambda x: x, "normal"),
}  # fmt: skip
_NUMPY_ONE = {
    "_npi_absolute": "abs", "_npi_sign": "sign", "_npi_floor": "floor", "_npi_ceil": "ceil", "_npi_trunc": "trunc",
    "_npi_square": "square", "_npi_sqrt": "sqrt", "_npi_exp": "exp", "_npi_expm1": "expm1", "_npi_log": "log",
    "_npi_log2": "log2", "_npi_log10": "log10", "_npi_log1p": "log1p", "_npi_sin": "sin", "_npi_cos": "cos",
    "_npi_tan": "tan", "_npi_tanh": "tanh", "_npi_sinh": "sinh", "_npi_cosh": "cosh", "_npi_arctan": "arctan",
    "_npi_reciprocal": "reciprocal", "_npi_negative": "negative", "_npi_arcsin": "arcsin", "_npi_arccos": "arccos",
    "_np_copy": "_copy",
}  # fmt: skip

_ROUNDED = ("degrees", "radians", "erf", "erfinv", "gamma", "gammaln")
for _name, (_run, _kind) in _ONE.items():
    operator(_name, sample=_unary(_kind), rounded=_name in _ROUNDED)(_run)
for _name, _same in _NUMPY_ONE.items():
    operator(_name, sample=_unary(_ONE[_same][1]))(_ONE[_same][0])


@operator("BlockGrad", sample=_unary("normal"))
def block_grad(x: Any) -> Any:
    return x.detach()


def _maximum(a: Any, b: Any) -> Any:
    return torch.where(a >= b, a, b)  # of two equal ones the first has the whole gradient


def _minimum(a: Any, b: Any) -> Any:
    return torch.where(a <= b, a, b)


def _mod(a: Any, b: Any) -> Any:
    zero = b == 0
    return torch.where(zero, torch.zeros_like(a), torch.remainder(a, torch.where(zero, torch.ones_like(b), b)))


def _whole_pair(draw: Draw) -> Sample:
    return Sample([("whole", (2, 3, 4)), ("whole", draw.pick([(2, 3, 4), (3, 1), (1, 4)]))], {}, grads=False)


def _whole_number(draw: Draw) -> Sample:
    return Sample([("whole", draw.shape())], {"scalar": draw.pick([0.0, 1.0, 0.5])}, grads=False)


def _compare(run: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    def zero_or_one(a: Any, b: Any) -> Any:
        return run(a, b).to(a.dtype)

    return zero_or_one


def _divide(a: Any, b: Any) -> Any:
    return (a / b).to(a.dtype) if not a.is_floating_point() else a / b


_COMPARE: dict[str, Callable[[Any, Any], Any]] = {
    "equal": torch.eq, "not_equal": torch.ne, "greater": torch.gt, "greater_equal": torch.ge,
    "lesser": torch.lt, "lesser_equal": torch.le, "logical_and": torch.logical_and, "logical_or": torch.logical_or,
    "logical_xor": torch.logical_xor,
}  # fmt: skip
_TWO: dict[str, Callable[[Any, Any], Any]] = {
    "add": torch.add, "sub": torch.sub, "mul": torch.mul, "div": _divide, "mod": _mod, "power": torch.pow,
    "maximum": _maximum, "minimum": _minimum, "hypot": torch.hypot,
}  # fmt: skip


def _pair(draw: Draw) -> Sample:
    shape = draw.shape()
    other = tuple(1 if draw.int(0, 2) == 0 else n for n in shape)
    return Sample([("positive", shape), ("positive", other)], {})


def _alike(draw: Draw) -> Sample:
    shape = draw.shape()
    return Sample([("positive", shape), ("positive", shape)], {})


for _name, _two in _TWO.items():
    operator(f"broadcast_{_name}", sample=_pair)(_two)
for _name, _two in _COMPARE.items():
    operator(f"broadcast_{_name}", sample=_pair)(_compare(_two))
    operator(f"_{_name}", sample=_alike)(_compare(_two))
for _name in ("add", "sub", "mul", "div"):
    operator(f"elemwise_{_name}", sample=_alike)(_TWO[_name])
for _name in ("mod", "power", "maximum", "minimum", "hypot"):
    operator(f"_{_name}", sample=_alike)(_TWO[_name])
operator("_grad_add", sample=lambda d: replace(_alike(d), grads=False))(torch.add)
for _name, _same in {"_npi_add": "add", "_npi_subtract": "sub", "_npi_multiply": "mul", "_npi_mod": "mod",
                     "_npi_power": "power"}.items():  # fmt: skip
    operator(_name, sample=_pair)(_TWO[_same])
operator("_npi_true_divide", sample=_pair)(torch.div)
for _name in ("equal", "not_equal", "greater", "greater_equal"):
    operator(f"_npi_{_name}", sample=_whole_pair)(_COMPARE[_name])
operator("_npi_less", sample=_whole_pair)(torch.lt)
operator("_npi_less_equal", sample=_whole_pair)(torch.le)


def _number(draw: Draw) -> Sample:
    return Sample([("positive", draw.shape())], {"scalar": draw.pick([0.5, 1.0, 2.0, 3.0, 1.7])})


def _with_scalar(run: Callable[[Any, float], Any], keep: bool = True) -> Callable[..., Any]:
    def scalar_form(x: Any, scalar: float) -> Any:
        if not x.is_floating_point() and float(scalar).is_integer():
            scalar = int(scalar)
        found = run(x, scalar)
        return found.to(x.dtype) if keep else found

    return scalar_form


def _full(scalar: Any, like: Any) -> Any:
    return torch.full_like(like, scalar)


_SCALAR: dict[str, Callable[[Any, Any], Any]] = {
    "plus": lambda x, s: x + s, "minus": lambda x, s: x - s, "rminus": lambda x, s: s - x,
    "mul": lambda x, s: x * s, "div": lambda x, s: x / s, "rdiv": lambda x, s: s / x,
    "mod": lambda x, s: _mod(x, _full(s, x)), "rmod": lambda x, s: _mod(_full(s, x), x),
    "power": lambda x, s: x**s, "rpower": lambda x, s: s**x,
    "maximum": lambda x, s: _maximum(x, _full(s, x)), "minimum": lambda x, s: _minimum(x, _full(s, x)),
    "hypot": lambda x, s: torch.hypot(x, _full(s, x)),
    "equal": lambda x, s: x == s, "not_equal": lambda x, s: x != s, "greater": lambda x, s: x > s,
    "greater_equal": lambda x, s: x >= s, "lesser": lambda x, s: x < s, "lesser_equal": lambda x, s: x <= s,
    "logical_and": lambda x, s: (x != 0) & bool(s), "logical_or": lambda x, s: (x != 0) | bool(s),
    "logical_xor": lambda x, s: (x != 0) ^ bool(s),
}  # fmt: skip
for _name, _scalar in _SCALAR.items():
    operator(f"_{_name}_scalar", sample=_number)(_with_scalar(_scalar))
for _name, _same in {"add": "plus", "subtract": "minus", "rsubtract": "rminus", "multiply": "mul", "true_divide": "div",
                     "rtrue_divide": "rdiv", "power": "power", "rpower": "rpower",
                     "mod": "mod", "rmod": "rmod"}.items():  # fmt: skip
    operator(f"_npi_{_name}_scalar", sample=_number)(_with_scalar(_SCALAR[_same], keep="divide" not in _name))
for _name, _same in {"equal": "equal", "not_equal": "not_equal", "greater": "greater", "less": "lesser",
                     "greater_equal": "greater_equal", "less_equal": "lesser_equal"}.items():  # fmt: skip
    operator(f"_npi_{_name}_scalar", sample=_whole_number)(_with_scalar(_SCALAR[_same], keep=False))


@operator("add_n", sample=lambda draw: Sample([("normal", (2, 3))] * draw.int(1, 4), {"num_args": "?"}))
def add_n(*arrays: Any) -> Any:
    total = arrays[0]
    for array in arrays[1:]:
        total = total + array
    return total


@operator("clip", sample=lambda d: Sample([("normal", d.shape())], {"a_min": -0.5, "a_max": d.pick([0.0, 0.5])}))
def clip(x: Any, a_min: float, a_max: float) -> Any:
    return x.clamp(a_min, a_max)


@operator("smooth_l1", sample=lambda d: Sample([("normal", d.shape())], {"scalar": d.pick([0.5, 1.0, 3.0])}))
def smooth_l1(x: Any, scalar: float) -> Any:
    square = scalar * scalar
    return torch.where(x.abs() < 1 / square, 0.5 * square * x * x, x.abs() - 0.5 / square)


@operator("hard_sigmoid", sample=lambda d: Sample([("normal", d.shape())], {"alpha": d.pick([0.2, 0.5])}))
def hard_sigmoid(x: Any, alpha: float = 0.2, beta: float = 0.5) -> Any:
    return (alpha * x + beta).clamp(0, 1)


_ACTIVATIONS: dict[str, Callable[[Any], Any]] = {
    "relu": torch.relu, "sigmoid": torch.sigmoid, "tanh": torch.tanh, "softsign": F.softsign,
    "softrelu": F.softplus, "log_sigmoid": F.logsigmoid, "mish": F.mish,
}  # fmt: skip


@operator("Activation", sample=lambda d: Sample(
    [("normal", d.shape())], {"act_type": d.pick(["relu", "sigmoid", "tanh", "softrelu", "softsign"])}))  # fmt: skip
def activation(x: Any, act_type: str) -> Any:
    return _ACTIVATIONS[act_type](x)


def _leaky(draw: Draw) -> Sample:
    kind = draw.pick(["leaky", "elu", "selu", "gelu", "prelu"])
    shape = (2, 3, draw.int(1, 4))
    gamma = [("normal", (3,))] if kind == "prelu" else []
    return Sample(
        [("normal", shape), *gamma], {"act_type": kind, "slope": draw.pick([0.1, 0.25])}, grads=kind != "selu"
    )


@operator("LeakyReLU", sample=_leaky, stateful=True, rounded=lambda attrs: attrs.get("act_type", "leaky") != "elu")
class LeakyReLU(torch.nn.Module):
    """All of MXNet's rectifiers with a slope; ``rrelu`` draws its slope in training.

    The gradient of ``selu`` is exact; MXNet's is up to 5 % off below zero.
    """

    def __init__(self, act_type: str = "leaky", slope: float = 0.25, lower_bound: float = 0.125,
                 upper_bound: float = 0.334):  # fmt: skip
        super().__init__()
        self.act_type, self.slope, self.bounds = act_type, slope, (lower_bound, upper_bound)

    def forward(self, x: Any, gamma: Any = None) -> Any:
        kind = self.act_type
        if kind == "leaky":
            return F.leaky_relu(x, self.slope)
        if kind == "prelu":
            shape = [1, -1] + [1] * (x.dim() - 2) if x.dim() > 1 else [-1]
            return torch.where(x > 0, x, x * gamma.reshape(shape))
        if kind == "elu":
            return torch.where(x > 0, x, self.slope * torch.expm1(x.clamp(max=0)))
        if kind == "gelu":
            return 0.5 * x * (1 + torch.erf(x / math.sqrt(2)))
        if kind == "selu":
            return F.selu(x)
        return F.rrelu(x, *self.bounds, training=self.training)
