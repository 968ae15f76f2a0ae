"""The registry of loaders, the one call that builds any of them, and splits of files without a named data set."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from gluontune import datasets
from gluontune.core.errors import GluontuneError, UsageError
from gluontune.core.files import PathLike
from gluontune.datasets.split import FileSplit, RecordSplit, Split
from gluontune.recipe.registry import Registry, resolve
from gluontune.records import RecordReader

FRAMEWORKS = ("numpy", "torch")


@dataclass(frozen=True)
class LoaderInfo:
    """One loader: its entry in the registry.

    Args:
        name: as in a Recipe.
        summary: one sentence.
        yields: ``uint8-nhwc`` (numpy) or ``float32-nchw`` (NDArrays).
        needs: requirements: ``mxnet``, ``memory`` for all images, or nothing.
        factory: ``"module:class"``, imported when it is built.
    """

    name: str
    summary: str
    yields: str
    needs: tuple[str, ...]
    factory: str


LOADERS: Registry[LoaderInfo] = Registry("loader")
for _info in (
    LoaderInfo("gluon", "what a plain Gluon script does: one image file a sample, transforms in Python, forked workers",
               "float32-nchw", ("mxnet",), "gluontune.loading.gluon:GluonLoader"),
    LoaderInfo("threaded", "decodes and augments on threads into recycled uint8 batches; for data of any size",
               "uint8-nhwc", (), "gluontune.loading.threaded:ThreadedLoader"),
    LoaderInfo("resident",
               "decodes once, keeps all images in memory and augments a batch at a time; for small data sets",
               "uint8-nhwc", ("memory",), "gluontune.loading.resident:ResidentLoader"),
):  # fmt: skip
    LOADERS.add(_info.name, _info)


def build(
    name: str,
    split: Any,
    *,
    batch_size: int,
    image_shape: Sequence[int],
    augment: str = "none",
    shuffle: bool = False,
    seed: int = 0,
    num_workers: int = 0,
    prefetch: int | None = None,
    last_batch: str = "discard",
    rank: int = 0,
    world_size: int = 1,
    partition: str = "shard",
    mean: Sequence[float] | None = None,
    std: Sequence[float] | None = None,
    framework: str = "numpy",
    device: Any = None,
    normalize: bool = False,
) -> Any:
    """Build the loader ``name`` over ``split``.

    Args:
        name: of ``LOADERS``.
        split: a split of ``gt.datasets`` (``len``, ``labels`` int64 (N,), ``read(i)`` → encoded image), the path of a
            ``.rec`` file, or the name of a data set (its training part).
        batch_size: images in a batch of this rank.
        image_shape: (H, W, C), C 3 (RGB) or 1 (grey).
        augment: of ``AUGMENTS``.
        shuffle, seed, last_batch, rank, world_size, partition: see :class:`gluontune.loading.Order`.
        num_workers: threads (``threaded``) or forked processes (``gluon``); 0: the calling thread.
        prefetch: batches made ahead; None: the loader's choice.
        mean, std: of each channel, for pixels of 0 … 1. A loader that yields float32 applies them; the others store
            them for the device.
        framework: ``numpy`` returns the loader; ``torch`` a :class:`gluontune.loading.TorchLoader` around it, a drop-in
            for PyTorch's DataLoader.
        device, normalize: of the ``TorchLoader``.

    Raises:
        UsageError: unknown names, values out of range.
        GluontuneError: the loader cannot hold or read the data.

    >>> import gluontune as gt
    >>> test = gt.datasets.open("sample").test
    >>> with build("threaded", test, batch_size=100, image_shape=(28, 28, 1)) as loader:
    ...     images, labels = next(loader.epoch(0))
    >>> images.shape, images.dtype.name, labels.shape, len(loader)
    ((100, 28, 28, 1), 'uint8', (100,), 20)
    """
    info = LOADERS[name]
    if framework not in FRAMEWORKS:
        raise UsageError(f"framework={framework!r}: choose one of {', '.join(FRAMEWORKS)}")
    if framework != "torch" and (device is not None or normalize):
        raise UsageError("device and normalize go with framework='torch'")
    if framework == "torch" and info.yields != "uint8-nhwc":
        raise UsageError(f"loader {name!r} yields NDArrays: with framework='torch' use 'threaded' or 'resident'")
    factory = resolve(info.factory)
    loader = factory(
        open_source(split), batch_size=batch_size, image_shape=image_shape, augment=augment, shuffle=shuffle,
        seed=seed, num_workers=num_workers, prefetch=prefetch, last_batch=last_batch, rank=rank,
        world_size=world_size, partition=partition, mean=mean, std=std,
    )  # fmt: skip
    if framework == "numpy":
        return loader
    from gluontune.loading.pytorch import TorchLoader  # which imports cv2

    return TorchLoader(loader, device, normalize)


def from_files(files: Sequence[PathLike], labels: Sequence[int]) -> Split:
    """Image files and their class numbers, as a split that every loader reads.

    Args:
        files: paths of images. labels: an int for each.

    >>> len(from_files(["a.jpg", "b.jpg"], [0, 1]))
    2

    Raises:
        UsageError: not one label for each file.
    """
    numbers = np.asarray(labels, np.int64)
    if numbers.shape != (len(files),):
        raise UsageError(f"{len(files)} files but labels of shape {numbers.shape}")
    return FileSplit("files", "all", "", [os.fspath(f) for f in files], numbers, _classes(numbers))


def from_records(path: PathLike) -> Split:
    """All records of a ``.rec`` file in its order; an ``.idx`` beside it is used.

    Of several labels of a record the first is used.

    Args:
        path: the ``.rec`` file.

    Raises:
        GluontuneError: no such file, damage that hides the records, or no records.
    """
    with RecordReader(path) as reader:
        if len(reader) == 0:
            raise GluontuneError(f"{os.fspath(path)}: the file holds no records")
        labels = np.asarray(reader.labels())
        numbers = (labels if labels.ndim == 1 else labels[:, 0]).astype(np.int64)
    return RecordSplit("records", "all", path, numbers, _classes(numbers))


def open_source(source: Any) -> Any:
    """A split by a ``.rec`` file, the name of a data set (its training part), or a split."""
    if not isinstance(source, (str, os.PathLike)):
        return source
    if Path(source).suffix == ".rec" or Path(source).is_file():
        return from_records(source)
    return datasets.open(os.fspath(source)).train


def seeded_subset(split: Any, count: int | None, seed: int) -> Any:
    """The first ``count`` images of a seeded shuffle, in the split's order; all for None."""
    if count is None or count >= len(split):
        return split
    return split.subset(np.sort(np.random.default_rng(seed).permutation(len(split))[:count]))


def _classes(labels: np.ndarray) -> list[str]:
    return [str(k) for k in range(int(labels.max(initial=0)) + 1)] if labels.min(initial=0) >= 0 else []
