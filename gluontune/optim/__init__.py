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

from gluontune.core import lazy

__getattr__, __dir__, __all__ = lazy.attach(__name__, __file__)
