"""Learning-rate schedules as pure functions ``num_update -> lr``; imports no mxnet.

The convention is MXNet's: the rate of the k-th update is ``schedule(k)``, counted from 1, and a step takes effect when
``num_update`` *exceeds* it. Unlike MXNet's schedulers these have no state, so that a resumed or repeated run gets the
same rates. Adapters to and from ``mx.lr_scheduler.LRScheduler`` are in :mod:`gluontune.optim._base`.

>>> rate = warmup(multifactor(base_lr=0.9, steps=[100, 200], factor=0.1), warmup_steps=10)
>>> [round(rate(n), 6) for n in (0, 5, 10, 100, 101, 201)]
[0.0, 0.45, 0.9, 0.9, 0.09, 0.009]
"""

from __future__ import annotations

import functools
import inspect
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from gluontune.core.errors import UsageError, did_you_mean
from gluontune.optim._schedules import (
    WARMUP_MODES,
    Rate,
    Schedule,
    constant,
    cosine,
    factor,
    in_epochs,
    join,
    multifactor,
    number,
    onecycle,
    poly,
    scale,
    stretch,
    warmup,
)
from gluontune.recipe.registry import Registry

__all__ = [
    "SCHEDULES", "Schedule", "ScheduleCard", "WARMUP_MODES", "build", "constant", "cosine", "factor", "in_epochs",
    "join", "multifactor", "onecycle", "poly", "scale", "stretch", "warmup",
]  # fmt: skip


_UNITS = ("updates", "epochs")


@dataclass(frozen=True)
class ScheduleCard:
    """A schedule: the function that makes it, a sentence, whether it needs the length of the run, when to use it."""

    make: Callable[..., Schedule]
    summary: str
    has_end: bool
    when: str

    @property
    def params(self) -> list[str]:
        """Names of the arguments besides ``base_lr``."""
        return list(_params_of(self.make))

    def check(self, params: Mapping[str, Any]) -> None:
        """Refuse unknown ``schedule_params`` and values out of range.

        Raises:
            UsageError: names the parameter, the value and the way out.

        >>> SCHEDULES["factor"].check({"factor": 2})
        Traceback (most recent call last):
        gluontune.errors.UsageError: schedule field factor=2: give a finite number above 0 and at most 1
        """
        unit = params.get("unit", "updates")
        if unit not in _UNITS:
            raise UsageError(f"schedule unit={unit!r}: choose one of {', '.join(_UNITS)}")
        given = {name: value for name, value in params.items() if name != "unit"}
        _check_params(self, given)
        lengths = {"step": 1, "steps": [1], "max_update": 1}  # stand-ins for those of the run
        self.make(base_lr=1.0, **{n: v for n, v in {**lengths, **given}.items() if n in self.params})


@functools.cache
def _params_of(make: Callable[..., Schedule]) -> tuple[str, ...]:
    """Cached, because each new recipe asks for them."""
    return tuple(name for name in inspect.signature(make).parameters if name != "base_lr")


SCHEDULES: Registry[ScheduleCard] = Registry("schedule")
for _card in (
    ScheduleCard(constant, "The same rate throughout.", False, "Short tests, and as the baseline of a comparison."),
    ScheduleCard(factor, "Multiplied by a factor every so many updates.", False, "Long runs of unknown length."),
    ScheduleCard(
        multifactor, "Multiplied by a factor at given updates.", False,
        "To repeat published runs (ImageNet: epochs 30, 60, 80). The steps want tuning: prefer cosine.",
    ),
    ScheduleCard(poly, "Falls as a power of what is left.", True, "With LARS at very large batches (power 2)."),
    ScheduleCard(cosine, "Falls as half a cosine wave.", True, "A good default of runs with a known end."),
    ScheduleCard(
        onecycle, "Rises to the peak, then falls to zero.", True,
        "The fewest epochs to an accuracy; only the last epochs are good, so do not stop early.",
    ),
):  # fmt: skip
    SCHEDULES.add(_card.make.__name__, _card)


