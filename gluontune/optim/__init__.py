"""Optimizers, schedules and the rules of large batches.

``gt.optim.setup("nag", net, learning_rate=0.1, global_batch_size=256, …)`` gives a Gluon trainer whose
rate has one source, whose biases, gammas and betas are really exempt from decay and trust ratios, and
whose gradients can be accumulated and clipped rightly on several devices. :data:`OPTIMIZERS` has a card
for each optimizer; :mod:`gluontune.optim.schedules` are pure functions that need no mxnet, and so are the
rules of evolutionary SGD in :mod:`gluontune.optim.evolution`, whose loop is ``gt.ladder.esgd``.

>>> import gluontune as gt
>>> gt.optim.OPTIMIZERS["adam"].source
'Kingma & Ba, arXiv:1412.6980'
"""

from __future__ import annotations

from typing import Any

from gluontune import lazy
from gluontune.optim import schedules
from gluontune.optim.cards import OPTIMIZERS, OptimizerCard, list_optimizers
from gluontune.optim.schedules import SCHEDULES

# What needs mxnet or matplotlib is imported when it is first used.
_HOMES = {
    "BatchGrowth": "large_batch",
    "ESGD_POOL": "evolution:POOL",
    "EsgdEntry": "evolution:Entry",
    "GhostBatchNorm": "ghost",
    "RangeTest": "finder",
    "TunedTrainer": "trainer",
    "create": "_setup",
    "find_learning_rate": "finder",
    "from_mxnet": "adapters",
    "gradient_noise": "large_batch",
    "is_exempt": "exemptions",
    "noise_sigma": "large_batch",
    "plot_range_test": "plots",
    "plot_schedule": "plots",
    "plot_trust_ratios": "plots",
    "scaled_learning_rate": "scaling",
    "setup": "_setup",
    "setup_recipe": "_recipe",
    "to_mxnet": "adapters",
    "trust_ratios": "large_batch",
    "use_ghost_batch_norm": "ghost",
}

__all__ = ["OPTIMIZERS", "OptimizerCard", "SCHEDULES", "list_optimizers", "schedules", *sorted(_HOMES)]


def __getattr__(name: str) -> Any:
    return lazy.find(__name__, _HOMES, name)


def __dir__() -> list[str]:
    return sorted(__all__)
