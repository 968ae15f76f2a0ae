"""Random draws. With ``STEADY`` each is a fixed number, so that two nets can be compared."""

from __future__ import annotations

import inspect
from collections.abc import Callable
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


def _np_exponential(scale: Any, _: Any) -> Any:
    return _exponential(1 / scale, _)


def _gumbel(loc: Any, scale: Any) -> Any:
    return loc - scale * (-_uniform_noise(loc).log()).log()


def _logistic(loc: Any, scale: Any) -> Any:
    noise = _uniform_noise(loc)
    return loc + scale * (noise / (1 - noise)).log()


def _gamma(alpha: Any, beta: Any) -> Any:
    return (alpha if STEADY else torch._standard_gamma(alpha)) * beta


def _poisson(rate: Any, _: Any) -> Any:
    return rate if STEADY else torch.poisson(rate)


def _negative_binomial(k: Any, p: Any) -> Any:
    return _poisson(_gamma(k, (1 - p) / p), p)


def _generalized(mu: Any, alpha: Any) -> Any:
    return _poisson(_gamma(1 / alpha, mu * alpha), mu)


def _randint(low: Any, high: Any) -> Any:
    return _uniform(low, high).floor().int()


def _bernoulli(prob: Any, logit: Any) -> Any:
    prob = torch.where(prob.isnan(), logit.sigmoid(), prob)
    return (_uniform_noise(prob) < prob).to(prob.dtype)


def _number(value: Any, like: Any) -> Any:
    return (
        value.detach()
        if isinstance(value, torch.Tensor)
        else torch.full_like(like, torch.nan if value is None else value)
    )


def _of_shape(run: Callable[[Any, Any], Any], first: str, second: str) -> Any:
    """A draw of a shape; its two parameters may be arrays (mx.np), which come first."""

    def draw(
        *arrays: Any, like: Any = None, dtype: Any = None, shape: Any = None, size: Any = None, **numbers: Any
    ) -> Any:
        if first == "shape":  # a gamma's, a number
            numbers, shape = {**numbers, "shape": shape}, None
        given = list(arrays)
        both = [given.pop(0) if numbers.get(n) is None and given else numbers.get(n) for n in (first, second)]
        kind = dtype_of(dtype, torch.get_default_dtype())
        if like is not None and like.is_floating_point() and dtype in (None, "float32"):
            kind = like.dtype
        floating = kind if kind.is_floating_point else torch.get_default_dtype()
        shape = () if shape is None and size is None else size if shape is None else shape
        if arrays and not shape:
            shape = torch.broadcast_shapes(*(b.shape for b in both if isinstance(b, torch.Tensor)))
        device = next((a.device for a in (*arrays, like) if a is not None), None)
        plain = torch.zeros((shape,) if isinstance(shape, int) else tuple(shape), dtype=floating, device=device)
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


def _like(run: Callable[[Any, Any], Any], first: str, second: str) -> Any:
    def draw(data: Any, **numbers: Any) -> Any:
        return run(*(torch.full_like(data, numbers.get(n) or 0.0) for n in (first, second)))

    return draw


def _told(run: Any, names: list[str], first: int) -> Any:
    """``run`` with the attributes' names in its signature, by which the bridge passes them."""
    kinds = [inspect.Parameter.POSITIONAL_OR_KEYWORD] * first + [inspect.Parameter.KEYWORD_ONLY] * (len(names) - first)
    run.__signature__ = inspect.Signature(
        [
            inspect.Parameter(n, k, default=None if i >= first else inspect._empty)
            for i, (n, k) in enumerate(zip(names, kinds))
        ]
    )
    return run


_TWO = {"normal": (_normal, "loc", "scale"), "uniform": (_uniform, "low", "high"), "gamma": (_gamma, "alpha", "beta"),
        "exponential": (_exponential, "lam", ""), "poisson": (_poisson, "lam", ""),
        "negative_binomial": (_negative_binomial, "k", "p"),
        "generalized_negative_binomial": (_generalized, "mu", "alpha")}  # fmt: skip
_NUMPY = {"normal": (_normal, "loc", "scale"), "normal_n": (_normal, "loc", "scale"),
          "uniform": (_uniform, "low", "high"), "uniform_n": (_uniform, "low", "high"),
          "gumbel": (_gumbel, "loc", "scale"), "gamma": (_gamma, "shape", "scale"),
          "logistic": (_logistic, "loc", "scale"), "exponential": (_np_exponential, "scale", ""),
          "bernoulli": (_bernoulli, "prob", "logit")}  # fmt: skip
for _name, (_run, _first, _second) in _TWO.items():
    _names = [n for n in (_first, _second) if n]
    operator(f"_random_{_name}", source=True)(
        _told(_of_shape(_run, _first, _second), ["like", "dtype", "shape", *_names], 0)
    )
    operator(f"_random_{_name}_like")(_told(_like(_run, _first, _second), ["data", *_names], 1))
    operator(f"_sample_{_name}")(_of_arrays(_run))
operator("_random_randint", source=True)(
    _told(_of_shape(_randint, "low", "high"), ["like", "dtype", "shape", "low", "high"], 0)
)
for _name, (_run, _first, _second) in _NUMPY.items():
    _names = [n for n in (_first, _second) if n]
    operator(f"_npi_{_name}", source=True)(
        _told(_of_shape(_run, _first, _second), ["like", "dtype", "size", *_names], 0)
    )


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
