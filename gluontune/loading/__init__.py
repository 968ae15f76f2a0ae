"""Loaders: decode, augment and batch images fast enough, and measure how much is enough.

>>> import gluontune as gt
>>> gt.loading.LOADERS.names()
['gluon', 'threaded', 'resident']

mxnet is imported only when a loader that yields NDArrays is built.
"""

from __future__ import annotations

from gluontune.core import lazy

__getattr__, __dir__, __all__ = lazy.attach(__name__, __file__)
