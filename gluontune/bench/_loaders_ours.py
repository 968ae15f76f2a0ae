"""Our loaders, and the limit of decoding, as work of a contender."""

from __future__ import annotations

from collections.abc import Callable
from importlib.metadata import version
from typing import Any

from gluontune.bench.batches import Batches
from gluontune.loading import FieldsLoader, ResidentLoader, ThreadedLoader, decoder_name, from_records
from gluontune.loading.measure import decode_rate

__all__ = ["DecodeLimit", "boxes", "limit", "resident", "threaded"]


def threaded(path: str, size: int, batch_size: int, augment: str, num_workers: int, scaled: bool) -> Batches:
    """``ThreadedLoader`` over a record file."""
    return _batches(ThreadedLoader, path, size, batch_size, augment, num_workers=num_workers, scaled=scaled)


def resident(path: str, size: int, batch_size: int, augment: str) -> Batches:
    """``ResidentLoader`` over a record file."""
    return _batches(ResidentLoader, path, size, batch_size, augment)


def boxes(path: str, size: int, batch_size: int, num_workers: int) -> Batches:
    """``FieldsLoader`` over detection records."""
    loader = FieldsLoader(
        path,
        fields=["boxes"],
        batch_size=batch_size,
        image_shape=(size, size, 3),
        augment="stretch-flip",
        shuffle=True,
        num_workers=num_workers,
    )
    return _of(loader, lambda batch: batch[1]["boxes"])


def _batches(kind: Any, path: str, size: int, batch_size: int, augment: str, **more: Any) -> Batches:
    shape = (size, size, 3)
    return _of(
        kind(from_records(path), batch_size=batch_size, image_shape=shape, augment=augment, shuffle=True, **more)
    )


def _of(loader: Any, boxes: Callable[[Any], Any] | None = None) -> Batches:
    info = {"decoder": decoder_name(), "versions": {"opencv": version("opencv-python-headless")}}
    return Batches(loader.epoch, lambda batch: batch[0], info, loader.close, boxes)


class DecodeLimit:
    """Decoding alone, of payloads in memory, on all cores; a step lasts ``seconds``."""

    def __init__(self, path: str, seconds: float, workers: int):
        split = from_records(path)
        self.payloads = [bytes(split.read(i)) for i in range(min(len(split), 512))]
        self.seconds, self.workers = seconds, workers
        self.info = {"payloads": len(self.payloads), "workers": workers}

    def step(self) -> int:
        """Decode for the time of a slice; the number of images."""
        return decode_rate(self.payloads, self.workers, self.seconds)[0]


def limit(path: str, seconds: float, workers: int) -> DecodeLimit:
    """The most that a loader that decodes every pixel could reach."""
    return DecodeLimit(path, seconds, workers)
