"""FFCV's loader as work of a contender, over the same bytes in its own format. Runs in the peers' interpreter."""

from __future__ import annotations

import importlib
import io
import os
import shutil
import types
from pathlib import Path
from typing import Any

import numpy as np

from gluontune.bench.batches import Batches
from gluontune.codec.raw import raw_to_pixels
from gluontune.records import RecordReader

__all__ = ["Payloads", "loader", "write"]


class Payloads:
    """What FFCV's writer asks for: the image of each record, JPEG bytes with their size, or pixels."""

    def __init__(self, path: str, raw: bool):
        self.reader, self.raw = RecordReader(path), raw

    def __len__(self) -> int:
        return len(self.reader)

    def __getitem__(self, index: int) -> tuple[Any]:
        payload = self.reader.payload(int(index))
        if self.raw:
            pixels = raw_to_pixels(payload)  # FFCV keeps no grey images
            return (np.repeat(pixels, 3, axis=2) if pixels.shape[2] == 1 else pixels,)
        with importlib.import_module("PIL.Image").open(io.BytesIO(payload)) as image:
            if image.format != "JPEG":
                raise ValueError(f"record {index} is {image.format}; FFCV keeps JPEG files or raw pixels")
            return ((np.frombuffer(payload, np.uint8), image.height, image.width),)


def write(path: str, beton: str, raw: bool, workers: int) -> None:
    """The records of ``path`` as a ``.beton``, without another decoding and encoding of JPEG files."""
    field = importlib.import_module("ffcv.fields").RGBImageField(write_mode="raw" if raw else "jpg")
    data = Payloads(path, raw)
    data[0], data[len(data) - 1]  # FFCV's writer waits for ever for a worker that failed
    need, free = os.path.getsize(path), shutil.disk_usage(Path(beton).parent).free
    if free < 1.1 * need:
        raise OSError(
            f"{Path(beton).parent} has {free >> 20:,} MiB free, FFCV's copy takes {need >> 20:,} (TMPDIR moves it)"
        )
    if not raw:
        field.encode = types.MethodType(_store, field)
    writer = importlib.import_module("ffcv.writer").DatasetWriter(beton, {"image": field}, num_workers=workers)
    writer.from_indexed_dataset(data)


def _store(field: Any, destination: Any, image: tuple[np.ndarray, int, int], malloc: Any) -> None:
    """``RGBImageField.encode`` for an image that is a JPEG file already."""
    data, height, width = image
    destination["mode"], destination["height"], destination["width"] = 0, height, width
    destination["data_ptr"], storage = malloc(data.nbytes)
    storage[:] = data


def loader(path: str, size: int, batch_size: int, augment: str, num_workers: int, raw: bool, folder: str) -> Batches:
    """Write ``folder/….beton``, then ``ffcv.loader.Loader`` over it; uint8 NHWC."""
    ffcv, ops = importlib.import_module("ffcv.loader"), importlib.import_module("ffcv.transforms")
    decoders = importlib.import_module("ffcv.fields.decoders")
    beton = str(Path(folder) / f"{Path(path).stem}-{'raw' if raw else 'jpg'}.beton")
    write(path, beton, raw, num_workers)
    if augment == "pad-crop-flip":
        steps = [decoders.SimpleRGBImageDecoder(), ops.RandomHorizontalFlip(), ops.RandomTranslate(padding=4)]
    else:
        steps = [decoders.RandomResizedCropRGBImageDecoder((size, size)), ops.RandomHorizontalFlip()]
    made = ffcv.Loader(
        beton,
        batch_size=batch_size,
        num_workers=num_workers,
        order=ffcv.OrderOption.RANDOM,
        drop_last=True,
        pipelines={"image": steps},
    )
    versions = {"ffcv": importlib.import_module("importlib.metadata").version("ffcv")}
    return Batches(lambda number: made, lambda batch: batch[0], {"versions": versions})
