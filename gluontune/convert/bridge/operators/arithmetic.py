"""Operators of one or two arrays, element by element with broadcasting, and products of matrices."""

from __future__ import annotations

import math
from typing import Any, Callable

from gluontune.convert.bridge.registry import operator, operators
from gluontune.runtime import pytorch

torch: Any = pytorch.torch()
F = torch.nn.functional


def _rint(x: Any) -> Any:
    low, high = x.floor(), x.ceil()
    return torch.where(x - low <= high - x, low, high)


def _cast_back(run: Callable[..., Any]) -> Callable[..., Any]:
    def zero_or_one(*arrays: Any) -> Any:
        return run(*arrays).to(arrays[0].dtype)

    return zero_or_one


_ONE: dict[str, Callable[[Any], Any]] = {
    "abs": torch.abs, "sign": torch.sign, "floor": torch.floor, "ceil": torch.ceil, "trunc": torch.trunc,
    "fix": torch.trunc, "rint": _rint, "round": lambda x: x.sign() * (x.abs() + 0.5).floor(), "square": torch.square,
    "sqrt": torch.sqrt, "rsqrt": torch.rsqrt, "cbrt": lambda x: x.sign() * x.abs().pow(1 / 3),
    "rcbrt": lambda x: x.sign() / x.abs().pow(1 / 3), "exp": torch.exp, "expm1": torch.expm1, "log": torch.log,
    "log2": torch.log2, "log10": torch.log10, "log1p": torch.log1p, "sin": torch.sin, "cos": torch.cos,
    "tan": torch.tan, "arcsin": torch.arcsin, "arccos": torch.arccos, "arctan": torch.arctan, "sinh": torch.sinh,
    "cosh": torch.cosh, "tanh": torch.tanh, "arcsinh": torch.arcsinh, "arctanh": torch.arctanh,
    "arccosh": lambda x: torch.arccosh(x), "degrees": torch.rad2deg, "radians": torch.deg2rad,
    "reciprocal": torch.reciprocal, "negative": torch.neg, "erf": torch.erf, "erfinv": torch.erfinv,
    "gammaln": torch.lgamma, "gamma": lambda x: torch.lgamma(x).exp(), "relu": torch.relu, "sigmoid": torch.sigmoid,
    "softsign": F.softsign, "logical_not": _cast_back(torch.logical_not), "_copy": lambda x: x,
}  # fmt: skip
_NUMPY_ONE = (
    "sign", "floor", "ceil", "trunc", "square", "sqrt", "exp", "expm1", "log", "log2", "log10", "log1p", "sin", "cos",
    "tan", "sinh", "cosh", "tanh", "arcsin", "arccos", "arctan", "reciprocal", "negative",
)  # fmt: skip

_ROUNDED = ("degrees", "radians", "erf", "erfinv", "gamma", "gammaln")
for _name, _run in _ONE.items():
    operator(_name, rounded=_name in _ROUNDED)(_run)
for _name in _NUMPY_ONE:
    operator(f"_npi_{_name}")(_ONE[_name])
operator("_npi_absolute")(_ONE["abs"])
operator("_np_copy")(_ONE["_copy"])


def _maximum(a: Any, b: Any) -> Any:
    return torch.where(a >= b, a, b)  # of two equal ones the first has the whole gradient


def _minimum(a: Any, b: Any) -> Any:
    return torch.where(a <= b, a, b)


def _mod(a: Any, b: Any) -> Any:
    zero = b == 0
    return torch.where(zero, torch.zeros_like(a), torch.remainder(a, torch.where(zero, torch.ones_like(b), b)))


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
for _name, _two in _TWO.items():
    operator(f"broadcast_{_name}", f"{'elemwise' if _name in ('add', 'sub', 'mul', 'div') else ''}_{_name}")(_two)
for _name, _two in _COMPARE.items():
    operator(f"broadcast_{_name}", f"_{_name}")(_cast_back(_two))
