"""Random draws. With ``STEADY`` each is a fixed number, so that two nets can be compared."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any

from gluontune.convert.bridge.operators.creating import dtype_of
from gluontune.convert.bridge.registry import operator
from gluontune.runtime import pytorch

torch: Any = pytorch.torch()

#: Set by a check: normal draws are 0, uniform ones 0.5, others their mean.
STEADY = False


def _uniform_noise(like: Any) -> Any:
    return torch.full_like(like, 0.5) if STEADY else torch.rand_like(like)


def _normal(loc: Any, scale: Any) -> Any:
    return loc + scale * (torch.zeros_like(loc) if STEADY else torch.randn_like(loc))


def _uniform(low: Any, high: Any) -> Any:
    return low + (high - low) * _uniform_noise(low)


def _exponential(rate: Any, _: Any) -> Any:
    return -torch.log1p(-_uniform_noise(rate)) / rate


def _logistic(loc: Any, scale: Any) -> Any:
    noise = _uniform_noise(loc)
    return loc + scale * (noise / (1 - noise)).log()


def _gamma(alpha: Any, beta: Any) -> Any:
    return (alpha if STEADY else torch._standard_gamma(alpha)) * beta


def _poisson(rate: Any, _: Any) -> Any:
    return rate if STEADY else torch.poisson(rate)


def _bernoulli(prob: Any, logit: Any) -> Any:
    prob = torch.where(prob.isnan(), logit.sigmoid(), prob)
    return (_uniform_noise(prob) < prob).to(prob.dtype)


def _number(value: Any, like: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return value.detach()
    return torch.full_like(like, torch.nan if value is None else value)


def _of_shape(run: Callable[[Any, Any], Any], extent: str, names: Sequence[str]) -> Any:
    """A draw of the shape in attribute ``extent``; its parameters may be arrays (mx.np), which come first."""

    def draw(*arrays: Any, like: Any = None, dtype: Any = None, **given: Any) -> Any:
        shape, left = given.pop(extent, None), list(arrays)
        both = [left.pop(0) if given.get(n) is None and left else given.get(n) for n in (*names, "")[:2]]
        kind = dtype_of(dtype, torch.get_default_dtype())
        if like is not None and like.is_floating_point() and dtype in (None, "float32"):
            kind = like.dtype
        floating = kind if kind.is_floating_point else torch.get_default_dtype()
        if arrays and not shape:
            shape = torch.broadcast_shapes(*(b.shape for b in both if isinstance(b, torch.Tensor)))
        device = next((a.device for a in (*arrays, like) if a is not None), None)
        plain = torch.zeros((shape,) if isinstance(shape, int) else tuple(shape or ()), dtype=floating, device=device)
        found = run(*(_number(b, plain).expand(plain.shape) for b in both))
        return found if dtype is None else found.to(kind)

    return draw


def _of_arrays(run: Callable[[Any, Any], Any]) -> Any:
    """Draws of a shape for each element of two parameter arrays."""

    def draw(first: Any, second: Any = None, shape: Any = (), dtype: Any = None) -> Any:
        shape = (shape,) if isinstance(shape, int) else tuple(shape or ())
        both = [(first if a is None else a).detach().reshape(*first.shape, *[1] * len(shape)) for a in (first, second)]
        return run(*(a.expand(*first.shape, *shape) for a in both)).to(dtype_of(dtype, first.dtype))

    return draw


def _like(run: Callable[[Any, Any], Any], names: Sequence[str]) -> Any:
    def draw(data: Any, **numbers: Any) -> Any:
        return run(*(torch.full_like(data, numbers.get(n) or 0.0) for n in (*names, "")[:2]))

    return draw


def _told(run: Any, names: list[str], first: int) -> Any:
    """``run`` with the attributes' names in its signature, by which the bridge passes them."""
    one = inspect.Parameter
    given = [one(name, one.POSITIONAL_OR_KEYWORD) for name in names[:first]]
    run.__signature__ = inspect.Signature([*given, *(one(n, one.KEYWORD_ONLY, default=None) for n in names[first:])])
    return run


# A rule of two parameters (of one: the second is ignored), and their names.
_ND: dict[str, Any] = {
    "normal": (_normal, "loc", "scale"), "uniform": (_uniform, "low", "high"), "gamma": (_gamma, "alpha", "beta"),
    "exponential": (_exponential, "lam"), "poisson": (_poisson, "lam"),
    "negative_binomial": (lambda k, p: _poisson(_gamma(k, (1 - p) / p), p), "k", "p"),
    "generalized_negative_binomial": (lambda mu, a: _poisson(_gamma(1 / a, mu * a), mu), "mu", "alpha"),
}  # fmt: skip
_NUMPY: dict[str, Any] = {
    "normal": (_normal, "loc", "scale"), "normal_n": (_normal, "loc", "scale"), "uniform": (_uniform, "low", "high"),
    "uniform_n": (_uniform, "low", "high"), "gamma": (_gamma, "shape", "scale"),
    "gumbel": (lambda loc, scale: loc - scale * (-_uniform_noise(loc).log()).log(), "loc", "scale"),
    "logistic": (_logistic, "loc", "scale"), "exponential": (lambda scale, _: _exponential(1 / scale, _), "scale"),
    "bernoulli": (_bernoulli, "prob", "logit"),
}  # fmt: skip
_WHOLE: dict[str, Any] = {"randint": (lambda low, high: _uniform(low, high).floor().int(), "low", "high")}
for _prefix, _extent, _rules in (("_random", "shape", {**_ND, **_WHOLE}), ("_npi", "size", _NUMPY)):
    for _name, (_run, *_names) in _rules.items():
        _draw = _told(_of_shape(_run, _extent, _names), ["like", "dtype", _extent, *_names], 0)
        operator(f"{_prefix}_{_name}", source=True)(_draw)
for _name, (_run, *_names) in _ND.items():
    operator(f"_random_{_name}_like")(_told(_like(_run, _names), ["data", *_names], 1))
    operator(f"_sample_{_name}")(_of_arrays(_run))


@operator("_sample_multinomial", many=lambda attrs: bool(attrs.get("get_prob")))
def sample_multinomial(data: Any, shape: Any = (), get_prob: bool = False, dtype: Any = "int32") -> Any:
    shape = (shape,) if isinstance(shape, int) else tuple(shape or ())
    count, rows = int(torch.Size(shape).numel()), data.detach().reshape(-1, data.shape[-1])
    if STEADY:
        found = rows.argmax(1, keepdim=True).expand(-1, count)
    else:
        found = torch.multinomial(rows, count, replacement=True)
    chosen = found.reshape(*data.shape[:-1], *shape)
    if not get_prob:
        return chosen.to(dtype_of(dtype))
    chance = data.reshape(-1, data.shape[-1]).gather(1, found).log().reshape(chosen.shape)
    return chosen.to(dtype_of(dtype)), chance


@operator("_shuffle")
def shuffle(x: Any) -> Any:
    return x if STEADY else x[torch.randperm(len(x), device=x.device)]
