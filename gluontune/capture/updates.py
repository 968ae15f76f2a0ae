"""MXNet's update operators in PyTorch, in MXNet's order of operations: each returns the new weight and new states.

Rules of https://github.com/apache/mxnet/blob/v1.9.x/src/operator/optimizer_op-inl.h
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from gluontune.convert.graph.schemas import schema
from gluontune.runtime.pytorch import torch


def _scaled(grad: Any, rescale_grad: float, clip_gradient: float) -> Any:
    grad = grad * rescale_grad
    return grad.clamp(-clip_gradient, clip_gradient) if clip_gradient > 0 else grad


def _moved(w: Any, g: Any, scale: float, rescale_grad: float, clip_gradient: float) -> Any:
    """``w + scale * g``, the gradient rescaled and clipped, with one temporary tensor at most."""
    if clip_gradient > 0:
        return w.add(_scaled(g, rescale_grad, clip_gradient), alpha=scale)
    return w.add(g, alpha=scale * rescale_grad)


def _decayed(w: Any, rate: float) -> Any:
    return w if rate == 0 else (1 - rate) * w


def _momentum(w: Any, g: Any, m: Any, lr: float, momentum: float, wd: float, *scaling: float) -> Any:
    """The new momentum of ``sgd``."""
    m = _moved(momentum * m, g, -lr, *scaling)
    return m if wd == 0 else m.add(w, alpha=-lr * wd)


def sgd_update(w: Any, g: Any, *, lr: float, wd: float, rescale_grad: float, clip_gradient: float, **_: Any) -> Any:
    return _moved(_decayed(w, lr * wd), g, -lr, rescale_grad, clip_gradient)


def sgd_mom_update(w: Any, g: Any, m: Any, *, lr: float, momentum: float, wd: float, rescale_grad: float,
                   clip_gradient: float, **_: Any) -> Any:  # fmt: skip
    m = _momentum(w, g, m, lr, momentum, wd, rescale_grad, clip_gradient)
    return w + m, m


def mp_sgd_update(w: Any, g: Any, w32: Any, **numbers: Any) -> Any:
    w32 = sgd_update(w32, g.to(w32.dtype), **numbers)
    return w32.to(w.dtype), w32


def mp_sgd_mom_update(w: Any, g: Any, m: Any, w32: Any, **numbers: Any) -> Any:
    w32, m = sgd_mom_update(w32, g.to(w32.dtype), m, **numbers)
    return w32.to(w.dtype), m, w32


def nag_mom_update(w: Any, g: Any, m: Any, *, lr: float, momentum: float, wd: float, rescale_grad: float,
                   clip_gradient: float, **_: Any) -> Any:  # fmt: skip
    scaling = rescale_grad, clip_gradient
    moved = _momentum(w, g, m, lr, momentum, wd, *scaling)
    new = _moved(_decayed(w, lr * wd), g, -lr, *scaling).add(moved, alpha=momentum)
    return new, _momentum(new, g, m, lr, momentum, wd, *scaling)  # MXNet has overwritten the weight by then


def adam_update(w: Any, g: Any, mean: Any, var: Any, *, lr: float, beta1: float, beta2: float, epsilon: float,
                wd: float, rescale_grad: float, clip_gradient: float, **_: Any) -> Any:  # fmt: skip
    g = g * rescale_grad + wd * w
    g = g.clamp(-clip_gradient, clip_gradient) if clip_gradient >= 0 else g
    mean, var = beta1 * mean + (1 - beta1) * g, beta2 * var + (1 - beta2) * g * g
    return w - lr * mean / (var.sqrt() + epsilon), mean, var


def _adam_at_once(w: Tensors, g: Tensors, mean: Tensors, var: Tensors, **numbers: float) -> tuple[Tensors, ...] | None:
    """``adam_update`` of many by PyTorch's fused rule, or None where that is another."""
    names = ("lr", "beta1", "beta2", "wd", "epsilon")
    decays = max(numbers["beta1"], numbers["beta2"]) < 1
    plain = decays and numbers["clip_gradient"] < 0 and w.are_alike(g, mean, var)
    if not (plain and _fuses_adam(w.parts[0].device)):
        return None
    g = g if numbers["rescale_grad"] == 1 else g * numbers["rescale_grad"]
    return _fused_adam(w, g, mean, var, *(numbers[name] for name in names))