for _name, _scalar in _SCALAR.items():
    operator(f"_{_name}_scalar")(_with_scalar(_scalar))
for _name, _same in {"add": "plus", "subtract": "minus", "rsubtract": "rminus", "multiply": "mul", "true_divide": "div",
                     "rtrue_divide": "rdiv", "power": "power", "rpower": "rpower",
                     "mod": "mod", "rmod": "rmod"}.items():  # fmt: skip
    operator(f"_npi_{_name}_scalar")(_with_scalar(_SCALAR[_same], keep="divide" not in _name))
for _name, _same in {"add": "add", "subtract": "sub", "multiply": "mul", "mod": "mod", "power": "power"}.items():
    operator(f"_npi_{_name}")(_TWO[_same])
for _name, _same in {"equal": "equal", "not_equal": "not_equal", "greater": "greater", "greater_equal": "greater_equal",
                     "less": "lesser", "less_equal": "lesser_equal"}.items():  # fmt: skip
    operator(f"_npi_{_name}")(_COMPARE[_same])
    operator(f"_npi_{_name}_scalar")(_with_scalar(_SCALAR[_same], keep=False))
operator("_grad_add")(torch.add)
operator("_npi_true_divide")(torch.div)


_ACTIVATIONS: dict[str, Callable[[Any], Any]] = {
    "relu": torch.relu, "sigmoid": torch.sigmoid, "tanh": torch.tanh, "softsign": F.softsign,
    "softrelu": F.softplus, "log_sigmoid": F.logsigmoid, "mish": F.mish,
}  # fmt: skip


@operator("LeakyReLU", stateful=True, rounded=lambda attrs: attrs.get("act_type", "leaky") != "elu")
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


operators(globals(), {
    "add_n": lambda *arrays: sum(arrays[1:], arrays[0]),
    "smooth_l1": lambda x, scalar:
        torch.where(x.abs() < 1 / scalar**2, 0.5 * scalar**2 * x * x, x.abs() - 0.5 / scalar**2),
    "BlockGrad": lambda x: x.detach(),
    "clip": lambda x, a_min, a_max: x.clamp(a_min, a_max),
    "hard_sigmoid": lambda x, alpha=0.2, beta=0.5: (alpha * x + beta).clamp(0, 1),
    "Activation": lambda x, act_type: _ACTIVATIONS[act_type](x),
    "_contrib_gradientmultiplier": lambda x, scalar=1.0: x.detach() + (x - x.detach()) * scalar,
    "_contrib_round_ste": lambda x: x.detach().sign() * (x.detach().abs() + 0.5).floor() + (x - x.detach()),
    "_contrib_sign_ste": lambda x: x.detach().sign() + (x - x.detach()),
})  # fmt: skip


def _turn(x: Any, turned: bool) -> Any:
    return x.transpose(-1, -2) if turned else x


@operator("dot")
def dot(a: Any, b: Any, transpose_a: bool = False, transpose_b: bool = False) -> Any:
    if a.dim() == b.dim() == 1:
        return (a * b).sum().reshape(1)
    left = a.movedim(0, -1) if transpose_a else a
    right = b.movedim(-1, 0) if transpose_b else b
    return torch.tensordot(left, right, 1)


# Attention of several heads with interleaved queries, keys and values in one array (gluon-nlp, sockeye), as in MXNet's
# src/operator/contrib/transformer.cc.
def _heads(x: Any, heads: int, parts: int) -> Any:
    """(steps, batch, heads · parts · size) as (parts, batch · heads, steps, size)."""
    x = x.reshape(x.shape[0], x.shape[1], heads, parts, -1).permute(3, 1, 2, 0, 4)
    return x.reshape(parts, -1, *x.shape[3:])


def _together(found: Any, heads: int) -> Any:
    """(batch · heads, steps, size) as (steps, batch, heads · size)."""
    found = found.reshape(-1, heads, *found.shape[1:]).permute(2, 0, 1, 3)
    return found.reshape(*found.shape[:2], -1)


