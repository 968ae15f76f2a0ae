"""An optimizer by its card for PyTorch's parameters, and a recipe's rates without mxnet."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from gluontune.core.errors import UsageError
from gluontune.optim import schedules
from gluontune.optim.cards import OPTIMIZERS
from gluontune.optim.scaling import exempt_name, warmup_mode
from gluontune.optim.torch_rules import TORCH_RULES, Part, State
from gluontune.recipe import Recipe
from gluontune.runtime.pytorch import torch


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
            self.rule(parts, self.num_update, self.options)


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
