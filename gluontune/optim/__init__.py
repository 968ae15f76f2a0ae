"""Optimizers, schedules and the rules of large batches.

``gt.optim.setup("nag", net, learning_rate=0.1, global_batch_size=256, …)`` gives a Gluon trainer whose
rate has one source, whose biases, gammas and betas are really exempt from decay and trust ratios, and
whose gradients can be accumulated and clipped rightly on several devices. :data:`OPTIMIZERS` has a card
for each optimizer; :mod:`gluontune.optim.schedules` are pure functions that need no mxnet.

>>> import gluontune as gt
>>> gt.optim.OPTIMIZERS["adam"].source
'Kingma & Ba, arXiv:1412.6980'
"""

from __future__ import annotations

import importlib
from typing import Any

from gluontune.optim import schedules
from gluontune.optim.cards import OPTIMIZERS, OptimizerCard, list_optimizers
from gluontune.optim.schedules import SCHEDULES

# What needs mxnet or matplotlib is imported when it is first used.
_LAZY = {
    "BatchGrowth": "gluontune.optim.large_batch",
    "GhostBatchNorm": "gluontune.optim.ghost",
    "RangeTest": "gluontune.optim.finder",
    "TunedTrainer": "gluontune.optim.trainer",
    "create": "gluontune.optim._setup",
    "find_learning_rate": "gluontune.optim.finder",
    "from_mxnet": "gluontune.optim.adapters",
    "gradient_noise": "gluontune.optim.large_batch",
    "is_exempt": "gluontune.optim.exemptions",
    "noise_sigma": "gluontune.optim.large_batch",
    "plot_range_test": "gluontune.optim.plots",
    "plot_schedule": "gluontune.optim.plots",
    "plot_trust_ratios": "gluontune.optim.plots",
    "scaled_learning_rate": "gluontune.optim.scaling",
    "setup": "gluontune.optim._setup",
    "to_mxnet": "gluontune.optim.adapters",
    "trust_ratios": "gluontune.optim.large_batch",
    "use_ghost_batch_norm": "gluontune.optim.ghost",
}

__all__ = ["OPTIMIZERS", "OptimizerCard", "SCHEDULES", "list_optimizers", "schedules", *sorted(_LAZY)]


def __getattr__(name: str) -> Any:
    if name in _LAZY:
        return getattr(importlib.import_module(_LAZY[name]), name)
    raise AttributeError(f"module 'gluontune.optim' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
