"""Loaders: decode, augment and batch images fast enough, and measure how much is enough.

>>> import gluontune as gt
>>> gt.loading.LOADERS.names()
['gluon', 'threaded', 'resident']

mxnet is imported only when a loader that yields NDArrays is built.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from gluontune.core import lazy

if TYPE_CHECKING:
    from gluontune.loading.augment import AUGMENTS as AUGMENTS, Augment as Augment
    from gluontune.loading.base import Loader as Loader, Order as Order
    from gluontune.loading.cached import RecordDataset as RecordDataset, keep_in_memory as keep_in_memory
    from gluontune.loading.colour import color_jitter as color_jitter, normalize as normalize
    from gluontune.loading.dataloader import SafeDataLoader as SafeDataLoader, safe_dataloader as safe_dataloader
    from gluontune.loading.fields import FieldsLoader as FieldsLoader, Motion as Motion, pad_boxes as pad_boxes
    from gluontune.loading.gluon import DeviceLoader as DeviceLoader, GluonLoader as GluonLoader, to_device as to_device
    from gluontune.loading.loaders import (
        LOADERS as LOADERS,
        LoaderInfo as LoaderInfo,
        build as build,
        from_files as from_files,
        from_records as from_records,
    )
    from gluontune.loading.mixing import (
        cutmix as cutmix,
        mixup as mixup,
        rand_augment as rand_augment,
        random_erasing as random_erasing,
        soft_labels as soft_labels,
    )
    from gluontune.loading.pytorch import TorchLoader as TorchLoader
    from gluontune.loading.resident import ResidentLoader as ResidentLoader
    from gluontune.loading.sizing import (
        SizeReport as SizeReport,
        deck_rule as deck_rule,
        decoder_name as decoder_name,
        size as size,
    )
    from gluontune.loading.threaded import ThreadedLoader as ThreadedLoader
    from gluontune.runtime.disk import measure_disk as measure_disk
else:
    __getattr__, __dir__, __all__ = lazy.attach(__name__, __file__)
