"""Loaders with Python workers as work of a contender: PyTorch's, WebDataset, MosaicML Streaming, Grain; decoding alone.

Runs in the peers' interpreter. All read the same bytes, and decode and augment by Pillow or OpenCV as their users do.
"""

from __future__ import annotations

import importlib
import importlib.util
import io
import itertools
import math
import random
import re
import tarfile
import time
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from importlib.metadata import version
from pathlib import Path
from typing import Any, Callable

import numpy as np

from gluontune.codec.image import raw_to_pixels
from gluontune.records import RecordReader


class Batches:
    """Takes batch after batch and lets each go at once; the first one is taken when it is built.

    ``epoch`` returns the batches of epoch 0, 1, …; ``images`` those of a batch, with a ``shape`` of (N, ...), once they
    are there; ``boxes`` its boxes. ``end`` ends threads and workers.

    >>> import numpy as np
    >>> work = Batches(lambda n: [np.zeros((4, 2)), np.zeros((3, 2))], lambda batch: batch)
    >>> [work.step() for _ in range(3)]
    [3, 4, 3]
    """

    def __init__(
        self, epoch: Callable[[int], Iterable[Any]], images: Callable[[Any], Any], info: dict[str, Any] | None = None,
        end: Callable[[], None] | None = None, boxes: Callable[[Any], Any] | None = None,
    ):  # fmt: skip
        self._epoch, self._images, self._end, self._boxes = epoch, images, end, boxes
        self._number = 0
        self._next()
        self.info = {**(info or {}), **self.first()}

    def _next(self) -> None:
        self._batches = iter(self._epoch(self._number))
        self._number += 1

    def first(self) -> dict[str, Any]:
        batch = next(self._batches)
        images = self._images(batch)
        dtype = str(getattr(images.dtype, "__name__", images.dtype))
        found = {"batch_shape": [int(n) for n in images.shape], "dtype": dtype.replace("torch.", "")}
        return found if self._boxes is None else {**found, "boxes": [int(n) for n in self._boxes(batch).shape]}

    def step(self) -> int:
        batch = next(self._batches, None)
        if batch is None:
            self._next()
            batch = next(self._batches)
        return int(self._images(batch).shape[0])

    def close(self) -> None:
        if self._end is not None:
            self._end()
            self._end = None


class DecodeLimit:
    """Decoding alone, of payloads in memory: a step is one call of ``decode``, which returns their number."""

    def __init__(self, path: str, workers: int, decode: Callable[[list[bytes]], int]):
        with RecordReader(path) as reader:
            self.payloads = [bytes(reader.payload(i)) for i in range(min(len(reader), 512))]
        self.decode = decode
        self.info = {"payloads": len(self.payloads), "workers": workers}

    def step(self) -> int:
        return self.decode(self.payloads)


class Sleeper:
    """Each step takes ``sleep_s`` seconds and counts ``units``: for the documentation and the tests of contests."""

    def __init__(self, units: int, sleep_s: float):
        self.units, self.sleep_s = units, sleep_s
        self.info: dict[str, Any] = {"sleep_s": sleep_s}
        self.steps = 0

    def step(self) -> int:
        time.sleep(self.sleep_s)
        self.steps += 1
        return self.units

    def count(self) -> int:
        return self.steps


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

    torchvision is not needed: the crops are its own, made with Pillow or OpenCV as its users do. ``decoder`` is
    ``Pillow``, ``OpenCV``, or ``raw`` for undecoded pixels.
    """

    def __init__(self, size: int, augment: str, decoder: str):
        self.size, self.augment, self.decoder = size, augment, decoder

    def __call__(self, payload: Any) -> np.ndarray:
        return self._with_pillow(payload) if self.decoder == "Pillow" else self._with_opencv(payload)

    def _with_pillow(self, payload: Any) -> np.ndarray:
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

    def _with_opencv(self, payload: Any) -> np.ndarray:
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


class Payloads:
    """The payloads of a record file, by index."""

    def __init__(self, path: str):
        self.reader = RecordReader(path)

    def __len__(self) -> int:
        return len(self.reader)

    def __getitem__(self, index: Any) -> Any:
        return self.reader.payload(int(index))


class Records(Payloads):
    """A map-style data set over a record file: uint8 HWC tensors."""

    def __init__(self, path: str, crops: Crops):
        super().__init__(path)
        self.crops, self.from_numpy = crops, importlib.import_module("torch").from_numpy

    def __getitem__(self, index: Any) -> Any:
        return self.from_numpy(self.crops(super().__getitem__(index))), index


def dataloader(path: str, size: int, batch_size: int, augment: str, num_workers: int, decoder: str) -> Batches:
    """``torch.utils.data.DataLoader``, workers kept over the epochs, one thread in each."""
    torch = importlib.import_module("torch")
    if decoder != "Pillow":
        importlib.import_module("cv2").setNumThreads(0)  # the workers are the parallelism
    loader = torch.utils.data.DataLoader(
        Records(path, Crops(size, augment, decoder)), batch_size=batch_size, shuffle=True, num_workers=num_workers,
        drop_last=True, persistent_workers=num_workers > 0,
    )  # fmt: skip
    module, name = ("PIL", "Pillow") if decoder == "Pillow" else ("cv2", "opencv (peers)")
    versions = {"torch": torch.__version__, name: importlib.import_module(module).__version__}
    return Batches(lambda number: loader, lambda batch: batch[0], {"versions": versions})


def limit(path: str, seconds: float, workers: int) -> DecodeLimit:
    """simplejpeg's decoding alone (libjpeg-turbo): the upper limit of loaders that decode every pixel."""
    decode = importlib.import_module("simplejpeg").decode_jpeg

    def rate(payloads: list[bytes]) -> int:
        end = time.perf_counter() + seconds

        def work(k: int) -> int:
            for done, payload in enumerate(itertools.cycle(payloads[k::workers] or payloads), 1):
                decode(payload)
                if time.perf_counter() >= end:
                    return done
            return 0

        with ThreadPoolExecutor(workers) as pool:
            return sum(pool.map(work, range(workers)))

    return DecodeLimit(path, workers, rate)


