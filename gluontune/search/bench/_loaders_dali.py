"""NVIDIA DALI's CPU pipeline as work of a contender. Runs in the peers' interpreter."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from gluontune.search.bench.batches import Batches

__all__ = ["pipeline"]


class _Images:
    """The dense uint8 NHWC tensor of a batch, where DALI made it."""

    def __init__(self, tensors: Any):
        self.shape, self.dtype = tensors.as_tensor().shape(), "uint8"


def pipeline(
    path: str, size: int, batch_size: int, augment: str, num_threads: int, prefetch: int, fused: bool
) -> Batches:
    """``readers.mxnet`` → decode, crop, resize, flip on the CPU; uint8 NHWC, the resize not antialiased.

    Args:
        fused: ``decoders.image_random_crop`` (decodes the crop's region) instead of a whole decode.
    """
    dali = importlib.import_module("nvidia.dali")
    fn, types = importlib.import_module("nvidia.dali.fn"), importlib.import_module("nvidia.dali.types")

    @dali.pipeline_def(
        batch_size=batch_size, num_threads=num_threads, device_id=None, prefetch_queue_depth=prefetch, seed=1
    )
    def build() -> Any:
        index = str(Path(path).with_suffix(".idx"))
        data, label = fn.readers.mxnet(
            path=[path], index_path=[index], random_shuffle=True, initial_fill=1024, name="reader"
        )
        mirror = fn.random.coin_flip(probability=0.5)
        if augment == "pad-crop-flip":
            images = fn.decoders.image(data, device="cpu", output_type=types.RGB)
            return (
                fn.crop_mirror_normalize(
                    fn.pad(images, axes=[0, 1], shape=[size + 8, size + 8]),
                    crop=(size, size),
                    crop_pos_x=fn.random.uniform(range=(0.0, 1.0)),
                    crop_pos_y=fn.random.uniform(range=(0.0, 1.0)),
                    mirror=mirror,
                    dtype=types.UINT8,
                    output_layout="HWC",
                    mean=[0.0],
                    std=[1.0],
                ),
                label,
            )
        area, ratio = [0.08, 1.0], [3 / 4, 4 / 3]
        if fused:
            images = fn.decoders.image_random_crop(
                data, device="cpu", output_type=types.RGB, random_area=area, random_aspect_ratio=ratio
            )
            images = fn.resize(images, size=(size, size), antialias=False)
        else:
            images = fn.decoders.image(data, device="cpu", output_type=types.RGB)
            images = fn.random_resized_crop(
                images, size=(size, size), random_area=area, random_aspect_ratio=ratio, antialias=False
            )
        return fn.flip(images, horizontal=mirror), label

    made = build()
    made.build()

    def epoch(number: int) -> Iterator[Any]:
        while True:
            yield made.run()

    info = {"versions": {"nvidia-dali": dali.__version__}}
    return Batches(epoch, lambda batch: _Images(batch[0]), info)
