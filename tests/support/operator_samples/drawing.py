"""Drawn cases of ``gluontune.convert.bridge.operators.creating``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from operator_samples.cases import Draw, Sample

_TWO = {"normal": ("loc", "scale"), "uniform": ("low", "high"), "gamma": ("alpha", "beta"), "exponential": ("lam",),
        "poisson": ("lam",), "negative_binomial": ("k", "p"),
        "generalized_negative_binomial": ("mu", "alpha")}  # fmt: skip
_NUMPY = {"normal": ("loc", "scale"), "normal_n": ("loc", "scale"), "uniform": ("low", "high"),
          "uniform_n": ("low", "high"), "gumbel": ("loc", "scale"), "gamma": ("shape", "scale"),
          "logistic": ("loc", "scale"), "exponential": ("scale",), "bernoulli": ("prob", "logit")}  # fmt: skip
_AT = {"p": 0.5, "low": 0.25, "high": 1.75, "loc": 0.5, "prob": 0.75}  # others: 2


def _sampled(names: list[str], size: str) -> Callable[[Draw], Sample]:
    numbers: dict[str, Any] = {n: 2 if n == "k" else _AT.get(n, 2.0) for n in names if n != "logit"}
    if "prob" in names:
        numbers.update(logit=None, is_logit=False)
    return lambda d: Sample([], {size: d.shape(1, 3), **numbers}, grads=False, random=True)


def _sampled_like(names: list[str]) -> Callable[[Draw], Sample]:
    numbers = {n: 2 if n == "k" else _AT.get(n, 2.0) for n in names}
    return lambda d: Sample([("normal", d.shape())], numbers, grads=False, random=True)


def _sampled_of(names: list[str]) -> Callable[[Draw], Sample]:
    given = [("given", (2,), [_AT.get(name, 2.0), _AT.get(name, 2.0) * 0.75]) for name in names]
    return lambda d: Sample(given, {"shape": d.pick([(), (3,), (2, 3)])}, grads=False, random=True)


def _multinomial_sample(draw: Draw) -> Sample:
    attrs = {"shape": draw.pick([(), (3,)]), "get_prob": draw.pick([True, False])}
    return Sample([("given", (2, 3), [[0.2, 0.5, 0.3], [0.1, 0.1, 0.8]])], attrs, grads=False, random=True)


SAMPLES = {
    **{f"_random_{name}": _sampled(names, "shape") for name, names in _TWO.items()},
    **{f"_random_{name}_like": _sampled_like(names) for name, names in _TWO.items()},
    **{f"_sample_{name}": _sampled_of(names) for name, names in _TWO.items()},
    **{f"_npi_{name}": _sampled(names, "size") for name, names in _NUMPY.items()},
    "_random_randint": lambda d: Sample([], {"low": 1, "high": 8, "shape": d.shape(1, 3)}, grads=False, random=True),
    "_sample_multinomial": _multinomial_sample,
    "_shuffle": lambda d: Sample([("normal", d.shape())], {}, grads=False, random=True),
}