def build(
    name: str | Rate,
    *,
    base_lr: float,
    total_updates: int | None = None,
    warmup_updates: int = 0,
    warmup_begin_lr: float = 0.0,
    warmup_mode: str = "linear",
    updates_per_epoch: float | None = None,
    unit: str = "updates",
    **params: Any,
) -> Schedule:
    """The schedule of a run by name, with its length and a warm-up.

    Args:
        name: a name of :data:`SCHEDULES`, or a function ``num_update -> lr`` (then ``base_lr`` and
            ``params`` are not used).
        base_lr: the rate, already scaled to the batch.
        total_updates: length of the run; needed by ``poly``, ``cosine``, ``onecycle``, and by ``factor`` and
            ``multifactor`` without steps (then a third of the run, and a half and three quarters of it).
        warmup_updates, warmup_begin_lr, warmup_mode: see :func:`warmup`.
        updates_per_epoch: needed with ``unit="epochs"``.
        unit: whether ``step``, ``steps`` and ``max_update`` among ``params`` count ``updates`` or ``epochs``.
        params: the schedule's own arguments.

    Raises:
        UsageError: an unknown name or argument, a number out of range, a step or a warm-up beyond the end of the run.

    >>> rate = build("cosine", base_lr=0.4, total_updates=100, warmup_updates=20)
    >>> rate(10), rate(20), rate(60)
    (0.2, 0.4, 0.2)
    """
    if total_updates is not None:
        number("total_updates", total_updates, low=1)
        if warmup_updates >= total_updates and warmup_updates > 0:
            raise UsageError(
                f"warmup_updates={warmup_updates}: the run has only {total_updates} updates; warm up for less"
            )
    if callable(name):
        if params:
            raise UsageError(f"schedule parameters {', '.join(params)} do not apply to a function of your own")
        inner: Rate = name
    else:
        card = SCHEDULES[name]
        _check_params(card, params)
        params = _in_updates(params, unit, updates_per_epoch)
        inner = card.make(base_lr=base_lr, **_fill_length(name, card, params, total_updates))
    if warmup_updates:
        return warmup(inner, warmup_steps=warmup_updates, warmup_begin_lr=warmup_begin_lr, mode=warmup_mode)
    return inner if isinstance(inner, Schedule) else scale(inner, by=1.0)


def _check_params(card: ScheduleCard, params: Mapping[str, Any]) -> None:
    for given in params:
        if given not in card.params:
            hint = did_you_mean(given, card.params)
            hint = f": {hint}" if hint else "."
            known = ", ".join(card.params) or "none"
            raise UsageError(f"schedule {card.make.__name__!r} has no parameter {given!r}{hint} It has: {known}")


def _in_updates(params: Mapping[str, Any], unit: str, updates_per_epoch: float | None) -> dict[str, Any]:
    """``params`` with their lengths converted from epochs to updates."""
    if unit == "updates":
        return dict(params)
    if unit != "epochs" or updates_per_epoch is None:
        raise UsageError(f"schedule unit={unit!r}: use 'updates', or 'epochs' together with updates_per_epoch")
    converted = dict(params)
    for name in ("step", "max_update"):
        if name in params:
            converted[name] = params[name] * updates_per_epoch
    if "steps" in params:
        converted["steps"] = [step * updates_per_epoch for step in params["steps"]]
    return converted


def _fill_length(name: str, card: ScheduleCard, params: dict[str, Any], total: int | None) -> dict[str, Any]:
    """``params`` with defaults from the length of the run; steps beyond it are refused."""
    wanted = {"factor": "step", "multifactor": "steps"}.get(name, "max_update" if card.has_end else None)
    last = params["steps"][-1] if params.get("steps") else params.get("step", 0)
    if wanted and wanted not in params:
        if total is None:
            raise UsageError(f"schedule {name!r} needs {wanted}, or total_updates to derive it from")
        params[wanted] = {"step": math.ceil(total / 3), "steps": [total * 0.5, total * 0.75]}.get(wanted, total)
    if total is not None and isinstance(last, (int, float)) and last >= total:
        raise UsageError(f"schedule {name!r}: the step at update {last:g} lies beyond the run of {total} updates")
    if total is not None and card.has_end and params["max_update"] > total:
        raise UsageError(
            f"schedule {name!r}: max_update={params['max_update']:g} is longer than the run of {total} updates"
        )
    return params
