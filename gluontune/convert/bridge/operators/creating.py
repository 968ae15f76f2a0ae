"""Operators that create arrays, and random draws."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from gluontune.convert.bridge.registry import operator, operators
from gluontune.runtime import pytorch

torch: Any = pytorch.torch()


def dtype_of(kind: Any, default: Any = None) -> Any:
    """The dtype of MXNet's name; torch's dtypes are returned unchanged."""
    if kind in (None, "None"):
        return default
    return getattr(torch, {"bool_": "bool"}.get(kind, kind)) if isinstance(kind, str) else kind


@operator("amp_multicast", many=True)
def amp_multicast(*arrays: Any, num_outputs: int = 1, cast_narrow: bool = False) -> Any:
    kinds = sorted({a.dtype for a in arrays}, key=lambda d: d.itemsize)
    return tuple(a.to(kinds[0 if cast_narrow else -1]) for a in arrays)


def _filled(number: float, unknown: int) -> Any:
    def fill(shape: Any = (), dtype: Any = "float32", like: Any = None) -> Any:
        # Outside of mx.np a size of 0 is unknown (the batch of a begin state): 1 broadcasts to it.
        shape = tuple(n if n > 0 else unknown for n in shape)
        return torch.full(shape, number, dtype=dtype_of(dtype, torch.float32), device=_device(like))

    return fill


def _device(like: Any) -> Any:
    return like.device if like is not None else None


for _name, _value in {"_zeros": 0, "_ones": 1, "_npi_zeros": 0, "_npi_ones": 1}.items():
    operator(_name, source=True)(_filled(_value, 0 if _name.startswith("_npi") else 1))


@operator("_full", source=True)
def full(shape: Any = (), value: float = 0.0, dtype: Any = "float32", like: Any = None) -> Any:
    return torch.full(tuple(shape), value, dtype=dtype_of(dtype, torch.float32), device=_device(like))


@operator("_arange", "_npi_arange", source=True)
def arange(start: float, stop: float | None = None, step: float = 1.0, repeat: int = 1, dtype: Any = "float32",
           like: Any = None) -> Any:  # fmt: skip
    start, stop = (0.0, start) if stop is None else (start, stop)
    places = torch.arange(max(0, math.ceil((stop - start) / step)), dtype=torch.float64, device=_device(like))
    return (start + places * step).repeat_interleave(repeat).to(dtype_of(dtype, torch.float32))


@operator("_eye", "_npi_eye", source=True)
def eye(N: int, M: Any = 0, k: int = 0, dtype: Any = "float32", like: Any = None) -> Any:
    rows = torch.arange(N, device=_device(like))
    columns = torch.arange(N if M in (None, "None", 0) else int(M), device=rows.device)
    return (columns - rows.unsqueeze(1) == k).to(dtype_of(dtype, torch.float32))


@operator("_npi_identity", source=True)
def np_identity(shape: Any, dtype: Any = "float32", like: Any = None) -> Any:
    return eye(shape[0], shape[1], 0, dtype, like)


@operator("_contrib_arange_like")
def arange_like(x: Any, start: float = 0.0, step: float = 1.0, repeat: int = 1, axis: int | None = None) -> Any:
    count = x.numel() if axis is None else x.shape[axis]
    found = start + step * (torch.arange(count, device=x.device) // repeat).to(x.dtype)
    return found.reshape(x.shape) if axis is None else found


operators(globals(), {
    "zeros_like": lambda x, dtype=None: torch.zeros_like(x, dtype=dtype_of(dtype)),
    "ones_like": lambda x, dtype=None: torch.ones_like(x, dtype=dtype_of(dtype)),
    "_npi_full_like": lambda x, fill_value, dtype=None: torch.full_like(x, fill_value, dtype=dtype_of(dtype)),
    "Cast": lambda x, dtype: x.to(dtype_of(dtype)),
    "amp_cast": lambda x, dtype: x.to(dtype_of(dtype)) if x.is_floating_point() else x,
    "shape_array": lambda x: torch.tensor(tuple(x.shape), dtype=torch.int64, device=x.device),
    "size_array": lambda x: torch.tensor([x.numel()], dtype=torch.int64, device=x.device),
})  # fmt: skip


#: Set by a check: normal draws are 0, uniform ones 0.5, others their mean.
STEADY = False


@contextmanager
def steady() -> Iterator[None]:
    """In this context each draw is a fixed number, so that two nets can be compared."""
    global STEADY
    STEADY = True
    try:
        yield
    finally:
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
