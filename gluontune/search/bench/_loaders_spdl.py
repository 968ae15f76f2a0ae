"""SPDL as work of a contender, over the record file itself. Runs in the peers' interpreter."""

from __future__ import annotations

import importlib
import random
from collections.abc import Iterator
from typing import Any

import numpy as np

from gluontune.codec.header import inspect
from gluontune.records import RecordReader
from gluontune.search.bench._loaders_torch import random_box
from gluontune.search.bench.batches import Batches

__all__ = ["filters", "loader"]


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


def loader(path: str, size: int, batch_size: int, augment: str, num_threads: int) -> Batches:
    """A ``Pipeline``: images decoded, cropped and resized by SPDL's FFmpeg on threads, then put together."""
    media, pipelines = importlib.import_module("spdl.io"), importlib.import_module("spdl.pipeline")
    reader = RecordReader(path)

    def decode(index: int) -> Any:
        payload = bytes(reader.payload(index))
        return media.decode_packets(media.demux_image(payload), filter_desc=filters(payload, size, augment))

    try:
        decode(0)  # a pipeline would leave out what fails
    except RuntimeError as error:
        raise RuntimeError(f"{error} (SPDL wants FFmpeg; Debian, Ubuntu: apt install ffmpeg)") from error

    def together(frames: Any) -> np.ndarray:
        batch: np.ndarray = media.to_numpy(media.convert_frames(frames))
        return batch

    def epoch(number: int) -> Iterator[np.ndarray]:
        order = np.random.default_rng(number).permutation(len(reader)).tolist()
        pipeline = (
            pipelines.PipelineBuilder()
            .add_source(order)
            .pipe(decode, concurrency=num_threads)
            .aggregate(batch_size, drop_last=True)
            .pipe(together)
            .add_sink(2)
            .build(num_threads=num_threads, max_failures=0)
        )
        with pipeline.auto_stop():
            yield from pipeline

    version = importlib.import_module("importlib.metadata").version("spdl-io")
    return Batches(epoch, lambda batch: batch, {"versions": {"spdl-io": version}})
