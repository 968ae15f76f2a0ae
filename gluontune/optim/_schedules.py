"""The class :class:`Schedule` and the rates of each kind, which ``migrate`` copies by their names."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gluontune.core.errors import UsageError

Rate = Callable[[float], float]

# Completed share of the warm-up (0 … 1) -> share of the way from warmup_begin_lr to the target, by the names of
# mx.optimizer.LBSGD's warmup_strategy and mx.lr_scheduler's warmup_mode.
WARMUP_MODES: dict[str, Callable[[float], float]] = {
    "linear": lambda done: done,
    "constant": lambda done: 0.0,
    "power2": lambda done: done * done,
    "sqrt": math.sqrt,
}


@dataclass(frozen=True)
class Schedule:
    """A named pure function of ``num_update``: it compares, pickles, prints and converts to JSON.

    Args:
        kind: the rule; a name of :data:`SCHEDULES`, or ``warmup``, ``join``, ``scale``, ``in_epochs``, ``stretch``.
        params: the rule's arguments; other schedules may be among them.

    >>> from gluontune.optim.schedules import cosine
    >>> Schedule.from_dict(cosine(base_lr=0.4, max_update=10).to_dict())(5)
    0.2
    """

    kind: str
    params: Mapping[str, Any]

    def __post_init__(self) -> None:
        for name, value in self.params.items():
            if name in _NUMBERS:
                number(name, value, **_NUMBERS[name])

    def __call__(self, num_update: float) -> float:
        if not num_update >= 0:
            raise UsageError(f"num_update={num_update!r}: a schedule is asked for updates from 0 on")
        return _RULES[self.kind](num_update, **self.params)

    def __hash__(self) -> int:
        return hash((self.kind, repr(sorted(self.params.items()))))

    def to_dict(self) -> dict[str, Any]:
        """Plain values, ready for JSON; refuses the user's functions."""
        return {"kind": self.kind, **{name: _plain(name, value) for name, value in self.params.items()}}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Schedule:
        """The schedule from the values of :meth:`to_dict`."""
        params = {name: _revived(value) for name, value in values.items() if name != "kind"}
        if values.get("kind") not in _RULES:
            raise UsageError(f"schedule kind {values.get('kind')!r}: choose one of {', '.join(_RULES)}")
        return cls(values["kind"], params)


def _plain(name: str, value: Any) -> Any:
    if isinstance(value, Schedule):
        return value.to_dict()
    if isinstance(value, (list, tuple)):
        return [_plain(name, item) for item in value]
    if callable(value):
        raise UsageError(f"schedule field {name!r} holds a function of your own, which cannot be written down")
    return value


def _revived(value: Any) -> Any:
    if isinstance(value, Mapping) and "kind" in value:
        return Schedule.from_dict(value)
    if isinstance(value, list):
        return tuple(_revived(item) for item in value)
    return value


def number(name: str, value: Any, low: float = 0.0, high: float = math.inf, strict: bool = False) -> Any:
    """``value`` if it is a finite number of ``low`` … ``high`` (``strict``: above ``low``)."""
    good = isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)
    if not good or not low <= value <= high or (strict and value == low):
        bound = f"above {low:g}" if strict else f"of at least {low:g}"
        top = f" and at most {high:g}" if high < math.inf else ""
        raise UsageError(f"schedule field {name}={value!r}: give a finite number {bound}{top}")
    return value


_ABOVE_0: dict[str, Any] = {"strict": True}
#: Bounds of parameters by name, whatever the rule.
_NUMBERS: dict[str, dict[str, Any]] = {
    "base_lr": {}, "begin_lr": {}, "final_lr": {}, "stop_factor_lr": {}, "warmup_begin_lr": {}, "warmup_steps": {},
    "by": {}, "step": _ABOVE_0, "max_update": _ABOVE_0, "pwr": _ABOVE_0, "updates_per_epoch": _ABOVE_0,
    "factor": {"high": 1.0, **_ABOVE_0},
}  # fmt: skip


def _factor_rate(n: float, base_lr: float, step: float, factor: float, stop_factor_lr: float) -> float:
    if n <= step:
        return float(base_lr)
    return max(stop_factor_lr, base_lr * factor ** (math.ceil(n / step) - 1))


def _multifactor_rate(n: float, base_lr: float, steps: Sequence[float], factor: float) -> float:
    return base_lr * factor ** sum(n > step for step in steps)


def _poly_rate(n: float, base_lr: float, max_update: float, pwr: float, final_lr: float) -> float:
    return final_lr + (base_lr - final_lr) * (1 - min(n, max_update) / max_update) ** pwr


def _half_wave(n: float, length: float, first: float, last: float) -> float:
    return last + (first - last) * (1 + math.cos(math.pi * min(n / length, 1.0))) / 2


def _cosine_rate(n: float, base_lr: float, max_update: float, final_lr: float) -> float:
    return _half_wave(n, max_update, base_lr, final_lr)


def _line(n: float, length: float, first: float, last: float) -> float:
    return first + (last - first) * min(n / length, 1.0)


def _onecycle_rate(
    n: float, base_lr: float, max_update: float, pct_start: float, begin_lr: float, final_lr: float, shape: str
) -> float:
    between = _line if shape == "linear" else _half_wave
    peak = pct_start * max_update
    if n <= peak:
        return between(n, peak, begin_lr, base_lr)
    return between(n - peak, max_update - peak, base_lr, final_lr)


def _warmup_rate(
    n: float, schedule: Rate, warmup_steps: float, warmup_begin_lr: float, mode: str, shift: float
) -> float:
    if n >= warmup_steps:
        return schedule(n - shift)
    target = schedule(warmup_steps - shift)
    return warmup_begin_lr + (target - warmup_begin_lr) * WARMUP_MODES[mode](n / warmup_steps)


def _join_rate(n: float, schedules: Sequence[Rate], boundaries: Sequence[float]) -> float:
    place = sum(n > boundary for boundary in boundaries)
    return schedules[place](n - (boundaries[place - 1] if place else 0))


def _stretch_rate(n: float, schedule: Rate, growth: Sequence[Sequence[float]]) -> float:
    usual, last, each = 0.0, 0.0, 1.0
    for updates, factor in growth:
        if n <= updates:
            break
        usual, last, each = usual + (updates - last) * each, updates, factor
    return schedule(usual + (n - last) * each)


_RULES: dict[str, Callable[..., float]] = {
    "constant": lambda n, base_lr: base_lr, "factor": _factor_rate, "multifactor": _multifactor_rate,
    "poly": _poly_rate, "cosine": _cosine_rate, "onecycle": _onecycle_rate, "warmup": _warmup_rate,
    "join": _join_rate, "stretch": _stretch_rate, "scale": lambda n, schedule, by: schedule(n) * by,
    "in_epochs": lambda n, schedule, updates_per_epoch: schedule(n / updates_per_epoch),
}  # fmt: skip
