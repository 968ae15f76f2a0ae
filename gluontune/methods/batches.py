"""Methods that change a training batch, uint8 images (N, H, W, C) and labels (none its inputs), or make it larger."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import cv2
import numpy as np

from gluontune.loading import mixing
from gluontune.loading.base import METHOD, generator
from gluontune.loading.colour import color_jitter
from gluontune.loading.mixing import rand_augment


def change_batch(
    chosen: Mapping[str, Mapping[str, Any]],
    images: np.ndarray,
    labels: np.ndarray,
    key: tuple[int, int, int, int],
    mean: np.ndarray,
    progress: float,
) -> tuple[np.ndarray, np.ndarray]:
    """The batch after the chosen methods of kind ``batch``, in the order of the cards.

    Args:
        images: uint8 (N, H, W, C). labels: int (N,). key: of the random numbers: seed, epoch, rank, batch.
        mean: the data set's colour, uint8 (C,). progress: elapsed share of the training, 0 … 1.
    """
    seed, epoch, rank, batch = key
    rng, grey = generator(seed, epoch, METHOD, rank, batch), round(float(np.mean(mean)))
    for name, params in chosen.items():
        if name == "color-jitter":
            images = color_jitter(images, rng, **params)
        elif name == "randaugment":
            images = rand_augment(images, rng, **params, fill=grey)
        elif name == "cutout":
            images = cutout(images, params["length"], rng, mean)
        elif name == "random-erasing":
            area, ratio = (params["smallest"], params["largest"]), (params["ratio"], 1 / params["ratio"])
            images = mixing.random_erasing(
                images, rng, probability=params["probability"], area=area, ratio=ratio, value=grey
            )
        elif name in ("mixup", "cutmix"):
            mix = mixing.mixup_images if name == "mixup" else mixing.cutmix_images
            images, share = mix(images, rng, params["alpha"])
            labels = blended(labels, share)
        elif name == "progressive-resizing":
            course = {k: v for k, v in params.items() if k != "multiple"}
            images = resized(images, scale_of(progress, **course), params["multiple"])
    return images, labels


def cutout(images: np.ndarray, length: int, rng: np.random.Generator, fill: Any = 0) -> np.ndarray:
    """Set a square of each image to one colour; its centre is any pixel, so that a part may be outside.

    Args:
        images: uint8 (N, H, W, C). length: side of the square in pixels. rng: of the places.
        fill: the colour, (C,) or a number: the data set's mean, which is zero after normalization.

    Returns:
        new images. Source: DeVries and Taylor, 2017 (section 3.2).

    >>> whole = np.full((2, 9, 9, 1), 7, np.uint8)
    >>> sorted(set(cutout(whole, 3, generator(0)).ravel().tolist()))
    [0, 7]
    """
    count, height, width, _ = images.shape
    out = images.copy()
    rows, columns = rng.integers(0, height, count), rng.integers(0, width, count)
    for image, row, column in zip(out, rows.tolist(), columns.tolist()):
        top, left = row - length // 2, column - length // 2
        image[max(0, top) : max(0, top + length), max(0, left) : max(0, left + length)] = fill
    return out


def blended(labels: np.ndarray, share: float) -> np.ndarray:
    """Each label, the label of the image before it in the batch, and the first one's share: float32 (N, 3).

    Args:
        labels: class numbers, (N,). share: of each image's label, 0 … 1.

    >>> blended(np.array([4, 9]), 0.75).tolist()
    [[4.0, 9.0, 0.75], [9.0, 4.0, 0.75]]
    """
    shares = np.full(len(labels), share)
    return np.stack([labels, np.roll(labels, 1), shares], axis=1).astype(np.float32)


def scale_of(progress: float, initial: float, delay: float, end: float) -> float:
    """The images' share of the full side at a point of the training.

    Args:
        progress: elapsed share of the training. initial: the first scale.
        delay: the end of the first scale. end: the start of full size; the scale rises linearly between them.

    >>> [scale_of(p, 0.5, 0.2, 0.8) for p in (0.0, 0.2, 0.5, 0.8, 1.0)]
    [0.5, 0.5, 0.75, 1.0, 1.0]
    """
    if progress >= end:
        return 1.0
    risen = max(0.0, progress - delay) / (end - delay) if end > delay else 0.0
    return initial + (1.0 - initial) * risen


def resized(images: np.ndarray, scale: float, multiple: int) -> np.ndarray:
    """Images of a smaller side, each pixel the mean of its area.

    Args:
        images: uint8 (N, H, W, C). scale: share of the side, up to 1. multiple: sides are rounded to it.

    Returns:
        uint8 (N, h, w, C), the sides at least ``multiple`` and at most the old ones.

    >>> resized(np.zeros((2, 32, 32, 3), np.uint8), 0.5, 4).shape
    (2, 16, 16, 3)
    """
    count, height, width, channels = images.shape
    tall, wide = (min(size, max(multiple, round(size * scale / multiple) * multiple)) for size in (height, width))
    if (tall, wide) == (height, width):
        return images
    out = np.empty((count, tall, wide, channels), np.uint8)
    for small, image in zip(out, images):
        small[:] = cv2.resize(image, (wide, tall), interpolation=cv2.INTER_AREA).reshape(tall, wide, channels)
    return out


class UpdatePlan:
    """The number of steps of an update in the course of a training; updates are whole at each change.

    Args:
        total: steps of the training. accumulate: steps of an update at its start.
        start: share of the training before the batch first grows. factor: of each growth.
        times: number of growths, at equal distances from ``start`` to the end.

    Source: Smith et al., Don't Decay the Learning Rate, Increase the Batch Size, 2018.

    >>> plan = UpdatePlan(12, 1, start=0.5, factor=2, times=2)
    >>> [plan.size(step) for step in range(12)]
    [1, 1, 1, 1, 1, 1, 2, 2, 2, 2, 4, 4]
    >>> [plan.updates(steps) for steps in (0, 6, 7, 8, 10, 12)]
    [0, 6, 6, 7, 8, 8]
    """

    def __init__(self, total: int, accumulate: int = 1, start: float = 0.5, factor: int = 2, times: int = 0) -> None:
        self._parts = [(0, accumulate)]  # first step, steps of an update
        for k in range(times):
            begun, size = self._parts[-1]
            wanted = total * (start + (1 - start) * k / times)
            whole = begun + max(0, math.ceil((wanted - begun) / size - 1e-9)) * size
            self._parts.append((whole, size * factor))

    def size(self, step: int) -> int:
        """The number of steps of the update with step ``step`` (from 0)."""
        return next(size for first, size in reversed(self._parts) if step >= first)

    def updates(self, steps: int) -> int:
        """Whole updates after a number of steps."""
        ends = [first for first, _ in self._parts[1:]] + [max(steps, self._parts[-1][0])]
        return sum(max(0, min(end, steps) - first) // size for (first, size), end in zip(self._parts, ends))

    def complete(self, steps: int) -> bool:
        """Whether the last of a number of steps ends an update."""
        first, size = next(part for part in reversed(self._parts) if steps > part[0])
        return (steps - first) % size == 0

    def growth(self) -> list[tuple[int, int]]:
        """For :func:`gluontune.optim.schedules.stretch`: numbers of updates, and the later ones' size in first ones."""
        usual = self._parts[0][1]
        return [(self.updates(first), size // usual) for first, size in self._parts[1:]]
