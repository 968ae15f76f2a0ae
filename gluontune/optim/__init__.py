"""Optimizers, schedules and the rules of large batches.

``gt.optim.setup("nag", net, learning_rate=0.1, batch_size=256, …)`` returns a Gluon trainer with one source of the
rate, with biases, gammas and betas exempt from decay and trust ratios, and with gradients accumulated and clipped
rightly on several devices. :data:`OPTIMIZERS` has a card for each optimizer; :mod:`gluontune.optim.schedules` are pure
functions that need no mxnet, and so are the rules of evolutionary SGD in :mod:`gluontune.optim.evolution`, whose loop
is ``gt.ladder.esgd``.

>>> import gluontune as gt
>>> gt.optim.OPTIMIZERS["adam"].source
'Kingma & Ba, arXiv:1412.6980'
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from gluontune.core import lazy

if TYPE_CHECKING:
    from gluontune.optim import schedules as schedules
    from gluontune.optim._base import from_mxnet as from_mxnet, to_mxnet as to_mxnet
    from gluontune.optim._setup import create as create, setup as setup, setup_recipe as setup_recipe
    from gluontune.optim.cards import (
        OPTIMIZERS as OPTIMIZERS,
        OptimizerCard as OptimizerCard,
        is_exempt as is_exempt,
        list_optimizers as list_optimizers,
        scaled_learning_rate as scaled_learning_rate,
    )
    from gluontune.optim.evolution import POOL, Entry
    from gluontune.optim.finder import RangeTest as RangeTest, find_learning_rate as find_learning_rate
    from gluontune.optim.ghost import GhostBatchNorm as GhostBatchNorm, use_ghost_batch_norm as use_ghost_batch_norm
    from gluontune.optim.large_batch import (
        BatchGrowth as BatchGrowth,
        gradient_noise as gradient_noise,
        noise_sigma as noise_sigma,
        trust_ratios as trust_ratios,
    )
    from gluontune.optim.plots import (
        plot_range_test as plot_range_test,
        plot_schedule as plot_schedule,
        plot_trust_ratios as plot_trust_ratios,
    )
    from gluontune.optim.schedules import SCHEDULES as SCHEDULES
    from gluontune.optim.trainer import TunedTrainer as TunedTrainer

    ESGD_POOL = POOL
    EsgdEntry = Entry
else:
    __getattr__, __dir__, __all__ = lazy.attach(__name__, __file__)
