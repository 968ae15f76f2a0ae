"""MXNet's own loaders as work of a contender: Gluon's DataLoader and ImageRecordIter, uint8 out."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from gluontune.bench.batches import Batches
from gluontune.loading.augment import AUGMENTS
from gluontune.runtime import mxnet

__all__ = ["dataloader", "recorditer"]

PAD = AUGMENTS["pad-crop-flip"].pad


def dataloader(path: str, size: int, batch_size: int, augment: str, num_workers: int) -> Batches:
    """``gluon.data.DataLoader`` over an ``ImageRecordDataset``, with the transforms of the documentation.

    Batches stay uint8 NHWC: ``ToTensor`` would only cost it time.
    """
    mx = mxnet()
    vision = mx.gluon.data.vision
    if augment == "pad-crop-flip":  # Gluon has no padded crop; its model zoo has
        crop = importlib.import_module("gluoncv.data.transforms.block").RandomCrop(size, pad=PAD)
    else:
        crop = vision.transforms.RandomResizedCrop(size)
    transform = vision.transforms.Compose([crop, vision.transforms.RandomFlipLeftRight()])
    data = vision.ImageRecordDataset(path).transform_first(transform)
    loader = mx.gluon.data.DataLoader(
        data, batch_size, shuffle=True, last_batch="discard", num_workers=num_workers
    )
    return Batches(lambda number: loader, _waited, {"versions": {"mxnet": mx.__version__}})


def recorditer(
    path: str, size: int, batch_size: int, augment: str, preprocess_threads: int, shuffle: bool = True
) -> Batches:
    """``ImageRecordUInt8Iter``: uint8 NCHW, which it makes in C++; shuffled within a 16 MB buffer or by the index."""
    mx = mxnet()
    options: dict[str, Any] = {"rand_mirror": True}
    if augment == "pad-crop-flip":
        options.update(rand_crop=True, pad=PAD, fill_value=0)
    else:
        options.update(
            random_resized_crop=True,
            min_random_area=0.08,
            max_random_area=1.0,
            min_aspect_ratio=3 / 4,
            max_aspect_ratio=4 / 3,
        )
    index = Path(path).with_suffix(".idx")
    records = mx.io.ImageRecordUInt8Iter(
        path_imgrec=path,
        path_imgidx=str(index) if index.is_file() else "",
        data_shape=(3, size, size),
        batch_size=batch_size,
        preprocess_threads=preprocess_threads,
        shuffle=shuffle,
        verbose=False,
        **options,
    )

    def epoch(number: int) -> Iterator[Any]:
        records.reset()
        for batch in records:
            yield batch.data

    return Batches(epoch, _waited, {"versions": {"mxnet": mx.__version__}})


def _waited(batch: Any) -> Any:
    batch[0].wait_to_read()
    return batch[0]
