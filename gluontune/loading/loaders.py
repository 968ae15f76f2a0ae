"""The registry of loaders, and the one call that builds any of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from gluontune.errors import UsageError
from gluontune.loading.splits import open_source
from gluontune.registry import Registry, resolve

__all__ = ["LOADERS", "LoaderInfo", "build"]

FRAMEWORKS = ("numpy", "torch")


@dataclass(frozen=True)
class LoaderInfo:
    """One loader: what a Recipe calls it and what to expect of it.

    Args:
        name: what a Recipe says.
        summary: one sentence.
        yields: ``uint8-nhwc`` (numpy) or ``float32-nchw`` (NDArrays).
        needs: what must be there: ``mxnet``, ``memory`` for all images, or nothing.
        factory: ``"module:class"``, imported when it is built.
    """

    name: str
    summary: str
    yields: str
    needs: tuple[str, ...]
    factory: str


LOADERS: Registry[LoaderInfo] = Registry("loader")
for _info in (
    LoaderInfo(
        "gluon",
        "what a plain Gluon script does: one image file a sample, transforms in Python, forked workers",
        "float32-nchw",
        ("mxnet",),
        "gluontune.loading.gluon:GluonLoader",
    ),
    LoaderInfo(
        "threaded",
        "decodes and augments on threads into recycled uint8 batches; for data of any size",
        "uint8-nhwc",
        (),
        "gluontune.loading.threaded:ThreadedLoader",
    ),
    LoaderInfo(
        "resident",
        "decodes once, keeps all images in memory and augments a batch at a time; for small data sets",
        "uint8-nhwc",
        ("memory",),
        "gluontune.loading.resident:ResidentLoader",
    ),
):
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
        prefetch: batches made ahead; None lets the loader choose.
        mean, std: of each channel, for pixels of 0 … 1. A loader that yields float32 applies them; the
            others carry them for the device.
        framework: ``numpy`` gives what the loader yields; ``torch`` a :class:`gluontune.loading.TorchLoader` around it,
            a drop-in for PyTorch's DataLoader.
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
        open_source(split),
        batch_size=batch_size,
        image_shape=image_shape,
        augment=augment,
        shuffle=shuffle,
        seed=seed,
        num_workers=num_workers,
        prefetch=prefetch,
        last_batch=last_batch,
        rank=rank,
        world_size=world_size,
        partition=partition,
        mean=mean,
        std=std,
    )
    if framework == "numpy":
        return loader
    from gluontune.loading.pytorch import TorchLoader

    return TorchLoader(loader, device, normalize)