def _fused_adam(w: Tensors, g: Tensors, mean: Tensors, var: Tensors, *numbers: float) -> tuple[Tensors, ...]:
    """Adam in one pass over copies; after endless steps nothing is left of PyTorch's correction: the rate has it."""
    lr, beta1, beta2, wd, epsilon = numbers
    w, mean, var = (Tensors([part.clone() for part in each.parts]) for each in (w, mean, var))
    steps = [_library("tensor")(math.inf, device=w.parts[0].device)] * len(w.parts)
    _library("_fused_adam_")(w.parts, g.parts, mean.parts, var.parts, [], steps, lr=lr, beta1=beta1, beta2=beta2,
                             weight_decay=wd, eps=epsilon, amsgrad=False, maximize=False)  # fmt: skip
    return w, mean, var


@functools.cache
def _fuses_adam(place: Any) -> bool:
    """Whether this PyTorch has a fused Adam on a device that does what it says; on the CPU it has one since 2.4."""
    try:
        one = Tensors([torch().ones(1, device=place)])
        found = _fused_adam(one, one, one, one, 0.5, 0.9, 0.999, 0.0, 1e-8)
    except (AttributeError, RuntimeError):
        return False
    return abs(float(found[0].parts[0]) - 0.5) < 1e-5


def rmsprop_update(w: Any, g: Any, n: Any, *, lr: float, gamma1: float, epsilon: float, wd: float, rescale_grad: float,
                   clip_gradient: float, clip_weights: float, **_: Any) -> Any:  # fmt: skip
    g = g * rescale_grad + wd * w
    g = g.clamp(-clip_gradient, clip_gradient) if clip_gradient >= 0 else g
    n = (1 - gamma1) * g * g + gamma1 * n
    w = w - lr * g / (n + epsilon).sqrt()
    return (w.clamp(-clip_weights, clip_weights) if clip_weights >= 0 else w), n


def ftrl_update(w: Any, g: Any, z: Any, n: Any, *, lr: float, lamda1: float, beta: float, wd: float,
                rescale_grad: float, clip_gradient: float, **_: Any) -> Any:  # fmt: skip
    g = _scaled(g, rescale_grad, clip_gradient)
    z = z + g - ((n + g * g).sqrt() - n.sqrt()) * w / lr
    n = n + g * g
    shrunk = (z.abs() - lamda1).clamp(min=0)
    return -z.sign() * shrunk / ((beta + n.sqrt()) / lr + wd), z, n


def signsgd_update(w: Any, g: Any, *, lr: float, wd: float, rescale_grad: float, clip_gradient: float, **_: Any) -> Any:
    return (1 - lr * wd) * w - lr * g.sign()


def signum_update(w: Any, g: Any, m: Any, *, lr: float, momentum: float, wd: float, rescale_grad: float,
                  clip_gradient: float, wd_lh: float, **_: Any) -> Any:  # fmt: skip
    m = momentum * m - (1 - momentum) * (wd * w + _scaled(g, rescale_grad, clip_gradient))
    return (1 - lr * wd_lh) * w + lr * m.sign(), m


def _sparse_adagrad_update(w: Any, g: Any, h: Any, *, lr: float, epsilon: float, wd: float, rescale_grad: float,
                           clip_gradient: float, **_: Any) -> Any:  # fmt: skip
    g = _scaled(g, rescale_grad, clip_gradient)
    h = h + g * g
    return w - lr * g / (h + epsilon).sqrt(), h


