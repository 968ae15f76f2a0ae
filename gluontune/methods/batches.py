"""Methods that change a training batch: uint8 images (N, H, W, C) and labels, by random numbers that are handed in.

None changes what it is given. Mixup, CutMix and random erasing are those of :mod:`gluontune.loading.mixing`, colour
jitter and RandAugment those of :mod:`gluontune.loading`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import cv2
import numpy as np

from gluontune.loading import mixing
from gluontune.loading.colour import color_jitter
from gluontune.loading.order import METHOD, generator
from gluontune.loading.randaugment import rand_augment

__all__ = ["blended", "change_batch", "cutout", "resized", "scale_of"]


def change_batch(
    chosen: Mapping[str, Mapping[str, Any]],
    images: np.ndarray,
    labels: np.ndarray,
    key: tuple[int, int, int, int],
    mean: np.ndarray,
    progress: float,
) -> tuple[np.ndarray, np.ndarray]:
    """The batch after the chosen methods, in the order of the cards.

    Args:
        chosen: methods of kind ``batch`` with all their parameters.
        images: uint8 (N, H, W, C). labels: int (N,).
        key: of the random numbers: seed, epoch, rank, batch. mean: the data set's colour, uint8 (C,).
        progress: share of the training that is over, 0 … 1.

    >>> some = np.arange(48, dtype=np.uint8).reshape(1, 4, 4, 3)
    >>> change_batch({"cutout": {"length": 8}}, some, np.array([3]), (0, 0, 0, 0), np.zeros(3, np.uint8), 0.0)[0].max()
    0
    """
    seed, epoch, rank, batch = key
    rng = generator(seed, epoch, METHOD, rank, batch)
    for name, params in chosen.items():
        if name == "color-jitter":
            images = color_jitter(images, rng, **params)
        elif name == "randaugment":
            images = rand_augment(images, rng, **params, fill=round(float(np.mean(mean))))
        elif name == "cutout":
            images = cutout(images, params["length"], rng, mean)
        elif name == "random-erasing":
            area, ratio = (params["smallest"], params["largest"]), (params["ratio"], 1 / params["ratio"])
            grey = round(float(np.mean(mean)))
            images = mixing.random_erasing(
                images, rng, probability=params["probability"], area=area, ratio=ratio, value=grey
            )
        elif name in ("mixup", "cutmix"):
            mix = mixing.mixup_images if name == "mixup" else mixing.cutmix_images
            images, share = mix(images, rng, params["alpha"])
            labels = blended(labels, share)
        elif name == "progressive-resizing":
            own = {k: v for k, v in params.items() if k != "multiple"}
            images = resized(images, scale_of(progress, **own), params["multiple"])
    return images, labels


def cutout(images: np.ndarray, length: int, rng: np.random.Generator, fill: Any = 0) -> np.ndarray:
    """Set a square of each image to one colour; its centre is any pixel, so that a part may lie outside.

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
    """Each label, that of the image before it in the batch, and the share of its own: float32 (N, 3).

    Args:
        labels: class numbers, (N,). share: of each image's own label, 0 … 1.

    >>> blended(np.array([4, 9]), 0.75).tolist()
    [[4.0, 9.0, 0.75], [9.0, 4.0, 0.75]]
    """
    shares = np.full(len(labels), share)
    return np.stack([labels, np.roll(labels, 1), shares], axis=1).astype(np.float32)


def scale_of(progress: float, initial: float, delay: float, end: float) -> float:
    """The share of the full side that images have at a point of the training.

    Args:
        progress: share of the training that is over. initial: the first scale.
        delay: until when it stays. end: from when images are whole; between them it rises in a straight line.

    >>> [scale_of(p, 0.5, 0.2, 0.8) for p in (0.0, 0.2, 0.5, 0.8, 1.0)]
    [0.5, 0.5, 0.75, 1.0, 1.0]
    """
    if progress >= end:
        return 1.0
    risen = max(0.0, progress - delay) / (end - delay) if end > delay else 0.0
    return initial + (1.0 - initial) * risen


def resized(images: np.ndarray, scale: float, multiple: int) -> np.ndarray:
    """Images of a smaller side, each pixel the mean of those that it stands for.

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