def _scores(queries: Any, keys: Any) -> Any:
    return torch.matmul(queries / queries.shape[-1] ** 0.5, keys.transpose(1, 2))


operator("_linalg_inverse")(torch.inverse)
operator("_linalg_det")(torch.det)


def _triangle(a: Any, lower: bool, transpose: bool = False) -> Any:
    return _turn(torch.tril(a) if lower else torch.triu(a), transpose)


def _product(a: Any, b: Any, transpose_a: bool, transpose_b: bool) -> Any:
    return torch.matmul(_turn(a, transpose_a), _turn(b, transpose_b))


operators(globals(), {
    "batch_dot": lambda a, b, transpose_a=False, transpose_b=False: _product(a, b, transpose_a, transpose_b),
    "_linalg_gemm2": lambda a, b, transpose_a=False, transpose_b=False, alpha=1.0, axis=-2:
        alpha * _product(a, b, transpose_a, transpose_b),
    "_np_dot": lambda a, b:
        torch.tensordot(a, b, dims=([-1], [-2 if b.dim() > 1 else 0])) if a.dim() and b.dim() else a * b,
    "_npi_matmul": lambda a, b: torch.matmul(a, b),
    "_contrib_interleaved_matmul_selfatt_qk": lambda x, heads: _scores(*_heads(x, heads, 3)[:2]),
    "_contrib_interleaved_matmul_encdec_qk": lambda queries, keys_values, heads:
        _scores(_heads(queries, heads, 1)[0], _heads(keys_values, heads, 2)[0]),
    "_contrib_interleaved_matmul_selfatt_valatt": lambda x, attention, heads:
        _together(torch.matmul(attention, _heads(x, heads, 3)[2]), heads),
    "_contrib_interleaved_matmul_encdec_valatt": lambda keys_values, attention, heads:
        _together(torch.matmul(attention, _heads(keys_values, heads, 2)[1]), heads),
    "_contrib_div_sqrt_dim": lambda x: x / x.shape[-1] ** 0.5,
    "_linalg_gemm": lambda a, b, c, transpose_a=False, transpose_b=False, alpha=1.0, beta=1.0:
        alpha * _product(a, b, transpose_a, transpose_b) + beta * c,
    "_linalg_syrk": lambda a, transpose=False, alpha=1.0: alpha * _product(a, a, transpose, not transpose),
    "_linalg_sumlogdiag": lambda a: a.diagonal(dim1=-2, dim2=-1).log().sum(-1),
    "_linalg_extractdiag": lambda a, offset=0: a.diagonal(offset, -2, -1),
    "_linalg_makediag": lambda a, offset=0: torch.diag_embed(a, offset),
    "_npi_einsum": lambda *arrays, subscripts, optimize=0: torch.einsum(subscripts, *arrays),
    "_npi_tensordot_int_axes": lambda a, b, axes: torch.tensordot(a, b, axes),
    "_npi_tensordot": lambda a, b, a_axes_summed, b_axes_summed:
        torch.tensordot(a, b, (tuple(a_axes_summed), tuple(b_axes_summed))),
    "_linalg_potrf": lambda a, lower=True: _turn(torch.linalg.cholesky(a), not lower),
    "_linalg_trsm": lambda a, b, transpose=False, rightside=False, lower=True, alpha=1.0:
        alpha * torch.linalg.solve_triangular(
            _triangle(a, lower, transpose), b, upper=lower == transpose, left=not rightside),
    "_linalg_trmm": lambda a, b, transpose=False, rightside=False, lower=True, alpha=1.0:
        alpha * (torch.matmul(b, _triangle(a, lower, transpose)) if rightside
                 else torch.matmul(_triangle(a, lower, transpose), b)),
    "_linalg_potri": lambda a, lower=True: torch.cholesky_inverse(_triangle(a, lower), upper=not lower),
})  # fmt: skip