_RULES = (
    sgd_update, sgd_mom_update, mp_sgd_update, mp_sgd_mom_update, nag_mom_update, adam_update, rmsprop_update,
    ftrl_update, signsgd_update, signum_update, _sparse_adagrad_update,
)  # fmt: skip
UPDATES: dict[str, Callable[..., Any]] = {rule.__name__: rule for rule in _RULES}
#: Rules that PyTorch has in one pass, beside those above, whose text migrated projects get.
_AT_ONCE = {"adam_update": _adam_at_once}


def update_of(name: str, attrs: Mapping[str, str]) -> Callable[..., Any]:
    """The rule of an update operator with its attributes, of tensors or of :class:`Tensors`.

    One that is lazy by its attributes changes only rows where the gradient is not zero: MXNet's sparse gradient has no
    others, unless a row that it has is all zeros.
    """
    typed, rule = schema(name).typed(attrs), UPDATES[name]
    lazy = typed.pop("lazy_update", False) and attrs.get("lazy_update") == "True"

    def update(*inputs: Any) -> Any:
        found = _AT_ONCE[name](*inputs, **typed) if name in _AT_ONCE and isinstance(inputs[0], Tensors) else None
        found = rule(*inputs, **typed) if found is None else found
        if not lazy:
            return found
        several = found if isinstance(found, tuple) else (found,)
        return tuple(_in_rows(inputs[1], new, old) for new, old in zip(several, (inputs[0], *inputs[2:])))

    return update


def _in_rows(gradient: Any, new: Any, old: Any) -> Any:
    if isinstance(new, Tensors):
        return Tensors([_in_rows(*parts) for parts in zip(gradient.parts, new.parts, old.parts)])
    rows = (gradient != 0).flatten(1).any(1).reshape(-1, *[1] * (gradient.dim() - 1))
    return torch().where(rows, new, old)


@functools.cache
def _library(name: str) -> Any:
    return getattr(torch(), name)


def _foreach(name: str) -> Callable[..., Any]:
    """An operation of :class:`Tensors`: one call for all of them."""

    def run(tensors: Tensors, *others: Any, **more: Any) -> Tensors:
        given = [other.parts if isinstance(other, Tensors) else other for other in others]
        return Tensors(_library(f"_foreach_{name}")(tensors.parts, *given, **more))

    return run


class Tensors:
    """Several tensors in the place of one in these rules.

    >>> pair = Tensors([torch().ones(2), torch().zeros(3)])
    >>> [part.tolist() for part in (1 - 2 * pair).parts]
    [[-1.0, -1.0], [1.0, 1.0, 1.0]]
    """

    def __init__(self, parts: Sequence[Any]):
        self.parts = list(parts)

    add = __add__ = __radd__ = _foreach("add")
    __mul__ = __rmul__ = _foreach("mul")
    __sub__, __truediv__, __neg__ = _foreach("sub"), _foreach("div"), _foreach("neg")
    sqrt, abs, sign = _foreach("sqrt"), _foreach("abs"), _foreach("sign")
    clamp_min, clamp_max = _foreach("clamp_min"), _foreach("clamp_max")

    def __rsub__(self, other: Any) -> Any:
        return -self + other

    def clamp(self, min: float, max: float | None = None) -> Any:
        above = self.clamp_min(min)
        return above if max is None else above.clamp_max(max)

    @property
    def dtype(self) -> Any:
        return self.parts[0].dtype

    def are_alike(self, *others: Tensors) -> bool:
        """Whether all have the shape of ours, dense, and are float32 or float64 alike."""
        kinds = _library("float32"), _library("float64")
        return self.dtype in kinds and all(
            part.dtype == self.dtype and part.shape == mine.shape and part.is_contiguous()
            for each in (self, *others) for mine, part in zip(self.parts, each.parts)
        )  # fmt: skip

    def to(self, dtype: Any) -> Tensors:
        return Tensors([part.to(dtype) for part in self.parts])
