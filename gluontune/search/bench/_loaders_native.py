"""Loaders and decoders with compiled pipelines as work of a contender: DALI, FFCV, SPDL, nvImageCodec.

Runs in the peers' interpreter.
"""

from __future__ import annotations

import importlib
import io
import os
import random
import shutil
import types
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np

from gluontune.codec.header import inspect
from gluontune.codec.image import raw_to_pixels
from gluontune.records import RecordReader
from gluontune.search.bench._loaders_torch import Batches, Payloads, random_box


def dali(path: str, size: int, batch_size: int, augment: str, num_threads: int, prefetch: int) -> Batches:
    """``readers.mxnet`` → decode the crop's region, resize, flip on the CPU; uint8 NHWC, the resize not antialiased."""
    library = importlib.import_module("nvidia.dali")
    fn, dtypes = importlib.import_module("nvidia.dali.fn"), importlib.import_module("nvidia.dali.types")

    @library.pipeline_def(
        batch_size=batch_size, num_threads=num_threads, device_id=None, prefetch_queue_depth=prefetch, seed=1
    )
    def build() -> Any:
        index = str(Path(path).with_suffix(".idx"))
        data, label = fn.readers.mxnet(
            path=[path], index_path=[index], random_shuffle=True, initial_fill=1024, name="reader"
        )
        mirror = fn.random.coin_flip(probability=0.5)
        if augment == "pad-crop-flip":
            images = fn.decoders.image(data, device="cpu", output_type=dtypes.RGB)
            padded = fn.pad(images, axes=[0, 1], shape=[size + 8, size + 8])
            left, top = (fn.random.uniform(range=(0.0, 1.0)) for _ in range(2))
            cropped = fn.crop_mirror_normalize(
                padded, crop=(size, size), crop_pos_x=left, crop_pos_y=top, mirror=mirror, dtype=dtypes.UINT8,
                output_layout="HWC", mean=[0.0], std=[1.0],
            )  # fmt: skip
            return cropped, label
        crop = {"random_area": [0.08, 1.0], "random_aspect_ratio": [3 / 4, 4 / 3]}
        images = fn.decoders.image_random_crop(data, device="cpu", output_type=dtypes.RGB, **crop)
        return fn.flip(fn.resize(images, size=(size, size), antialias=False), horizontal=mirror), label

    made = build()
    made.build()

    def images(batch: Any) -> Any:  # a dense uint8 NHWC tensor
        return types.SimpleNamespace(shape=batch[0].as_tensor().shape(), dtype="uint8")

    return Batches(lambda number: iter(made.run, None), images, {"versions": {"nvidia-dali": library.__version__}})


class _Images(Payloads):
    """The input of FFCV's writer: the image of each record, JPEG bytes with their size, or pixels."""

    def __init__(self, path: str, raw: bool):
        super().__init__(path)
        self.raw = raw

    def __getitem__(self, index: Any) -> tuple[Any]:
        payload = super().__getitem__(index)
        if self.raw:
            pixels = raw_to_pixels(payload)  # FFCV keeps no grey images
            return (np.repeat(pixels, 3, axis=2) if pixels.shape[2] == 1 else pixels,)
        with importlib.import_module("PIL.Image").open(io.BytesIO(payload)) as image:
            if image.format != "JPEG":
                raise ValueError(f"record {index} is {image.format}; FFCV keeps JPEG files or raw pixels")
            return ((np.frombuffer(payload, np.uint8), image.height, image.width),)


def _write(path: str, beton: str, raw: bool, workers: int) -> None:
    """The records of ``path`` as a ``.beton``, without another decoding and encoding of JPEG files."""
    field = importlib.import_module("ffcv.fields").RGBImageField(write_mode="raw" if raw else "jpg")
    data = _Images(path, raw)
    data[0], data[len(data) - 1]  # FFCV's writer hangs if a worker fails
    place = Path(beton).parent
    need, free = os.path.getsize(path), shutil.disk_usage(place).free
    if free < 1.1 * need:
        raise OSError(f"{place} has {free >> 20:,} MiB free, FFCV's copy takes {need >> 20:,} (TMPDIR moves it)")
    if not raw:
        field.encode = types.MethodType(_store, field)
    writer = importlib.import_module("ffcv.writer").DatasetWriter(beton, {"image": field}, num_workers=workers)
    writer.from_indexed_dataset(data)


def _store(field: Any, destination: Any, image: tuple[np.ndarray, int, int], malloc: Any) -> None:
    data, height, width = image
    destination["mode"], destination["height"], destination["width"] = 0, height, width
    destination["data_ptr"], storage = malloc(data.nbytes)
    storage[:] = data


