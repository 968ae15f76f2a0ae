"""Loaders: decode, augment and batch images fast enough, and find out how much is enough.

>>> import gluontune as gt
>>> gt.loading.LOADERS.names()
['gluon', 'threaded', 'resident']

Nothing here imports mxnet until a loader that yields NDArrays is built.
"""

from __future__ import annotations

from typing import Any

from gluontune import lazy

_HOMES = {
    "AUGMENTS": "augment",
    "Augment": "augment",
    "LOADERS": "loaders",
    "LoaderInfo": "loaders",
    "Motion": "fields",
    "build": "loaders",
    "Loader": "base",
    "Order": "order",
    "ThreadedLoader": "threaded",
    "ResidentLoader": "resident",
    "GluonLoader": "gluon",
    "SafeDataLoader": "dataloader",
    "DeviceLoader": "adapters",
    "FieldsLoader": "fields",
    "RecordDataset": "recorddataset",
    "TorchLoader": "pytorch",
    "to_device": "adapters",
    "color_jitter": "colour",
    "cutmix": "mixing",
    "mixup": "mixing",
    "normalize": "colour",
    "pad_boxes": "fields",
    "rand_augment": "randaugment",
    "random_erasing": "mixing",
    "soft_labels": "mixing",
    "from_files": "splits",
    "from_records": "splits",
    "SizeReport": "sizing",
    "size": "sizing",
    "deck_rule": "sizing",
    "measure_disk": "disk",
    "decoder_name": "sizing",
    "safe_dataloader": "dataloader",
    "keep_in_memory": "kept",
}

__all__ = sorted(_HOMES)


def __getattr__(name: str) -> Any:
    return lazy.find(__name__, _HOMES, name)


def __dir__() -> list[str]:
    return sorted(__all__)
