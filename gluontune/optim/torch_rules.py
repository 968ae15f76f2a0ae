"""The optimizers for PyTorch's tensors, with the states and exemptions of the MXNet side: PyTorch's of the same names
apply the rate, the decay and the bias corrections elsewhere.

A rule takes all parameters: a net of 60 small ones spends more time on calls than on arithmetic, so that the rules of
SGD, Adam and Muon make few calls (on a GPU: few kernels) for all of them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import groupby
from typing import Any, NamedTuple

from gluontune.core.errors import UsageError
from gluontune.optim._formulas import FORMULAS, Options
from gluontune.optim.cards import OPTIMIZERS, exempt_name
from gluontune.recipe.registry import Registry
from gluontune.runtime.pytorch import torch

State = dict[str, Any]
TINY = 1e-14  # a matrix of zeros stays zero


class Part(NamedTuple):
    """A parameter in an update: its state, weight, gradient, rate, decay, and whether trust ratios apply to it."""

    state: State
    w: Any
    g: Any
    lr: float
    wd: float
    trusted: bool

    def kept(self, name: str) -> Any:
        """The array ``name`` of the state; zeros before the first update."""
        if name not in self.state:
            self.state[name] = torch().zeros_like(self.w)
        return self.state[name]

    def decayed(self, g: Any) -> Any:
        """``g`` with the weight decay added."""
        return g.add(self.w, alpha=self.wd) if self.wd else g


Rule = Callable[[list[Part], int, Options], None]
#: By an optimizer's name, ``rule(parts, t, options)``: changes weights and states in place.
TORCH_RULES: Registry[Rule] = Registry("optimizer of the torch backend")


def one_by_one(rule: Callable[[Part, int, Options], None]) -> Rule:
    """The rule of all parameters from the ``rule`` of one."""

    def of_all(parts: list[Part], t: int, o: Options) -> None:
        for part in parts:
            rule(part, t, o)

    return of_all


def by_formula(rule: Callable[..., None], states: Sequence[str], copies: Sequence[str]) -> Rule:
    """The rule of all parameters from a :class:`~gluontune.optim._formulas.Formula`."""

    def of_all(parts: list[Part], t: int, o: Options) -> None:
        for part in parts:
            for copied in copies:
                part.state.setdefault(copied, part.w.clone())
            rule(torch(), part.w, part.g, [part.kept(name) for name in states], part.lr, part.wd, t, o)

    return of_all


def _by_rate(parts: Iterable[Part]) -> list[list[Part]]:
    """Groups of parts with the same rate and decay, which are scalars of the calls."""

    def rate(part: Part) -> tuple[float, float]:
        return part.lr, part.wd

    return [list(group) for _, group in groupby(sorted(parts, key=rate), key=rate)]


def _descend(parts: list[Part], t: int, o: Options, nesterov: bool = False, by: str = "momentum") -> None:
    library, momentum = torch(), o[by]
    for group in _by_rate(parts):
        ws, gs, lr, wd = [p.w for p in group], [p.g for p in group], group[0].lr, group[0].wd
        if wd:
            gs = library._foreach_add(gs, ws, alpha=wd)
        if momentum:
            ms = [p.kept("m") for p in group]
            library._foreach_mul_(ms, momentum)
            library._foreach_add_(ms, gs, alpha=-lr)
            library._foreach_add_(ws, ms, alpha=momentum if nesterov else 1)
        if nesterov or not momentum:
            library._foreach_add_(ws, gs, alpha=-lr)


def _nag(parts: list[Part], t: int, o: Options) -> None:
    _descend(parts, t, o, nesterov=True)


def _signum(p: Part, t: int, o: Options) -> None:
    m = p.kept("m").mul_(o["momentum"]).add_(p.decayed(p.g), alpha=1 - o["momentum"])
    p.w.mul_(1 - p.lr * o["wd_lh"]).sub_(m.sign(), alpha=p.lr)


def _adagrad(p: Part, t: int, o: Options) -> None:
    v = p.kept("v").addcmul_(p.g, p.g)
    p.w.sub_(p.decayed(p.g / (v + o["eps"]).sqrt_()), alpha=p.lr)


def _rmsprop(p: Part, t: int, o: Options) -> None:
    g = p.decayed(p.g)
    v = p.kept("v").mul_(o["gamma1"]).addcmul_(g, g, value=1 - o["gamma1"])
    if o["centered"]:
        mean = p.kept("mean").mul_(o["gamma1"]).add_(g, alpha=1 - o["gamma1"])
        scale = (v - mean * mean).add_(o["epsilon"]).sqrt_()
        p.w.add_(p.kept("delta").mul_(o["gamma2"]).addcdiv_(g, scale, value=-p.lr))
    else:
        p.w.addcdiv_(g, (v + o["epsilon"]).sqrt_(), value=-p.lr)
    if o["clip_weights"]:
        p.w.clamp_(-o["clip_weights"], o["clip_weights"])


def _adaptive(parts: list[Part], t: int, o: Options, decoupled: bool = False) -> None:
    library = torch()
    bias = math.sqrt(1 - o["beta2"] ** t)
    for group in _by_rate(parts):
        ws, gs, lr, wd = [p.w for p in group], [p.g for p in group], group[0].lr, group[0].wd
        ms, vs = [p.kept("m") for p in group], [p.kept("v") for p in group]
        if wd and decoupled:
            library._foreach_mul_(ws, 1 - lr * wd)
        elif wd:
            gs = library._foreach_add(gs, ws, alpha=wd)
        library._foreach_lerp_(ms, gs, 1 - o["beta1"])
        library._foreach_mul_(vs, o["beta2"])
        library._foreach_addcmul_(vs, gs, gs, 1 - o["beta2"])
        scales = library._foreach_sqrt(vs)
        if decoupled:
            library._foreach_div_(scales, bias)
        library._foreach_add_(scales, o["epsilon"])
        rate = lr / (1 - o["beta1"] ** t) * (1 if decoupled else bias)
        library._foreach_addcdiv_(ws, ms, scales, -rate)


def _adamw(parts: list[Part], t: int, o: Options) -> None:
    _adaptive(parts, t, o, decoupled=True)


def _lamb(p: Part, t: int, o: Options) -> None:
    m = p.kept("m").lerp_(p.g, 1 - o["beta1"])
    v = p.kept("v").mul_(o["beta2"]).addcmul_(p.g, p.g, value=1 - o["beta2"])
    turn = p.decayed(m / (1 - o["beta1"] ** t) / (v / (1 - o["beta2"] ** t)).sqrt_().add_(o["epsilon"]))
    lr: Any = p.lr
    if p.trusted:
        weight, step = p.w.norm(), turn.norm()
        if o["lower_bound"] is not None or o["upper_bound"] is not None:
            weight = weight.clamp(o["lower_bound"], o["upper_bound"])
        lr = lr * torch().where((weight > 0) & (step > 0), weight / step, torch().ones_like(weight))
    p.w.sub_(lr * turn)


def _novograd(p: Part, t: int, o: Options) -> None:
    square = (p.g * p.g).sum()
    v = p.state["v"] = square if t == 1 else p.state["v"].lerp(square, 1 - o["beta2"])
    m = p.kept("m").mul_(o["beta1"]).add_(p.decayed(p.g / (v.sqrt() + o["epsilon"])))
    p.w.sub_(m, alpha=p.lr)


def _lars(p: Part, t: int, o: Options, limit: bool = False) -> None:
    """SGD with momentum at a layer's rate: ``lr`` times its trust ratio, or at most that ratio (LARC)."""
    rate: Any = p.lr
    if p.trusted:
        weight, gradient = p.w.norm(), p.g.norm()
        ratio = o["trust_coefficient"] * weight / (gradient + p.wd * weight + o["eps"])
        whole = torch().full_like(ratio, p.lr)
        rate = torch().where((weight > 0) & (gradient > 0), ratio.minimum(whole) if limit else ratio * whole, whole)
    p.w.add_(p.kept("m").mul_(o["momentum"]).sub_(rate * p.decayed(p.g)))


