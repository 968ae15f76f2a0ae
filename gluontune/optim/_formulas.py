"""Optimizers that are one formula: a rule of one parameter, in operators of both MXNet's and PyTorch's arrays.

``rule(xp, w, g, states, lr, wd, t, o)`` changes the weight and its states in place. ``xp`` is ``mx.nd`` or ``torch``,
``g`` the averaged, clipped gradient, ``t`` the number of the update, from 1 on, ``o`` the optimizer's options by name.
With its card it is the whole of an optimizer: MXNet's class, PyTorch's rule and the entry of the registry are made of
both (``elementwise.py``, ``torch_rules.py``, ``cards.py``).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

Options = Mapping[str, Any]


class Formula(NamedTuple):
    """A rule, its states and its card.

    ``kind``: the class is called ``GT`` and this. ``places``: its arguments in MXNet's order, with the card's values as
    defaults. ``copies``: states that begin as the weight; others begin as zeros.
    ``clips_decayed``: ``clip_gradient`` limits the gradient with decay added to it, as in MXNet's optimizer of the
    name. ``card``: fields of the :class:`~gluontune.optim.cards.OptimizerCard`, but for name, path, rule (the first
    line of the docstring) and states; its ``defaults`` are the rule's options.
    """

    kind: str
    places: tuple[str, ...]
    rule: Callable[..., None]
    states: tuple[str, ...]
    copies: tuple[str, ...]
    clips_decayed: bool
    card: Mapping[str, Any]


#: By an optimizer's name.
FORMULAS: dict[str, Formula] = {}


def _formula(
    kind: str,
    states: tuple[str, ...],
    places: tuple[str, ...],
    copies: tuple[str, ...] = (),
    clips_decayed: bool = False,
    **card: Any,
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    def add(rule: Callable[..., None]) -> Callable[..., None]:
        FORMULAS[kind.lower()] = Formula(kind, places, rule, states, copies, clips_decayed, card)
        return rule

    return add


# fmt: off

@_formula("DCASGD", ("m", "before"), ("momentum", "lamda"), copies=("before",),
    source="Zheng et al., arXiv:1609.08326", learning_rate=0.1, defaults={"lamda": 0.04, "clip_gradient": None},
    momentum=True,
    when="Asynchronous workers (dist_async), whose gradients are one update old.",
    when_not="Synchronous training: nothing is delayed, so the correction only adds cost.",
    instead_of="MXNet's raises with momentum: it asks an array for its truth.")
def dcasgd(xp: Any, w: Any, g: Any, states: Sequence[Any], lr: float, wd: float, t: int, o: Options) -> None:
    """m = momentum m - lr (g + wd w + lamda g² (w - w')); w += m, w' being the weight before the last update."""
    m, before = states
    m[:] = o["momentum"] * m - lr * (_decayed(g + o["lamda"] * g * g * (w - before), w, wd))
    before[:] = w
    w += m


@_formula("FTML", ("v",), ("beta1", "beta2", "epsilon"), clips_decayed=True,
    source="Zheng & Kwok, ICML 2017", learning_rate=0.0025,
    defaults={"beta1": 0.6, "beta2": 0.999, "epsilon": 1e-8, "clip_gradient": None}, lr_scaling="sqrt",
    when="As adam with half its states, where the best solution moves during training.",
    when_not="Where momentum matters: its averaging of gradients cancels out of the unconstrained rule.",
    instead_of="MXNet's keeps three states, loses digits, and gives NaN when a schedule ends at 0.")
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


@_formula("AdaDelta", ("squares", "steps"), ("rho", "epsilon", "learning_rate"),
    source="Zeiler, arXiv:1212.5701", learning_rate=1.0,
    defaults={"rho": 0.9, "epsilon": 1e-5, "clip_gradient": None}, lr_scaling="none",
    when="When nothing is known about the scale of the problem and nothing shall be tuned.",
    when_not="When accuracy counts: it starts slowly and seldom ends best.",
    instead_of="MXNet's ignores the rate and every schedule, and overwrites Gluon's gradient.")
def adadelta(xp: Any, w: Any, g: Any, states: Sequence[Any], lr: float, wd: float, t: int, o: Options) -> None:
    """a = rho a + (1-rho) g²; s = √(b+epsilon)/√(a+epsilon) g; b = rho b + (1-rho) s²; w -= lr s, wd w added to g."""
    squares, steps = states
    g = _decayed(g, w, wd)
    squares[:] = o["rho"] * squares + (1 - o["rho"]) * g * g
    step = xp.sqrt(steps + o["epsilon"]) / xp.sqrt(squares + o["epsilon"]) * g
    steps[:] = o["rho"] * steps + (1 - o["rho"]) * step * step
    w -= lr * step


@_formula("AdaMax", ("m", "largest"), ("learning_rate", "beta1", "beta2", "epsilon"), clips_decayed=True,
    source="Kingma & Ba, arXiv:1412.6980, section 7", learning_rate=0.002,
    defaults={"beta1": 0.9, "beta2": 0.999, "epsilon": 1e-8, "clip_gradient": None}, lr_scaling="sqrt",
    when="As adam where single gradients are huge: the step never exceeds the rate.",
    when_not="By default: it is slower to forget a large gradient than adam.",
    instead_of="MXNet's has no epsilon: a weight whose first gradient is 0 becomes NaN.")
def adamax(xp: Any, w: Any, g: Any, states: Sequence[Any], lr: float, wd: float, t: int, o: Options) -> None:
    """m = b1 m + (1-b1) g; u = max(b2 u, |g|); w -= lr/(1-b1^t) m / (u + epsilon), with wd w added to g."""
    m, largest = states
    g = _decayed(g, w, wd)
    m[:] = o["beta1"] * m + (1 - o["beta1"]) * g
    largest[:] = xp.maximum(o["beta2"] * largest, xp.abs(g))
    w -= lr / (1 - o["beta1"] ** t) * m / (largest + o["epsilon"])


@_formula("Nadam", ("m", "v"), ("learning_rate", "beta1", "beta2", "epsilon", "schedule_decay"),
    clips_decayed=True,
    source="Dozat, ICLR workshop 2016", learning_rate=0.001,
    defaults={"beta1": 0.9, "beta2": 0.999, "epsilon": 1e-8, "schedule_decay": 0.004, "clip_gradient": None},
    lr_scaling="sqrt",
    when="Recurrent nets, where it is sometimes a little faster than adam.",
    when_not="With weight decay: as adam.",
    instead_of="MXNet's advances its momentum product once a parameter, so replicas drift and depth changes it.")
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
