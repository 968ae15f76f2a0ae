"""PyTorch's DataLoader as work of a contender, and decoding alone. Runs in the peers' interpreter."""

from __future__ import annotations

import importlib
import io
import math
import random
import threading
import time
from typing import Any

import numpy as np

from gluontune.bench.batches import Batches
from gluontune.codec.raw import raw_to_pixels
from gluontune.records import RecordReader

__all__ = ["Crops", "DecodeLimit", "Records", "dataloader", "limit"]


def random_box(height: int, width: int) -> tuple[int, int, int, int]:
    """torchvision's ``RandomResizedCrop.get_params``: top, left, height, width."""
    for _ in range(10):
        area = height * width * random.uniform(0.08, 1.0)
        ratio = math.exp(random.uniform(math.log(3 / 4), math.log(4 / 3)))
        w, h = round(math.sqrt(area * ratio)), round(math.sqrt(area / ratio))
        if 0 < w <= width and 0 < h <= height:
            return random.randint(0, height - h), random.randint(0, width - w), h, w
    side = min(height, width)
    return (height - side) // 2, (width - side) // 2, side, side


class Crops:
    """From a payload to uint8 (size, size, 3): random-resized crop or padded crop, flip; another at each call.

    torchvision is not needed: the crops are its own, made with Pillow or OpenCV as its users do.

    Args:
        decoder: ``Pillow``, ``OpenCV``, or ``raw`` for pixels that are kept as they are.
    """

    def __init__(self, size: int, augment: str, decoder: str):
        self.size, self.augment, self.decoder = size, augment, decoder

    def __call__(self, payload: Any) -> np.ndarray:
        return self.with_pillow(payload) if self.decoder == "Pillow" else self.with_opencv(payload)

    def with_pillow(self, payload: Any) -> np.ndarray:
        """Decode, crop, resize and flip with Pillow."""
        pillow = importlib.import_module("PIL.Image")
        image, size = pillow.open(io.BytesIO(payload)).convert("RGB"), self.size
        if self.augment == "pad-crop-flip":
            image = importlib.import_module("PIL.ImageOps").expand(image, 4)
            left, top = random.randint(0, 8), random.randint(0, 8)
            image = image.crop((left, top, left + size, top + size))
        else:
            top, left, h, w = random_box(image.height, image.width)
            image = image.resize((size, size), pillow.BILINEAR, (left, top, left + w, top + h))
        if random.random() < 0.5:
            image = image.transpose(pillow.FLIP_LEFT_RIGHT)
        return np.array(image)

    def with_opencv(self, payload: Any) -> np.ndarray:
        """The same with OpenCV."""
        cv2 = importlib.import_module("cv2")
        size = self.size
        if self.decoder == "raw":
            image = raw_to_pixels(payload)
            image = np.repeat(image, 3, axis=2) if image.shape[2] == 1 else image
        else:
            image = cv2.imdecode(np.frombuffer(payload, np.uint8), cv2.IMREAD_COLOR)
        if self.augment == "pad-crop-flip":
            image = cv2.copyMakeBorder(image, 4, 4, 4, 4, cv2.BORDER_CONSTANT)
            top, left = random.randint(0, 8), random.randint(0, 8)
            image = image[top : top + size, left : left + size]
        else:
            top, left, h, w = random_box(*image.shape[:2])
            image = cv2.resize(image[top : top + h, left : left + w], (size, size))
        if self.decoder != "raw":
            image = cv2.cvtColor(image, cv2.COLOR_BGR2RGB)
        return cv2.flip(image, 1) if random.random() < 0.5 else image.copy()


class Records:
    """A map-style data set over a record file: uint8 HWC tensors."""

    def __init__(self, path: str, crops: Crops):
        self.reader, self.crops = RecordReader(path), crops
        self.from_numpy = importlib.import_module("torch").from_numpy

    def __len__(self) -> int:
        return len(self.reader)

    def __getitem__(self, index: int) -> tuple[Any, int]:
        return self.from_numpy(self.crops(self.reader.payload(index))), index


def dataloader(path: str, size: int, batch_size: int, augment: str, num_workers: int, decoder: str) -> Batches:
    """``torch.utils.data.DataLoader``, workers kept over the epochs, one thread in each."""
    torch = importlib.import_module("torch")
    if decoder != "Pillow":
        importlib.import_module("cv2").setNumThreads(0)  # the workers are the parallelism
    loader = torch.utils.data.DataLoader(
        Records(path, Crops(size, augment, decoder)),
        batch_size=batch_size,
        shuffle=True,
        num_workers=num_workers,
        drop_last=True,
        persistent_workers=num_workers > 0,
    )
    version = importlib.import_module("PIL" if decoder == "Pillow" else "cv2").__version__
    versions = {"torch": torch.__version__, "Pillow" if decoder == "Pillow" else "opencv (peers)": version}
    return Batches(lambda number: loader, lambda batch: batch[0], {"versions": versions})


class DecodeLimit:
    """Decoding alone with simplejpeg (libjpeg-turbo), of payloads in memory; a step lasts ``seconds``."""

    def __init__(self, path: str, seconds: float, workers: int):
        with RecordReader(path) as reader:
            self.payloads = [bytes(reader.payload(i)) for i in range(min(len(reader), 512))]
        self.decode = importlib.import_module("simplejpeg").decode_jpeg
        self.seconds, self.workers = seconds, workers
        self.info = {"payloads": len(self.payloads), "workers": workers}

    def step(self) -> int:
        """Decode for the time of a slice; the number of images."""
        end, done = time.perf_counter() + self.seconds, [0] * self.workers

        def work(k: int) -> None:
            while time.perf_counter() < end:
                for payload in self.payloads[k :: self.workers] or self.payloads:
                    self.decode(payload)
                    done[k] += 1
                    if time.perf_counter() >= end:
                        break

        threads = [threading.Thread(target=work, args=(k,), daemon=True) for k in range(self.workers)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return sum(done)


def limit(path: str, seconds: float, workers: int) -> DecodeLimit:
    """The most that a loader that decodes every pixel could reach."""
    return DecodeLimit(path, seconds, workers)
