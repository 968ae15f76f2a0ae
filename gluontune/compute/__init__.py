"""Compute: hybridize, rewrite, mixed precision, each only where it measures faster.

Each piece works alone, on any Gluon network:

>>> import gluontune as gt
>>> gt.compute.REWRITES.names()[:2]
['whole-sequential', 'pool-to-mean']
"""

from __future__ import annotations

from gluontune.core import lazy

__getattr__, __dir__, __all__ = lazy.attach(__name__, __file__)
