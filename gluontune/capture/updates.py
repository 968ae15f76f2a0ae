"""MXNet's update operators in PyTorch: each returns the new weight, then the new states.

Rules of https://github.com/apache/mxnet/blob/v1.9.x/src/operator/optimizer_op-inl.h, in its order of operations.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from gluontune.convert.graph.schemas import schema
from gluontune.runtime.pytorch import torch

UPDATES: dict[str, Callable[..., Any]] = {}


def _update(run: Callable[..., Any]) -> Callable[..., Any]:
    UPDATES[run.__name__.rstrip("_")] = run
    return run


def _scaled(grad: Any, rescale_grad: float, clip_gradient: float) -> Any:
    grad = grad * rescale_grad
    return grad.clamp(-clip_gradient, clip_gradient) if clip_gradient > 0 else grad


@_update
def sgd_update(w: Any, g: Any, *, lr: float, wd: float, rescale_grad: float, clip_gradient: float, **_: Any) -> Any:
    return w - lr * (_scaled(g, rescale_grad, clip_gradient) + wd * w)


@_update
def sgd_mom_update(w: Any, g: Any, m: Any, *, lr: float, momentum: float, wd: float, rescale_grad: float,
                   clip_gradient: float, **_: Any) -> Any:  # fmt: skip
    m = momentum * m - lr * wd * w - lr * _scaled(g, rescale_grad, clip_gradient)
    return w + m, m


@_update
def mp_sgd_update(w: Any, g: Any, w32: Any, *, lr: float, wd: float, rescale_grad: float, clip_gradient: float,
                  **_: Any) -> Any:  # fmt: skip
    w32 = w32 - lr * (_scaled(g.to(w32.dtype), rescale_grad, clip_gradient) + wd * w32)
    return w32.to(w.dtype), w32


@_update
def mp_sgd_mom_update(w: Any, g: Any, m: Any, w32: Any, *, lr: float, momentum: float, wd: float, rescale_grad: float,
                      clip_gradient: float, **_: Any) -> Any:  # fmt: skip
    m = momentum * m - lr * wd * w32 - lr * _scaled(g.to(w32.dtype), rescale_grad, clip_gradient)
    w32 = w32 + m
    return w32.to(w.dtype), m, w32


@_update
def nag_mom_update(w: Any, g: Any, m: Any, *, lr: float, momentum: float, wd: float, rescale_grad: float,
                   clip_gradient: float, **_: Any) -> Any:  # fmt: skip
    scaled = _scaled(g, rescale_grad, clip_gradient)
    g = scaled + wd * w
    new = w + momentum * (momentum * m - lr * g) - lr * g
    return new, momentum * m - lr * (scaled + wd * new)  # MXNet has overwritten the weight by then


@_update
def adam_update(w: Any, g: Any, mean: Any, var: Any, *, lr: float, beta1: float, beta2: float, epsilon: float,
                wd: float, rescale_grad: float, clip_gradient: float, **_: Any) -> Any:  # fmt: skip
    g = g * rescale_grad + wd * w
    g = g.clamp(-clip_gradient, clip_gradient) if clip_gradient >= 0 else g
    mean, var = beta1 * mean + (1 - beta1) * g, beta2 * var + (1 - beta2) * g * g
    return w - lr * mean / (var.sqrt() + epsilon), mean, var


@_update
def rmsprop_update(w: Any, g: Any, n: Any, *, lr: float, gamma1: float, epsilon: float, wd: float, rescale_grad: float,
                   clip_gradient: float, clip_weights: float, **_: Any) -> Any:  # fmt: skip
    g = g * rescale_grad + wd * w
    g = g.clamp(-clip_gradient, clip_gradient) if clip_gradient >= 0 else g
    n = (1 - gamma1) * g * g + gamma1 * n
    w = w - lr * g / (n + epsilon).sqrt()
    return (w.clamp(-clip_weights, clip_weights) if clip_weights >= 0 else w), n


@_update
def ftrl_update(w: Any, g: Any, z: Any, n: Any, *, lr: float, lamda1: float, beta: float, wd: float,
                rescale_grad: float, clip_gradient: float, **_: Any) -> Any:  # fmt: skip
    g = _scaled(g, rescale_grad, clip_gradient)
    z = z + g - ((n + g * g).sqrt() - n.sqrt()) * w / lr
    n = n + g * g
    shrunk = (z.abs() - lamda1).clamp(min=0)
    return -z.sign() * shrunk / ((beta + n.sqrt()) / lr + wd), z, n


@_update
def signsgd_update(w: Any, g: Any, *, lr: float, wd: float, rescale_grad: float, clip_gradient: float, **_: Any) -> Any:
    return (1 - lr * wd) * w - lr * g.sign()


@_update
def signum_update(w: Any, g: Any, m: Any, *, lr: float, momentum: float, wd: float, rescale_grad: float,
                  clip_gradient: float, wd_lh: float, **_: Any) -> Any:  # fmt: skip
    m = momentum * m - (1 - momentum) * (wd * w + _scaled(g, rescale_grad, clip_gradient))
    return (1 - lr * wd_lh) * w + lr * m.sign(), m


@_update
def _sparse_adagrad_update(w: Any, g: Any, h: Any, *, lr: float, epsilon: float, wd: float, rescale_grad: float,
                           clip_gradient: float, **_: Any) -> Any:  # fmt: skip
    g = _scaled(g, rescale_grad, clip_gradient)
    h = h + g * g
    return w - lr * g / (h + epsilon).sqrt(), h


def update_of(name: str, attrs: Mapping[str, str]) -> Callable[..., Any]:
    """The rule of an update operator with its attributes, of tensors or of :class:`Tensors`.

    One that is lazy by its attributes changes only rows where the gradient is not zero: MXNet's sparse gradient has no
    others, unless a row that it has is all zeros.
    """
    typed, rule = schema(name).typed(attrs), UPDATES[name]
    lazy = typed.pop("lazy_update", False) and attrs.get("lazy_update") == "True"

    def update(*inputs: Any) -> Any:
        found = rule(*inputs, **typed)
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


def _foreach(name: str) -> Callable[..., Any]:
    """An operation of :class:`Tensors`: one call for all of them."""

    def run(tensors: Tensors, *others: Any) -> Tensors:
        given = [other.parts if isinstance(other, Tensors) else other for other in others]
        return Tensors(getattr(torch(), f"_foreach_{name}")(tensors.parts, *given))

    return run


class Tensors:
    """Several tensors in the place of one in these rules.

    >>> pair = Tensors([torch().ones(2), torch().zeros(3)])
    >>> [part.tolist() for part in (1 - 2 * pair).parts]
    [[-1.0, -1.0], [1.0, 1.0, 1.0]]
    """

    def __init__(self, parts: Sequence[Any]):
        self.parts = list(parts)

    __add__ = __radd__ = _foreach("add")
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

    def to(self, dtype: Any) -> Tensors:
        return Tensors([part.to(dtype) for part in self.parts])
