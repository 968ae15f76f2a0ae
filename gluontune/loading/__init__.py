"""Loaders: decode, augment and batch images fast enough, and find out how much is enough.

>>> import gluontune as gt
>>> gt.loading.LOADERS.names()
['gluon', 'threaded', 'resident']

Nothing here imports mxnet until a loader that yields NDArrays is built.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from gluontune.core import lazy

if TYPE_CHECKING:
    from gluontune.loading.augment import AUGMENTS as AUGMENTS
    from gluontune.loading.augment import Augment as Augment
    from gluontune.loading.base import Loader as Loader
    from gluontune.loading.base import Order as Order
    from gluontune.loading.cached import RecordDataset as RecordDataset
    from gluontune.loading.cached import keep_in_memory as keep_in_memory
    from gluontune.loading.colour import color_jitter as color_jitter
    from gluontune.loading.colour import normalize as normalize
    from gluontune.loading.dataloader import SafeDataLoader as SafeDataLoader
    from gluontune.loading.dataloader import safe_dataloader as safe_dataloader
    from gluontune.loading.fields import FieldsLoader as FieldsLoader
    from gluontune.loading.fields import Motion as Motion
    from gluontune.loading.fields import pad_boxes as pad_boxes
    from gluontune.loading.gluon import DeviceLoader as DeviceLoader
    from gluontune.loading.gluon import GluonLoader as GluonLoader
    from gluontune.loading.gluon import to_device as to_device
    from gluontune.loading.loaders import LOADERS as LOADERS
    from gluontune.loading.loaders import LoaderInfo as LoaderInfo
    from gluontune.loading.loaders import build as build
    from gluontune.loading.loaders import from_files as from_files
    from gluontune.loading.loaders import from_records as from_records
    from gluontune.loading.measure import deck_rule as deck_rule
    from gluontune.loading.mixing import cutmix as cutmix
    from gluontune.loading.mixing import mixup as mixup
    from gluontune.loading.mixing import random_erasing as random_erasing
    from gluontune.loading.mixing import soft_labels as soft_labels
    from gluontune.loading.pytorch import TorchLoader as TorchLoader
    from gluontune.loading.randaugment import rand_augment as rand_augment
    from gluontune.loading.resident import ResidentLoader as ResidentLoader
    from gluontune.loading.sizing import SizeReport as SizeReport
    from gluontune.loading.sizing import decoder_name as decoder_name
    from gluontune.loading.sizing import size as size
    from gluontune.loading.threaded import ThreadedLoader as ThreadedLoader
    from gluontune.runtime.disk import measure_disk as measure_disk
else:
    __getattr__, __dir__, __all__ = lazy.attach(__name__, __file__)
