"""Learning-rate schedules as pure functions ``num_update -> lr``; imports no mxnet.

The convention is MXNet's: the rate of the k-th update is ``schedule(k)``, counted from 1, and a step takes effect when
``num_update`` *exceeds* it. Unlike MXNet's schedulers these have no state, so that a resumed or repeated run gets the
same rates. Adapters to and from ``mx.lr_scheduler.LRScheduler`` are in :mod:`gluontune.optim.adapters`.

>>> rate = warmup(multifactor(base_lr=0.9, steps=[100, 200], factor=0.1), warmup_steps=10)
>>> [round(rate(n), 6) for n in (0, 5, 10, 100, 101, 201)]
[0.0, 0.45, 0.9, 0.9, 0.09, 0.009]
"""

from __future__ import annotations

from gluontune.optim.schedules._build import SCHEDULES, ScheduleCard, build
from gluontune.optim.schedules._rules import (
    constant,
    cosine,
    factor,
    in_epochs,
    join,
    multifactor,
    onecycle,
    poly,
    scale,
    stretch,
    warmup,
)
from gluontune.optim.schedules._schedule import WARMUP_MODES, Schedule

__all__ = [
    "SCHEDULES", "Schedule", "ScheduleCard", "WARMUP_MODES", "build", "constant", "cosine", "factor", "in_epochs",
    "join", "multifactor", "onecycle", "poly", "scale", "stretch", "warmup",
]  # fmt: skip
