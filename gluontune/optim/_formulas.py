"""Rules of one parameter, ``rule(xp, w, g, states, lr, wd, t, o)``, in operators of both MXNet's and PyTorch's arrays.

They change the weight and its states in place. ``xp`` is ``mx.nd`` or ``torch``, ``g`` the averaged, clipped gradient,
``t`` the number of the update, from 1 on, ``o`` the optimizer's options by name.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

Options = Mapping[str, Any]


class Formula(NamedTuple):
    """A rule and its states: their names, and those that begin as copies of the weight; others begin as zeros."""

    rule: Callable[..., None]
    states: tuple[str, ...]
    copies: tuple[str, ...] = ()


def dcasgd(xp: Any, w: Any, g: Any, states: Sequence[Any], lr: float, wd: float, t: int, o: Options) -> None:
    """m = momentum m - lr (g + wd w + lamda g² (w - w')); w += m, w' being the weight before the last update."""
    m, before = states
    m[:] = o["momentum"] * m - lr * (_decayed(g + o["lamda"] * g * g * (w - before), w, wd))
    before[:] = w
    w += m


def ftml(xp: Any, w: Any, g: Any, states: Sequence[Any], lr: float, wd: float, t: int, o: Options) -> None:
    """v = b2 v + (1-b2) g²; w -= lr (1-b1)/(1-b1^t) g / (√(v/(1-b2^t)) + epsilon), with wd w added to g.

    The paper has d = (1-b1^t)/lr (√(v/(1-b2^t)) + epsilon); z = b1 z + (1-b1) g - (d - b1 d') w; w = -z/d. As each
    weight is -z'/d' of the step before, this is w -= (1-b1) g/d, which needs neither d nor z, and allows a rate of 0.
    """
    (v,) = states
    g = _decayed(g, w, wd)
    v[:] = o["beta2"] * v + (1 - o["beta2"]) * g * g
    scale = xp.sqrt(v / (1 - o["beta2"] ** t)) + o["epsilon"]
    w -= lr * (1 - o["beta1"]) / (1 - o["beta1"] ** t) * (g / scale)


def adadelta(xp: Any, w: Any, g: Any, states: Sequence[Any], lr: float, wd: float, t: int, o: Options) -> None:
    """a = rho a + (1-rho) g²; s = √(b+epsilon)/√(a+epsilon) g; b = rho b + (1-rho) s²; w -= lr s, wd w added to g."""
    squares, steps = states
    g = _decayed(g, w, wd)
    squares[:] = o["rho"] * squares + (1 - o["rho"]) * g * g
    step = xp.sqrt(steps + o["epsilon"]) / xp.sqrt(squares + o["epsilon"]) * g
    steps[:] = o["rho"] * steps + (1 - o["rho"]) * step * step
    w -= lr * step


def adamax(xp: Any, w: Any, g: Any, states: Sequence[Any], lr: float, wd: float, t: int, o: Options) -> None:
    """m = b1 m + (1-b1) g; u = max(b2 u, |g|); w -= lr/(1-b1^t) m / (u + epsilon), with wd w added to g."""
    m, largest = states
    g = _decayed(g, w, wd)
    m[:] = o["beta1"] * m + (1 - o["beta1"]) * g
    largest[:] = xp.maximum(o["beta2"] * largest, xp.abs(g))
    w -= lr / (1 - o["beta1"] ** t) * m / (largest + o["epsilon"])


def nadam(xp: Any, w: Any, g: Any, states: Sequence[Any], lr: float, wd: float, t: int, o: Options) -> None:
    """Adam whose step looks ahead with the momentum of the next one; the momentum warms up by ``schedule_decay``."""
    m, v = states
    g = _decayed(g, w, wd)
    products, momentum = _momenta(o["beta1"], o["schedule_decay"], t + 1)
    m[:] = o["beta1"] * m + (1 - o["beta1"]) * g
    v[:] = o["beta2"] * v + (1 - o["beta2"]) * g * g
    ahead = (1 - momentum[t]) / (1 - products[t]) * g + momentum[t + 1] / (1 - products[t + 1]) * m
    w -= lr * ahead / (xp.sqrt(v / (1 - o["beta2"] ** t)) + o["epsilon"])


def _decayed(g: Any, w: Any, wd: float) -> Any:
    return g + wd * w if wd else g


_MOMENTA: dict[tuple[float, float], tuple[list[float], list[float]]] = {}


def _momenta(beta1: float, decay: float, t: int) -> tuple[list[float], list[float]]:
    """The momenta of the updates up to ``t`` (from place 1 on), and the products of all up to each."""
    products, momenta = _MOMENTA.setdefault((beta1, decay), ([1.0], [1.0]))
    while len(momenta) <= t:
        momenta.append(beta1 * (1 - 0.5 * 0.96 ** (len(momenta) * decay)))
        products.append(products[-1] * momenta[-1])
    return products, momenta


#: By an optimizer's name.
FORMULAS = {
    "dcasgd": Formula(dcasgd, ("m", "before"), copies=("before",)), "ftml": Formula(ftml, ("v",)),
    "adadelta": Formula(adadelta, ("squares", "steps")), "adamax": Formula(adamax, ("m", "largest")),
    "nadam": Formula(nadam, ("m", "v")),
}  # fmt: skip