def ffcv(path: str, size: int, batch_size: int, augment: str, num_workers: int, raw: bool, folder: str) -> Batches:
    """Write ``folder/….beton``, then ``ffcv.loader.Loader`` over it; uint8 NHWC."""
    library, ops = importlib.import_module("ffcv.loader"), importlib.import_module("ffcv.transforms")
    decoders = importlib.import_module("ffcv.fields.decoders")
    beton = str(Path(folder) / f"{Path(path).stem}-{'raw' if raw else 'jpg'}.beton")
    _write(path, beton, raw, num_workers)
    if augment == "pad-crop-flip":
        steps = [decoders.SimpleRGBImageDecoder(), ops.RandomHorizontalFlip(), ops.RandomTranslate(padding=4)]
    else:
        steps = [decoders.RandomResizedCropRGBImageDecoder((size, size)), ops.RandomHorizontalFlip()]
    made = library.Loader(
        beton, batch_size=batch_size, num_workers=num_workers, order=library.OrderOption.RANDOM, drop_last=True,
        pipelines={"image": steps},
    )  # fmt: skip
    return Batches(lambda number: made, lambda batch: batch[0], {"versions": {"ffcv": version("ffcv")}})


def filters(payload: bytes, size: int, augment: str) -> str:
    """The description of FFmpeg's filters for one image: crop or pad, resize, flip half of them, RGB.

    >>> import cv2
    >>> filters(cv2.imencode(".jpg", np.zeros((9, 9, 3), np.uint8))[1].tobytes(), 9, "pad-crop-flip")
    'pad=iw+8:ih+8:4:4,crop=9:9:...format=pix_fmts=rgb24'
    """
    if augment == "pad-crop-flip":
        moved = f"pad=iw+8:ih+8:4:4,crop={size}:{size}:{random.randint(0, 8)}:{random.randint(0, 8)}:exact=1"
    else:
        info = inspect(payload)
        top, left, height, width = random_box(info.height, info.width)
        moved = f"crop={width}:{height}:{left}:{top}:exact=1,scale={size}:{size}:flags=bilinear"
    return f"{moved}{',hflip' if random.random() < 0.5 else ''},format=pix_fmts=rgb24"


def spdl(path: str, size: int, batch_size: int, augment: str, num_threads: int) -> Batches:
    """A ``Pipeline``: images decoded, cropped and resized by SPDL's FFmpeg on threads, then put together."""
    media, pipelines = importlib.import_module("spdl.io"), importlib.import_module("spdl.pipeline")
    reader = RecordReader(path)

    def decode(index: int) -> Any:
        payload = bytes(reader.payload(index))
        return media.decode_packets(media.demux_image(payload), filter_desc=filters(payload, size, augment))

    try:
        decode(0)  # a pipeline would skip images that fail
    except RuntimeError as error:
        raise RuntimeError(f"{error} (SPDL wants FFmpeg; Debian, Ubuntu: apt install ffmpeg)") from error

    def epoch(number: int) -> Iterator[np.ndarray]:
        order = np.random.default_rng(number).permutation(len(reader)).tolist()
        pipeline = (
            pipelines.PipelineBuilder()
            .add_source(order)
            .pipe(decode, concurrency=num_threads)
            .aggregate(batch_size, drop_last=True)
            .pipe(lambda frames: media.to_numpy(media.convert_frames(frames)))
            .add_sink(2)
            .build(num_threads=num_threads, max_failures=0)
        )
        with pipeline.auto_stop():
            yield from pipeline

    return Batches(epoch, lambda batch: batch, {"versions": {"spdl-io": version("spdl-io")}})


def nvimagecodec(path: str, size: int, batch_size: int, augment: str, num_threads: int) -> Batches:
    """Whole batches through its decoder: the crop's region alone is decoded; OpenCV resizes and flips."""
    codec, cv2 = importlib.import_module("nvidia.nvimgcodec"), importlib.import_module("cv2")
    decoder = codec.Decoder(
        device_id=codec.NVIMGCODEC_DEVICE_CPU_ONLY,
        max_num_cpu_threads=num_threads,
        backends=[codec.Backend(codec.CPU_ONLY)],
    )
    reader = RecordReader(path)
    padded = augment == "pad-crop-flip"

    def stream(index: int) -> Any:
        whole = codec.CodeStream(bytes(reader.payload(index)))
        if padded:
            return whole
        top, left, height, width = random_box(whole.height, whole.width)
        return whole.get_sub_code_stream(region=codec.Region(top, left, top + height, left + width))

    def place(out: np.ndarray, image: Any) -> None:
        if image is None:
            raise RuntimeError("nvImageCodec could not decode an image")
        pixels = np.asarray(image)
        if padded:
            pixels = cv2.copyMakeBorder(pixels, 4, 4, 4, 4, cv2.BORDER_CONSTANT)
            top, left = random.randint(0, 8), random.randint(0, 8)
            pixels = pixels[top : top + size, left : left + size]
        else:
            pixels = cv2.resize(pixels, (size, size))
        out[...] = cv2.flip(pixels, 1) if random.random() < 0.5 else pixels

    def epoch(number: int) -> Iterator[np.ndarray]:
        order = np.random.default_rng(number).permutation(len(reader))
        for first in range(0, len(order) - batch_size + 1, batch_size):
            batch = np.empty((batch_size, size, size, 3), np.uint8)
            images = decoder.decode([stream(int(i)) for i in order[first : first + batch_size]])
            for out, image in zip(batch, images):
                place(out, image)
            yield batch

    return Batches(epoch, lambda batch: batch, {"versions": {"nvImageCodec": codec.__version__}})
