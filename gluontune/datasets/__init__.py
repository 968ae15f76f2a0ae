"""Data sets by name: the embedded sample, fashion-mnist, cifar10, synthetic, folders and records.

>>> import gluontune as gt
>>> sample = gt.datasets.open("sample")
>>> len(sample.train), len(sample.test), sample.image_shape, sample.classes[0]
(10000, 2000, (28, 28, 1), 'T-shirt/top')
>>> sample.train.labels[:3].tolist(), sample.train.decode(0).shape
([9, 0, 0], (28, 28, 1))
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from gluontune.core import lazy

if TYPE_CHECKING:
    from gluontune.datasets.catalog import (
        DATASETS as DATASETS,
        Dataset as Dataset,
        DatasetInfo as DatasetInfo,
        DatasetWarning as DatasetWarning,
        add as add,
        fetch as fetch,
        list_datasets as list_datasets,
        make as make,
        open_dataset,
    )
    from gluontune.datasets.split import Split as Split

    open = open_dataset
else:
    __getattr__, __dir__, __all__ = lazy.attach(__name__, __file__)
