"""Conversions between pure schedules and ``mx.lr_scheduler.LRScheduler``."""

from __future__ import annotations

import importlib
import pickle
from typing import Any

from gluontune.core.errors import UsageError
from gluontune.optim import schedules
from gluontune.optim.schedules import Schedule
from gluontune.runtime import mxnet

mxnet()
# By its module: a parameter server unpickles this within `import mxnet`, before the package has the attribute.
lr_scheduler: Any = importlib.import_module("mxnet.lr_scheduler")


class ScheduleAdapter(lr_scheduler.LRScheduler):
    """A pure schedule as an ``LRScheduler``.

    ``mx.optimizer.Optimizer`` writes its ``learning_rate`` into ``base_lr`` of its scheduler. MXNet's schedulers then
    have a stale ``warmup_final_lr``; here the whole schedule, warm-up included, is multiplied by the new ``base_lr``
    over the first one.

    Args:
        schedule: a function ``num_update -> lr``.
        base_lr: the rate of the schedule; 1 makes ``base_lr`` a plain multiplier.
    """

    def __init__(self, schedule: Any, base_lr: float = 1.0):
        super().__init__(base_lr=base_lr)
        if not base_lr > 0:
            raise UsageError(f"base_lr={base_lr!r}: give a rate above 0")
        self.schedule = schedule
        self._built_for = base_lr

    def __call__(self, num_update: int) -> float:
        if self.schedule is None:
            raise UsageError(
                "the schedule is a local function or lambda, which cannot be sent or saved; define it at the "
                "top of a module or use gt.optim.schedules"
            )
        rate = self.schedule(num_update)
        return rate if self.base_lr == self._built_for else rate * (self.base_lr / self._built_for)

    def __getstate__(self) -> dict[str, Any]:
        state = self.__dict__.copy()
        try:
            pickle.dumps(state["schedule"])
        except (pickle.PicklingError, AttributeError, TypeError):
            state["schedule"] = None  # __call__ then explains
        return state


def to_mxnet(schedule: Any, *, base_lr: float = 1.0) -> ScheduleAdapter:
    """``schedule`` as an ``mx.lr_scheduler.LRScheduler`` for any MXNet optimizer or trainer.

    >>> from gluontune.optim import schedules
    >>> to_mxnet(schedules.cosine(base_lr=0.4, max_update=100))(50)
    0.2
    """
    return ScheduleAdapter(schedule, base_lr)


def from_mxnet(scheduler: Any) -> Schedule:
    """The pure schedule of a fresh MXNet scheduler.

    Args:
        scheduler: a Factor-, MultiFactor-, Poly- or CosineScheduler before its first call (which changes its
            ``base_lr``), or an adapter of :func:`to_mxnet`.

    Raises:
        UsageError: the scheduler is of another class or has been used.

    >>> from gluontune.runtime import mxnet
    >>> from_mxnet(mxnet().lr_scheduler.FactorScheduler(step=250, factor=0.5, base_lr=1))(251)
    0.5
    """
    if isinstance(scheduler, ScheduleAdapter):
        return schedules.scale(scheduler.schedule, by=scheduler.base_lr / scheduler._built_for)
    known = ("FactorScheduler", "MultiFactorScheduler", "PolyScheduler", "CosineScheduler")
    if type(scheduler) not in [getattr(lr_scheduler, name) for name in known]:
        raise UsageError(f"scheduler {type(scheduler).__name__}: only {', '.join(known)} can be read; pass it as it is")
    if getattr(scheduler, "count", 0):
        raise UsageError(f"{type(scheduler).__name__} has been used already: its first rate is lost; give a fresh one")
    rate = scheduler.base_lr
    inner: Schedule
    if type(scheduler) is lr_scheduler.FactorScheduler:
        inner = schedules.factor(
            base_lr=rate, step=scheduler.step, factor=scheduler.factor, stop_factor_lr=scheduler.stop_factor_lr
        )
    elif type(scheduler) is lr_scheduler.MultiFactorScheduler:
        inner = schedules.multifactor(base_lr=rate, steps=scheduler.step, factor=scheduler.factor)
    else:
        ends = {"base_lr": scheduler.base_lr_orig, "max_update": scheduler.max_update}
        ends["final_lr"] = scheduler.final_lr
        cosine = type(scheduler) is lr_scheduler.CosineScheduler
        inner = schedules.cosine(**ends) if cosine else schedules.poly(**ends, pwr=scheduler.power)
    if not scheduler.warmup_steps:
        return inner
    return schedules.warmup(
        inner,
        warmup_steps=scheduler.warmup_steps,
        warmup_begin_lr=scheduler.warmup_begin_lr,
        mode=scheduler.warmup_mode,
    )
