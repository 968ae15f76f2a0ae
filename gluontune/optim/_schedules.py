"""The class :class:`Schedule`, the functions that check arguments and return one, and the rates of each kind."""

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


def constant(*, base_lr: float) -> Schedule:
    """The same rate at each update.

    >>> constant(base_lr=0.1)(1000)
    0.1
    """
    return Schedule("constant", {"base_lr": base_lr})


def factor(*, base_lr: float, step: float, factor: float = 0.1, stop_factor_lr: float = 1e-8) -> Schedule:
    """Multiply the rate by ``factor`` every ``step`` updates, down to ``stop_factor_lr``.

    Args:
        base_lr: rate at the start.
        step: updates between changes; the first takes effect at update ``step + 1``.
        factor: in (0, 1].
        stop_factor_lr: the lower bound of the rate (1e-8 as in ``mx.lr_scheduler.FactorScheduler``).

    >>> halving = factor(base_lr=1, step=250, factor=0.5)
    >>> halving(250), halving(251), halving(501)
    (1.0, 0.5, 0.25)
    """
    return Schedule("factor", {"base_lr": base_lr, "step": step, "factor": factor, "stop_factor_lr": stop_factor_lr})


def multifactor(*, base_lr: float, steps: Sequence[float], factor: float = 0.1) -> Schedule:
    """Multiply the rate by ``factor`` when ``num_update`` exceeds each of ``steps``.

    Args:
        base_lr: rate at the start.
        steps: rising numbers of updates.
        factor: in (0, 1].

    >>> deck = multifactor(base_lr=1, steps=[250, 750, 900], factor=0.5)
    >>> [deck(n) for n in (250, 251, 751, 901)]
    [1.0, 0.5, 0.25, 0.125]
    """
    if not isinstance(steps, Sequence) or isinstance(steps, str):
        raise UsageError(f"schedule field steps={steps!r}: give one or more numbers that rise")
    steps = tuple(number("steps", step, strict=True) for step in steps)
    if not steps or any(later <= earlier for earlier, later in zip(steps, steps[1:])):
        raise UsageError(f"schedule field steps={list(steps)}: give one or more numbers that rise")
    return Schedule("multifactor", {"base_lr": base_lr, "steps": steps, "factor": factor})


def poly(*, base_lr: float, max_update: float, pwr: float = 2, final_lr: float = 0.0) -> Schedule:
    """Fall from ``base_lr`` to ``final_lr`` over ``max_update`` updates as (1 - n/max_update)^pwr.

    >>> poly(base_lr=1.0, max_update=100, pwr=1)(25)
    0.75
    """
    return Schedule("poly", {"base_lr": base_lr, "max_update": max_update, "pwr": pwr, "final_lr": final_lr})


def cosine(*, base_lr: float, max_update: float, final_lr: float = 0.0) -> Schedule:
    """Fall from ``base_lr`` to ``final_lr`` over ``max_update`` updates as half a cosine wave.

    From Loshchilov & Hutter, "SGDR" (arXiv:1608.03983), without restarts.

    >>> cosine(base_lr=0.4, max_update=100)(50)
    0.2
    """
    return Schedule("cosine", {"base_lr": base_lr, "max_update": max_update, "final_lr": final_lr})


def onecycle(
    *,
    base_lr: float,
    max_update: float,
    pct_start: float = 0.3,
    begin_lr: float | None = None,
    final_lr: float = 0.0,
    shape: str = "linear",
) -> Schedule:
    """Rise to ``base_lr``, then fall to ``final_lr``: one cycle over ``max_update`` updates.

    From Smith & Topin, "Super-Convergence" (arXiv:1708.07120). The first phase is a warm-up; no other is needed.

    Args:
        base_lr: the peak.
        max_update: updates of the whole cycle.
        pct_start: rising share of the cycle, in (0, 1).
        begin_lr: rate at update 0; by default ``base_lr / 25``.
        final_lr: rate at ``max_update`` and after.
        shape: ``linear``, or ``cos`` for half cosine waves.

    >>> cycle = onecycle(base_lr=0.4, max_update=100, begin_lr=0.0)
    >>> cycle(15), cycle(30), cycle(65)
    (0.2, 0.4, 0.2)
    """
    begin_lr = base_lr / 25 if begin_lr is None else begin_lr
    if not 0 < number("pct_start", pct_start) < 1:
        raise UsageError(f"schedule field pct_start={pct_start!r}: give a share between 0 and 1")
    if shape not in ("linear", "cos"):
        raise UsageError(f"schedule field shape={shape!r}: choose linear or cos")
    params = {"base_lr": base_lr, "max_update": max_update, "pct_start": pct_start}
    return Schedule("onecycle", {**params, "begin_lr": begin_lr, "final_lr": final_lr, "shape": shape})


