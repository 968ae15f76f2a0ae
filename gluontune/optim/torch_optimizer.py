"""An optimizer by its card for PyTorch's parameters, and a recipe's rates without mxnet.

Rules of :mod:`gluontune.optim.torch_rules` for all parameters in few calls: a net of 60 small parameters spends more
time on calls than on arithmetic. Muon's matrix products of equal shapes are one batched product.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby
from typing import Any, Callable, NamedTuple

from gluontune.core.errors import UsageError
from gluontune.optim import schedules
from gluontune.optim.cards import OPTIMIZERS
from gluontune.optim.scaling import exempt_name, warmup_mode
from gluontune.optim.torch_rules import TINY, TORCH_RULES, State, kept, orthogonalized
from gluontune.recipe import Recipe
from gluontune.runtime.pytorch import torch


class Part(NamedTuple):
    """A parameter in an update, with the arguments of its rule."""

    state: State
    w: Any
    g: Any
    lr: float
    wd: float
    trusted: bool


#: By the rule of one parameter, ``rule(parts, t, options)``.
FOREACH: dict[Callable[..., None], Callable[[list[Part], int, Mapping[str, Any]], None]] = {}


def _foreach_of(*names: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    def registered(rule: Callable[..., None]) -> Callable[..., None]:
        FOREACH.update({TORCH_RULES[name]: rule for name in names})
        return rule

    return registered


def _by_rate(parts: Iterable[Part]) -> list[list[Part]]:
    """Groups of parts with the same rate and decay, which are scalars of the calls."""

    def rate(part: Part) -> tuple[float, float]:
        return part.lr, part.wd

    return [list(group) for _, group in groupby(sorted(parts, key=rate), key=rate)]


@_foreach_of("nag")
def _nag(parts: list[Part], t: int, o: Mapping[str, Any]) -> None:
    _descend(parts, o["momentum"], True)


@_foreach_of("sgd")
def _sgd(parts: list[Part], t: int, o: Mapping[str, Any]) -> None:
    _descend(parts, o["momentum"], False)


def _descend(parts: list[Part], momentum: float, nesterov: bool) -> None:
    library = torch()
    for group in _by_rate(parts):
        ws, gs, lr, wd = [p.w for p in group], [p.g for p in group], group[0].lr, group[0].wd
        if wd:
            gs = library._foreach_add(gs, ws, alpha=wd)
        if momentum:
            ms = [kept(p.state, "m", p.w) for p in group]
            library._foreach_mul_(ms, momentum)
            library._foreach_add_(ms, gs, alpha=-lr)
            library._foreach_add_(ws, ms, alpha=momentum if nesterov else 1)
        if nesterov or not momentum:
            library._foreach_add_(ws, gs, alpha=-lr)


@_foreach_of("muon")
def _muon(parts: list[Part], t: int, o: Mapping[str, Any]) -> None:
    least = 3 if o["filters_only"] else 2
    rest = [p for p in parts if not p.trusted or p.w.dim() < least]
    if o["rest"] == "nag":
        _descend(rest, o["rest_momentum"], True)
    else:
        for part in rest:
            TORCH_RULES["adamw"](part.state, part.w, part.g, part.lr, part.wd, t, o, part.trusted)
    matrices = [p for p in parts if p.trusted and p.w.dim() >= least]

    def shape(part: Part) -> tuple[int, ...]:
        return tuple(part.w.shape)

    for rated in _by_rate(matrices):
        for _, alike in groupby(sorted(rated, key=shape), key=shape):
            _turn(list(alike), o)


def _turn(parts: list[Part], o: Mapping[str, Any]) -> None:
    """Muon's update of matrices of one shape, one rate and one decay."""
    library = torch()
    ws, gs, lr, wd = [p.w for p in parts], [p.g for p in parts], parts[0].lr, parts[0].wd
    ms = [kept(p.state, "m", p.w) for p in parts]
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


class TorchOptimizer:
    """An optimizer by its card, for PyTorch's parameters with Gluon's names.

    Args:
        name: of ``gt.optim.OPTIMIZERS``. parameters: by name, tensors with gradients.
        schedule: ``num_update -> lr``, counted from 1. momentum, wd: as :func:`gt.optim.setup`'s.
        lr_mult, wd_mult: of single parameters, by name. options: other parameters of the card.

    Raises:
        UsageError: an optimizer that the torch backend lacks.

    >>> import gluontune as gt
    >>> w = torch().nn.Parameter(torch().tensor([[1.0, 2.0]]))
    >>> w.grad = torch().ones_like(w)
    >>> optimizer = TorchOptimizer("sgd", {"fc_weight": w}, lambda n: 0.5, momentum=0.0)
    >>> optimizer.step()
    >>> w.tolist()
    [[0.5, 1.5]]
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
            if self.rule in FOREACH:
                FOREACH[self.rule](parts, self.num_update, self.options)
                return
            for part in parts:
                self.rule(*part[:5], self.num_update, self.options, part.trusted)


def rates_of(recipe: Recipe, *, steps: int, steps_per_epoch: int, growth: Sequence[tuple[float, float]] = ()) -> Any:
    """The schedule of :func:`gt.optim.setup_recipe`, as a function ``num_update -> lr``.

    Args:
        steps: training steps in all. steps_per_epoch: those of one epoch.
        growth: of :func:`gt.optim.schedules.stretch`, if the updates grow.

    >>> recipe = Recipe(schedule="constant", learning_rate=0.1, warmup_epochs=0.5)
    >>> rates = rates_of(recipe, steps=20, steps_per_epoch=20)
    >>> [round(rates(n), 2) for n in (5, 10, 20)]
    [0.05, 0.1, 0.1]
    """
    recipe = recipe.resolved()
    updates = max(1, steps // recipe.accumulate)
    warmup = round(recipe.warmup_epochs * steps_per_epoch / recipe.accumulate)
    rates = schedules.build(
        recipe.schedule,
        base_lr=recipe.scaled_learning_rate,
        total_updates=updates,
        warmup_updates=min(warmup, updates - 1),
        warmup_mode=warmup_mode(recipe.optimizer_params),
        **{"updates_per_epoch": steps_per_epoch / recipe.accumulate, **recipe.schedule_params},
    )
    return schedules.stretch(rates, growth=growth) if growth else rates
