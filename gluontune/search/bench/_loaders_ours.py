"""Our loaders and MXNet's own (Gluon's DataLoader, ImageRecordIter, gluon-cv's), uint8 out, as work of a contender."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any

from gluontune.loading import FieldsLoader, ResidentLoader, ThreadedLoader, decoder_name, from_records
from gluontune.loading.augment import AUGMENTS
from gluontune.loading.sizing import decode_rate
from gluontune.runtime import mxnet
from gluontune.search.bench._loaders_torch import Batches, DecodeLimit

PAD = AUGMENTS["pad-crop-flip"].pad


def threaded(path: str, size: int, batch_size: int, augment: str, num_workers: int, scaled: bool) -> Batches:
    return _batches(ThreadedLoader, path, size, batch_size, augment, num_workers=num_workers, scaled=scaled)


def resident(path: str, size: int, batch_size: int, augment: str) -> Batches:
    return _batches(ResidentLoader, path, size, batch_size, augment)


def our_boxes(path: str, size: int, batch_size: int, num_workers: int) -> Batches:
    loader = FieldsLoader(
        path, fields=["boxes"], batch_size=batch_size, image_shape=(size, size, 3), augment="stretch-flip",
        shuffle=True, num_workers=num_workers,
    )  # fmt: skip
    return _of(loader, lambda batch: batch[1]["boxes"])


def _batches(kind: Any, path: str, size: int, batch_size: int, augment: str, **more: Any) -> Batches:
    shape = (size, size, 3)
    return _of(
        kind(from_records(path), batch_size=batch_size, image_shape=shape, augment=augment, shuffle=True, **more)
    )


def _of(loader: Any, boxes: Callable[[Any], Any] | None = None) -> Batches:
    info = {"decoder": decoder_name(), "versions": {"opencv": version("opencv-python-headless")}}
    return Batches(loader.epoch, lambda batch: batch[0], info, loader.close, boxes)


def limit(path: str, seconds: float, workers: int) -> DecodeLimit:
    """OpenCV's decoding alone: the upper limit of loaders that decode every pixel."""
    return DecodeLimit(path, workers, lambda payloads: decode_rate(payloads, workers, seconds)[0])


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
    loader = mx.gluon.data.DataLoader(data, batch_size, shuffle=True, last_batch="discard", num_workers=num_workers)
    return Batches(lambda number: loader, _waited, {"versions": {"mxnet": mx.__version__}})


def recorditer(path: str, size: int, batch_size: int, augment: str, preprocess_threads: int) -> Batches:
    """``ImageRecordUInt8Iter``: uint8 NCHW, in C++; shuffled within a 16 MB buffer or by the index."""
    mx = mxnet()
    options: dict[str, Any] = {"rand_mirror": True}
    if augment == "pad-crop-flip":
        options.update(rand_crop=True, pad=PAD, fill_value=0)
    else:
        options.update(random_resized_crop=True, min_random_area=0.08, max_random_area=1.0)
        options.update(min_aspect_ratio=3 / 4, max_aspect_ratio=4 / 3)
    index = Path(path).with_suffix(".idx")
    records = mx.io.ImageRecordUInt8Iter(
        path_imgrec=path, path_imgidx=str(index) if index.is_file() else "", data_shape=(3, size, size),
        batch_size=batch_size, preprocess_threads=preprocess_threads, shuffle=True, verbose=False, **options,
    )  # fmt: skip

    def epoch(number: int) -> Iterator[Any]:
        records.reset()
        for batch in records:
            yield batch.data

    return Batches(epoch, _waited, {"versions": {"mxnet": mx.__version__}})


class _Stretched:
    """gluon-cv's transform of an image and its boxes, as in its SSD: resize, flip half of them."""

    def __init__(self, size: int):
        self.size = size

    def __call__(self, image: Any, label: Any) -> Any:
        bbox, images = (importlib.import_module(f"gluoncv.data.transforms.{name}") for name in ("bbox", "image"))
        height, width, _ = image.shape
        boxes = bbox.resize(label, (width, height), (self.size, self.size))
        image, flips = images.random_flip(images.imresize(image, self.size, self.size), px=0.5)
        return image, bbox.flip(boxes, (self.size, self.size), flip_x=flips[0])


def gluoncv_boxes(path: str, size: int, batch_size: int, num_workers: int) -> Batches:
    """gluon-cv's ``RecordFileDetection`` in Gluon's ``DataLoader``, stacked and filled up with -1 by its batchify."""
    mx = mxnet()
    theirs = importlib.import_module("gluoncv.data")
    batchify = importlib.import_module("gluoncv.data.batchify")
    data = theirs.RecordFileDetection(path, coord_normalized=True).transform(_Stretched(size))
    loader = mx.gluon.data.DataLoader(
        data, batch_size, shuffle=True, last_batch="discard", num_workers=num_workers,
        batchify_fn=batchify.Tuple(batchify.Stack(), batchify.Pad(pad_val=-1)),
    )  # fmt: skip
    versions = {"mxnet": mx.__version__, "gluoncv": importlib.import_module("gluoncv").__version__}
    return Batches(lambda number: loader, _waited, {"versions": versions}, boxes=lambda batch: batch[1])


def _waited(batch: Any) -> Any:
    batch[0].wait_to_read()
    return batch[0]