def _larc(p: Part, t: int, o: Options) -> None:
    _lars(p, t, o, limit=True)


def _muon(parts: list[Part], t: int, o: Options) -> None:
    least = 3 if o["filters_only"] else 2
    matrices = [p for p in parts if p.trusted and p.w.dim() >= least]
    rest = [p for p in parts if not (p.trusted and p.w.dim() >= least)]
    if o["rest"] == "nag":
        _descend(rest, t, o, nesterov=True, by="rest_momentum")
    elif o["rest"] == "adamw":
        _adaptive(rest, t, o, decoupled=True)

    def shape(part: Part) -> tuple[int, ...]:
        return tuple(part.w.shape)

    for rated in _by_rate(matrices):
        for _, alike in groupby(sorted(rated, key=shape), key=shape):
            _turn(list(alike), o)


def _turn(parts: list[Part], o: Mapping[str, Any]) -> None:
    """Muon's update of matrices of one shape, one rate and one decay."""
    library = torch()
    ws, gs, lr, wd = [p.w for p in parts], [p.g for p in parts], parts[0].lr, parts[0].wd
    ms = [p.kept("m") for p in parts]
    library._foreach_mul_(ms, o["momentum"])
    library._foreach_add_(ms, gs)
    ahead = library.stack(library._foreach_add(gs, ms, alpha=o["momentum"]))
    x = orthogonalized(ahead.reshape(*ahead.shape[:2], -1), o["ns_steps"])
    scale = 0.2 * math.sqrt(max(x.shape[1:]))
    if o["fixed_norm"]:
        scale = 1.0
        for w in ws:
            w.mul_(math.sqrt(len(w)) / (w.norm() + TINY))
    elif wd:
        library._foreach_mul_(ws, 1 - lr * wd)
    library._foreach_add_(ws, list(x.reshape(ahead.shape).unbind()), alpha=-lr * scale)


