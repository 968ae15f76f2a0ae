"""Loading for Gluon: the loader of a plain Gluon script, and adapters that overlap copies with the compute."""

from __future__ import annotations

import dataclasses
import queue
import threading
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Callable

import numpy as np

from gluontune.core.errors import GluontuneError, UsageError
from gluontune.core.files import Closing
from gluontune.loading.augment import Augment, Draws
from gluontune.loading.base import Loader
from gluontune.loading.dataloader import SafeDataLoader
from gluontune.runtime import mxnet
from gluontune.runtime.arrays import lent


def to_device(images: Any, labels: Any, ctx: Any) -> Any:
    """Put one batch on a device, or a share of it on each of several.

    On the CPU a numpy batch is not copied: the NDArray reads its memory, which is reserved until MXNet releases it. On
    a GPU it is copied through page-locked memory, asynchronously.

    Args:
        images: numpy uint8 (N, H, W, C) or an NDArray.
        labels: numpy (N,) or an NDArray; numpy labels become float32, as Gluon's losses expect.
        ctx: an ``mx.Context``, or a list of them.

    Returns:
        ``(images, labels)`` on one context; for a list, a list of such pairs: shares as equal as possible, and none
        empty (Gluon's ``split_and_load`` fails on 3 samples for 4 devices).

    Raises:
        UsageError: an empty list of contexts.

    >>> mx = mxnet()
    >>> batch, classes = np.zeros((3, 8, 8, 3), np.uint8), np.arange(3)
    >>> images, labels = to_device(batch, classes, mx.cpu())
    >>> images.shape, images.dtype.__name__, labels.asnumpy().tolist()
    ((3, 8, 8, 3), 'uint8', [0.0, 1.0, 2.0])
    >>> [len(part) for part, _ in to_device(batch, classes, [mx.cpu(i) for i in range(4)])]
    [1, 1, 1]
    """
    labels = labels.astype(np.float32) if isinstance(labels, np.ndarray) else labels
    if not isinstance(ctx, (list, tuple)):
        return _copied_to(images, ctx), _copied_to(labels, ctx)
    if not ctx:
        raise UsageError("ctx=[]: give at least one context")
    n, share = len(images), len(ctx)
    edges = [n * k // share for k in range(share + 1)]
    return [
        (_copied_to(images[a:b], device), _copied_to(labels[a:b], device))
        for a, b, device in zip(edges, edges[1:], ctx)
        if b > a
    ]


def _copied_to(array: Any, ctx: Any) -> Any:
    mx = mxnet()
    if not isinstance(array, np.ndarray):
        return array.as_in_context(ctx)
    if ctx.device_type == "cpu" and ctx.device_id == 0:
        return lent(array)
    if ctx.device_type == "cpu":
        return mx.nd.array(array, ctx=ctx, dtype=array.dtype)
    return mx.nd.array(array, ctx=mx.cpu_pinned(ctx.device_id), dtype=array.dtype).as_in_context(ctx)


class DeviceLoader(Closing):
    """Any loader, with its batches on the device(s) ahead of time.

    A thread takes batches from the loader and starts their copies while you compute. A drop-in for
    ``gluon.data.DataLoader``: ``for images, labels in loader`` is one epoch.

    Args:
        loader: of ``gt.loading.build``, or any iterable of (images, labels).
        ctx: an ``mx.Context``, or a list of them (then each item is a list of pairs, see ``to_device``).
        ahead: batches that wait on the device, at least 1.

    >>> from gluontune.loading import ResidentLoader
    >>> import cv2
    >>> class Split:
    ...     labels = np.arange(4)
    ...     def __len__(self): return 4
    ...     def read(self, i): return cv2.imencode(".png", np.full((8, 8, 1), i, np.uint8))[1]
    >>> loader = DeviceLoader(ResidentLoader(Split(), batch_size=2, image_shape=(8, 8, 1)), mxnet().cpu())
    >>> [images[:, 0, 0, 0].asnumpy().tolist() for images, labels in loader]
    [[0, 1], [2, 3]]
    """

    def __init__(self, loader: Any, ctx: Any, ahead: int = 2):
        if ahead < 1:
            raise UsageError(f"ahead={ahead}: give a whole number of at least 1")
        self.loader, self.ctx, self.ahead = loader, ctx, ahead
        self._stop: threading.Event | None = None
        self._thread: threading.Thread | None = None

    def __len__(self) -> int:
        return len(self.loader)

    def __iter__(self) -> Iterator[Any]:
        return self._run(iter(self.loader))

    def epoch(self, n: int) -> Iterator[Any]:
        """The batches of epoch ``n`` of the loader, on the device."""
        return self._run(self.loader.epoch(n))

    def close(self) -> None:
        """End the thread and the loader."""
        self._end()
        if hasattr(self.loader, "close"):
            self.loader.close()

    def _end(self) -> None:
        if self._stop is not None and self._thread is not None:
            self._stop.set()
            self._thread.join(timeout=10.0)
        self._stop = self._thread = None

    def _run(self, batches: Iterator[Any]) -> Iterator[Any]:
        self._end()
        stop = self._stop = threading.Event()
        ready: queue.Queue[tuple[str, Any]] = queue.Queue(self.ahead)
        self._thread = threading.Thread(
            target=self._feed, args=(batches, ready, stop), name="gluontune-device", daemon=True
        )
        self._thread.start()
        try:
            while True:
                kind, item = ready.get()
                if kind == "error":
                    raise item
                if kind == "end":
                    return
                yield item
                del item
        finally:
            stop.set()

    def _feed(self, batches: Iterator[Any], ready: queue.Queue[tuple[str, Any]], stop: threading.Event) -> None:
        def offer(kind: str, item: Any) -> None:
            while not stop.is_set():
                try:
                    ready.put((kind, item), timeout=0.2)
                    return
                except queue.Full:
                    continue

        try:
            for images, labels in batches:
                offer("batch", to_device(images, labels, self.ctx))
                if stop.is_set():
                    return
            offer("end", None)
        except BaseException as error:  # the consumer must get any error
            offer("error", error)
        finally:
            close = getattr(batches, "close", None)
            if close is not None:
                close()


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
    """The same part of ``image`` as in all our loaders, resized by MXNet if its size differs."""
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
    """Colour jitter or RandAugment, which Gluon lacks: ours, drawn from numpy as in Gluon's transforms."""
    only = dataclasses.replace(augment, geometry="fit", flip=False, jitter=0.0)
    pixels = image.asnumpy()
    only.draw(np.random.default_rng(np.random.randint(1 << 31)), 1).finish(pixels, 0)
    return mxnet().nd.array(pixels, dtype="uint8")


class GluonLoader(Loader):
    """The baseline: a plain Gluon script with one file and one chain of transforms a sample.

    Args:
        split: also needs ``files()``: one image file a sample.
        num_workers: forked processes; 0 loads in the training thread.
        prefetch: batches made ahead; None: twice the workers.
        mean, std: of each channel, for pixels of 0 … 1; None: without ``Normalize``.
        others: see :class:`gluontune.loading.base.Loader`.
    """

    name = "gluon"
    yields = "float32-nchw"

    def __init__(
        self, split: Any, *, num_workers: int = 0, prefetch: int | None = None,
        mean: Sequence[float] | None = None, std: Sequence[float] | None = None, **order: Any,
    ):  # fmt: skip
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