def warmup(schedule: Rate, *, warmup_steps: float, warmup_begin_lr: float = 0.0, mode: str = "linear") -> Schedule:
    """Go from ``warmup_begin_lr`` to the start of ``schedule``, over ``warmup_steps`` updates.

    As in MXNet, steps of ``factor`` and ``multifactor`` count from the first update of the run, and ``poly``,
    ``cosine`` and ``onecycle`` start at the end of the warm-up, compressed so that they end at their ``max_update``.

    Args:
        schedule: a schedule of this module or any function ``num_update -> lr``.
        warmup_steps: updates; 0: no warm-up.
        warmup_begin_lr: rate at update 0.
        mode: ``linear``, ``power2`` (slow first), ``sqrt`` (fast first) or ``constant`` (``warmup_begin_lr``, then a
            jump).

    >>> warm = warmup(cosine(base_lr=1.0, max_update=110), warmup_steps=10)
    >>> warm(5), warm(10), warm(60), warm(110)
    (0.5, 1.0, 0.5, 0.0)
    """
    if mode not in WARMUP_MODES:
        raise UsageError(f"schedule field mode={mode!r}: choose one of {', '.join(WARMUP_MODES)}")
    number("warmup_steps", warmup_steps)
    shift: float = 0
    if isinstance(schedule, Schedule) and "max_update" in schedule.params:
        left = schedule.params["max_update"] - warmup_steps
        if left <= 0:
            raise UsageError(
                f"schedule field warmup_steps={warmup_steps:g}: the schedule itself ends at update "
                f"{schedule.params['max_update']:g}; warm up for less or make the schedule longer"
            )
        schedule, shift = Schedule(schedule.kind, {**schedule.params, "max_update": left}), warmup_steps
    params = {"schedule": schedule, "warmup_steps": warmup_steps, "warmup_begin_lr": warmup_begin_lr}
    return Schedule("warmup", {**params, "mode": mode, "shift": shift})


def join(schedules: Sequence[Rate], *, boundaries: Sequence[float]) -> Schedule:
    """One schedule after the other; each but the first counts from its boundary.

    Args:
        schedules: k functions ``num_update -> lr``.
        boundaries: k - 1 rising numbers of updates; the next schedule starts after them.

    >>> both = join([constant(base_lr=1), cosine(base_lr=0.5, max_update=10)], boundaries=[100])
    >>> both(100), both(105)
    (1, 0.25)
    """
    schedules, boundaries = tuple(schedules), tuple(number("boundaries", b) for b in boundaries)
    if len(schedules) != len(boundaries) + 1:
        raise UsageError(f"schedule field boundaries: {len(schedules)} schedules need one boundary fewer")
    if any(later <= earlier for earlier, later in zip(boundaries, boundaries[1:])):
        raise UsageError(f"schedule field boundaries={list(boundaries)}: give numbers that rise")
    return Schedule("join", {"schedules": schedules, "boundaries": boundaries})


def scale(schedule: Rate, *, by: float) -> Schedule:
    """``schedule`` with each rate multiplied by ``by``.

    >>> scale(constant(base_lr=0.1), by=4)(1)
    0.4
    """
    return Schedule("scale", {"schedule": schedule, "by": by})


def in_epochs(schedule: Rate, *, updates_per_epoch: float) -> Schedule:
    """``schedule`` in epochs, called with updates.

    >>> rate = in_epochs(multifactor(base_lr=1, steps=[30, 60], factor=0.5), updates_per_epoch=10)
    >>> rate(300), rate(301)
    (1.0, 0.5)
    """
    return Schedule("in_epochs", {"schedule": schedule, "updates_per_epoch": updates_per_epoch})


def stretch(schedule: Rate, *, growth: Sequence[tuple[float, float]]) -> Schedule:
    """``schedule`` of a run with growing updates: the rate follows images, not updates.

    Args:
        schedule: for updates of the first size.
        growth: rising numbers of updates, each with the size of later updates in first ones.

    >>> falling = poly(base_lr=1.0, max_update=10, pwr=1)
    >>> [stretch(falling, growth=[(4, 2), (6, 4)])(n) for n in (4, 5, 6, 6.5)]
    [0.6, 0.4, 0.19999999999999996, 0.0]
    """
    parts = tuple((number("growth", after), number("growth", by, strict=True)) for after, by in growth)
    if any(later[0] < earlier[0] for earlier, later in zip(parts, parts[1:])):
        raise UsageError(f"schedule field growth={list(growth)}: give numbers of updates that rise")
    return Schedule("stretch", {"schedule": schedule, "growth": parts})