def orthogonalized(x: Any, steps: int) -> Any:
    """Quintic Newton-Schulz steps of matrices (n, rows, columns); as ``gluontune.optim.layerwise.orthogonalized``."""
    tall = x.shape[1] > x.shape[2]
    x = x.mT if tall else x
    x = x / (torch().linalg.matrix_norm(x, keepdim=True) + TINY)
    for _ in range(steps):
        gram = x @ x.mT
        x = torch().baddbmm(x, torch().baddbmm(gram, gram, gram, alpha=2.0315, beta=-4.7750), x, beta=3.4445)
    return x.mT if tall else x


_OF_ALL: dict[str, Rule] = {
    "lbsgd": _descend, "sgd": _descend, "nag": _nag, "adam": _adaptive, "adamw": _adamw, "muon": _muon,
}  # fmt: skip
_OF_ONE: dict[str, Callable[[Part, int, Options], None]] = {
    "signum": _signum, "adagrad": _adagrad, "rmsprop": _rmsprop, "lamb": _lamb,
    "novograd": _novograd, "lars": _lars, "larc": _larc,
}  # fmt: skip
for _name, _all in _OF_ALL.items():
    TORCH_RULES.add(_name, _all)
for _name, _rule in _OF_ONE.items():
    TORCH_RULES.add(_name, one_by_one(_rule))
for _name, _formula in FORMULAS.items():
    TORCH_RULES.add(_name, by_formula(_formula.rule, _formula.states, _formula.copies))


class TorchOptimizer:
    """An optimizer by its card, for PyTorch's parameters with Gluon's names.

    Args:
        name: of ``gt.optim.OPTIMIZERS``. parameters: by name, tensors with gradients.
        schedule: ``num_update -> lr``, counted from 1. momentum, wd: as :func:`gt.optim.setup`'s.
        lr_mult, wd_mult: of single parameters, by name. options: other parameters of the card.

    Raises:
        UsageError: an optimizer that the torch backend lacks.
    """

    def __init__(
        self, name: str, parameters: Mapping[str, Any], schedule: Callable[[int], float], *,
        momentum: float = 0.9, wd: float = 0.0, lr_mult: Mapping[str, float] | None = None,
        wd_mult: Mapping[str, float] | None = None, **options: Any,
    ):  # fmt: skip
        card = OPTIMIZERS[name]
        if card.name not in TORCH_RULES.names():
            raise UsageError(
                f"optimizer {name!r}: the torch backend has {', '.join(TORCH_RULES.names())}; use one of them, or "
                "backend='mxnet'"
            )
        card.check(options)
        self.name, self.rule, self.schedule, self.wd = name, TORCH_RULES[card.name], schedule, wd
        if card.name == "lbsgd" and options.get("warmup_strategy") == "lars":
            self.rule = TORCH_RULES["lars"]
        self.options = {"eps": 0.0, **card.defaults, "momentum": momentum, **options}
        self.parameters = dict(parameters)
        self.lr_mult, self.wd_mult = lr_mult or {}, wd_mult or {}
        self.num_update = 0
        self.states: dict[str, State] = {name: {} for name in self.parameters}

    @property
    def learning_rate(self) -> float:
        """The rate of the next update."""
        return self.schedule(self.num_update + 1)

    def step(self, factor: Any = 1.0) -> None:
        """One update from the parameters' gradients, each multiplied by ``factor``."""
        self.num_update += 1
        lr = self.schedule(self.num_update)
        limit = self.options.get("clip_gradient")
        parts = []
        with torch().no_grad():
            for name, w in self.parameters.items():
                g = w.grad
                if g is None:
                    continue
                g = g if isinstance(factor, float) and factor == 1.0 else g * factor
                if limit and limit > 0:
                    g = g.clamp(-limit, limit)
                trusted = not (exempt_name(name) or w.dim() <= 1)
                rate = lr * self.lr_mult.get(name, 1.0)
                decay = self.wd * self.wd_mult.get(name, 1.0 if trusted else 0.0)
                parts.append(Part(self.states[name], w, g, rate, decay, trusted))
            self.rule(parts, self.num_update, self.options)
