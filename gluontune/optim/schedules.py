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
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gluontune.core.errors import UsageError, did_you_mean
from gluontune.optim._schedules import WARMUP_MODES, Rate, Schedule, number
from gluontune.recipe.registry import Registry

__all__ = [
    "SCHEDULES", "Schedule", "ScheduleCard", "WARMUP_MODES", "build", "constant", "cosine", "factor", "in_epochs",
    "join", "multifactor", "onecycle", "poly", "scale", "stretch", "warmup",
]  # fmt: skip


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
    lengths = {name: params[name] * updates_per_epoch for name in ("step", "max_update") if name in params}
    if "steps" in params:
        lengths["steps"] = [step * updates_per_epoch for step in params["steps"]]
    return {**params, **lengths}


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