def _tar_shards(path: str, folder: Path, shards: int) -> list[str]:
    """The images of ``path``, dealt out to ``shards`` tar files in ``folder``; their paths."""
    folder.mkdir(parents=True, exist_ok=True)
    names = [str(folder / f"shard-{k:04d}.tar") for k in range(shards)]
    with RecordReader(path) as reader:
        for k, name in enumerate(names):
            with tarfile.open(name, "w") as tar:
                for i in range(k, len(reader), shards):
                    payload = bytes(reader.payload(i))
                    info = tarfile.TarInfo(f"{i:08d}.jpg")
                    info.size = len(payload)
                    tar.addfile(info, io.BytesIO(payload))
    return names


def webdataset(path: str, size: int, batch_size: int, augment: str, num_workers: int, folder: str) -> Batches:
    """``WebDataset``, shuffled in a buffer, decoded and made into batches by the workers of a ``WebLoader``."""
    library, torch = importlib.import_module("webdataset"), importlib.import_module("torch")
    importlib.import_module("cv2").setNumThreads(0)  # the workers are the parallelism
    shards = _tar_shards(path, Path(folder) / f"{Path(path).stem}-webdataset", 4 * max(1, num_workers))
    crops = Crops(size, augment, "OpenCV")

    def tensor(payload: Any) -> Any:
        return torch.from_numpy(crops(payload))

    data = library.WebDataset(shards, shardshuffle=len(shards)).shuffle(1000).to_tuple("jpg").map_tuple(tensor)
    made = library.WebLoader(
        data.batched(batch_size, partial=False), batch_size=None, num_workers=num_workers,
        persistent_workers=num_workers > 0,
    )  # fmt: skip
    return Batches(lambda number: made, lambda batch: batch[0], {"versions": {"webdataset": library.__version__}})


def streaming(path: str, size: int, batch_size: int, augment: str, num_workers: int, folder: str) -> Batches:
    """A local ``StreamingDataset``, shuffled by itself, decoded by OpenCV in a ``StreamingDataLoader``'s workers."""
    torch = importlib.import_module("torch")
    _let_torchvision_in(torch)
    library = importlib.import_module("streaming")
    importlib.import_module("cv2").setNumThreads(0)  # the workers are the parallelism
    library.base.util.clean_stale_shared_memory()  # of a killed contender
    shards = str(Path(folder) / f"{Path(path).stem}-mds")
    with RecordReader(path) as reader, library.MDSWriter(out=shards, columns={"image": "bytes"}) as writer:
        for i in range(len(reader)):
            writer.write({"image": bytes(reader.payload(i))})
    crops = Crops(size, augment, "OpenCV")

    class Images(library.StreamingDataset):  # type: ignore[misc, name-defined]
        def __getitem__(self, index: Any) -> Any:
            return torch.from_numpy(crops(super().__getitem__(index)["image"]))

    made = library.StreamingDataLoader(
        Images(local=shards, shuffle=True, batch_size=batch_size), batch_size=batch_size, num_workers=num_workers,
        drop_last=True, persistent_workers=num_workers > 0,
    )  # fmt: skip
    versions = {"mosaicml-streaming": version("mosaicml-streaming")}
    return Batches(lambda number: made, lambda batch: batch, {"versions": versions})


def _let_torchvision_in(torch: Any) -> None:
    """Let Streaming import torchvision, for data sets that are not used here.

    PyPI's torchvision is a build for CUDA: beside PyTorch's build for CPUs its operators cannot be loaded, and its
    import fails where it registers them. Declared operators, which are never called, avoid that.
    """
    spec = importlib.util.find_spec("torchvision")
    if spec is None or spec.origin is None or torch.version.cuda is not None:
        return
    text = (Path(spec.origin).parent / "_meta_registrations.py").read_text()
    for name in {*re.findall(r'register_meta\("(\w+)"', text), *re.findall(r"torchvision::(\w+)", text)}:
        torch.library.define(f"torchvision::{name}", "(Tensor any) -> Tensor")


def grain(path: str, size: int, batch_size: int, augment: str, threads: int, processes: int) -> Batches:
    """A shuffled ``MapDataset``, decoded by OpenCV on ``threads``, or in ``processes`` if above 0."""
    library = importlib.import_module("grain")
    importlib.import_module("cv2").setNumThreads(0)  # the threads are the parallelism
    importlib.import_module("absl.flags").FLAGS.mark_as_parsed()  # required by its processes
    options = library.ReadOptions(num_threads=max(1, threads), prefetch_buffer_size=2 * batch_size)

    def epoch(number: int) -> Any:
        data = library.MapDataset.source(Payloads(path)).shuffle(seed=number).map(Crops(size, augment, "OpenCV"))
        made = data.to_iter_dataset(options).batch(batch_size, drop_remainder=True)
        if processes:
            made = made.mp_prefetch(library.MultiprocessingOptions(num_workers=processes))
        return made

    return Batches(epoch, lambda batch: batch, {"versions": {"grain": version("grain")}})
