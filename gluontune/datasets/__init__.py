"""Data sets by name: the embedded sample, fashion-mnist, cifar10, synthetic, folders and records.

>>> import gluontune as gt
>>> sample = gt.datasets.open("sample")
>>> len(sample.train), len(sample.test), sample.image_shape, sample.classes[0]
(10000, 2000, (28, 28, 1), 'T-shirt/top')
>>> sample.train.labels[:3].tolist(), sample.train.decode(0).shape
([9, 0, 0], (28, 28, 1))
"""

from __future__ import annotations

from typing import Any

from gluontune import lazy

__all__ = [
    "DATASETS",
    "Dataset",
    "DatasetInfo",
    "DatasetWarning",
    "Split",
    "add",
    "fetch",
    "list_datasets",
    "make",
    "open",
]

_HOMES = {
    "DATASETS": "catalog:DATASETS",
    "Dataset": "dataset:Dataset",
    "DatasetInfo": "dataset:DatasetInfo",
    "DatasetWarning": "dataset:DatasetWarning",
    "Split": "split:Split",
    "add": "catalog:add",
    "fetch": "catalog:fetch",
    "list_datasets": "catalog:list_datasets",
    "make": "catalog:make",
    "open": "catalog:open_dataset",
}


def __getattr__(name: str) -> Any:
    return lazy.find(__name__, _HOMES, name)


def __dir__() -> list[str]:
    return sorted(__all__)
