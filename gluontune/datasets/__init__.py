"""Data sets by name: the embedded sample, fashion-mnist, cifar10, synthetic, folders and records.

>>> import gluontune as gt
>>> sample = gt.datasets.open("sample")
>>> len(sample.train), len(sample.test), sample.image_shape, sample.classes[0]
(10000, 2000, (28, 28, 1), 'T-shirt/top')
>>> sample.train.labels[:3].tolist(), sample.train.decode(0).shape
([9, 0, 0], (28, 28, 1))
"""

from __future__ import annotations

from gluontune.core import lazy

__getattr__, __dir__, __all__ = lazy.attach(__name__, __file__)
