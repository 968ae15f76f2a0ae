"""The baseline loader: what a plain Gluon script does, with Gluon's own data sets and transforms."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Callable

import numpy as np

from gluontune.errors import GluontuneError
from gluontune.loading.augment import Augment, Draws
from gluontune.loading.base import Loader
from gluontune.loading.dataloader import SafeDataLoader
from gluontune.runtime import mxnet

__all__ = ["GluonLoader"]


class ImageFiles:
    """A Gluon data set of one image file a sample: (float32 CHW NDArray, class number)."""

    def __init__(self, files: Sequence[Any], labels: Iterable[int], flag: int, transform: Callable[[Any], Any]):
        self.files, self.labels = list(files), [int(v) for v in labels]
        self.flag, self.transform = flag, transform

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, index: int) -> tuple[Any, int]:
        mx = mxnet()
        path = str(self.files[index])
        try:
            image = mx.image.imread(path, flag=self.flag)
        except (mx.MXNetError, OSError) as error:
            reason = str(error).strip().splitlines()[-1] if str(error).strip() else type(error).__name__
            raise GluontuneError(f"{path}: not an image that MXNet can read: {reason}") from None
        return self.transform(image), self.labels[index]


def gluon_transform(
    augment: Augment, shape: tuple[int, int, int], mean: Sequence[float] | None, std: Sequence[float] | None
) -> Any:
    """The transforms of a tutorial for ``augment``, ToTensor and Normalize included."""
    mx = mxnet()
    transforms = mx.gluon.data.vision.transforms
    height, width, channels = shape
    steps: list[Any] = []
    if augment.geometry == "resized-crop":
        steps.append(transforms.RandomResizedCrop((width, height)))
    else:
        steps.append(_function_block(lambda image: fit(image, augment, shape)))
    if augment.geometry == "pad-crop":
        steps.append(_function_block(lambda image: pad_crop(image, augment.pad, width, height)))
    if augment.flip:
        steps.append(transforms.RandomFlipLeftRight())
    if augment.jitter:
        steps.append(
            transforms.RandomColorJitter(augment.jitter, augment.jitter, augment.jitter if channels == 3 else 0)
        )
    if any(augment.colour) or augment.operations:
        steps.append(_function_block(lambda image: finish(image, augment)))
    steps.append(transforms.ToTensor())
    if mean is not None or std is not None:
        steps.append(transforms.Normalize(tuple(mean or (0.0,)), tuple(std or (1.0,))))
    return transforms.Compose(steps)


def _function_block(function: Callable[[Any], Any]) -> Any:
    class FunctionBlock(mxnet().gluon.Block):  # type: ignore[misc, name-defined]
        def forward(self, image: Any) -> Any:
            return function(image)

    return FunctionBlock()


def fit(image: Any, augment: Augment, shape: tuple[int, int, int]) -> Any:
    """The part of ``image`` that all our loaders take, resized by MXNet where its size differs."""
    height, width = image.shape[:2]
    if (height, width) == shape[:2] and augment.geometry != "center":
        return image
    top, left, h, w = augment.box(Draws(), 0, height, width, shape)
    return mxnet().image.fixed_crop(image, left, top, w, h, size=(shape[1], shape[0]), interp=1)


def pad_crop(image: Any, pad: int, width: int, height: int) -> Any:
    """Zero-pad and crop at random, as GluonCV's ``RandomCrop(32, pad=4)`` of its CIFAR script does."""
    mx = mxnet()
    padded = np.pad(image.asnumpy(), ((pad, pad), (pad, pad), (0, 0)), mode="constant", constant_values=0)
    return mx.image.random_crop(mx.nd.array(padded, dtype="uint8"), (width, height))[0]


def finish(image: Any, augment: Augment) -> Any:
    """Colour jitter or RandAugment, which Gluon lacks: ours, drawn as Gluon's own transforms draw, from numpy."""
    only = dataclasses.replace(augment, geometry="fit", flip=False, jitter=0.0)
    pixels = image.asnumpy()
    only.draw(np.random.default_rng(np.random.randint(1 << 31)), 1).finish(pixels, 0)
    return mxnet().nd.array(pixels, dtype="uint8")


class GluonLoader(Loader):
    """The baseline: what a plain Gluon script does, one file and one chain of transforms a sample.

    Args:
        split: also needs ``files()``: one image file a sample.
        num_workers: forked processes; 0 loads in the training thread.
        prefetch: batches made ahead; None: twice the workers.
        mean, std: of each channel, for pixels of 0 … 1; None leaves ``Normalize`` out.
        others: see :class:`gluontune.loading.base.Loader`.
    """

    name = "gluon"
    yields = "float32-nchw"

    def __init__(
        self,
        split: Any,
        *,
        num_workers: int = 0,
        prefetch: int | None = None,
        mean: Sequence[float] | None = None,
        std: Sequence[float] | None = None,
        **order: Any,
    ):
        super().__init__(split, **order)
        self.num_workers, self.prefetch, self.mean, self.std = int(num_workers), prefetch, mean, std
        flag = 1 if self.image_shape[2] == 3 else 0
        transform = gluon_transform(self.augment, self.image_shape, mean, std)
        dataset = ImageFiles(split.files(), self.labels, flag, transform)
        self._loader = SafeDataLoader(dataset, self.order, num_workers=self.num_workers, prefetch=prefetch)

    def _batches(self, epoch: int, start: int) -> Iterator[tuple[Any, Any]]:
        return ((images, labels) for images, labels in self._loader.epoch(epoch, start))

    def close(self) -> None:
        self._loader.close()
