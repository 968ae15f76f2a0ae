"""nvImageCodec on the CPU as work of a contender. Runs in the peers' interpreter."""

from __future__ import annotations

import importlib
import random
from collections.abc import Iterator
from typing import Any

import numpy as np

from gluontune.records import RecordReader
from gluontune.search.bench._loaders_torch import random_box
from gluontune.search.bench.batches import Batches

__all__ = ["loader"]


def loader(path: str, size: int, batch_size: int, augment: str, num_threads: int) -> Batches:
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
