"""Augmentations of a whole batch: mixup, CutMix, random erasing, RandAugment, and soft labels.

Each takes a numpy batch of a loader and a generator, and returns new arrays, which depend on these alone.

>>> rng = np.random.default_rng([0, 3, 17])  # seed, epoch, batch
>>> images, labels = np.zeros((4, 8, 8, 3), np.uint8), np.arange(4)
>>> mixed, targets = mixup(images, labels, rng, num_classes=10)
>>> mixed.shape, targets.shape, bool(np.allclose(targets.sum(1), 1))
((4, 8, 8, 3), (4, 10), True)
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from typing import Callable

import cv2
import numpy as np

from gluontune.core.errors import UsageError
from gluontune.loading import colour


def soft_labels(labels: np.ndarray, num_classes: int, smoothing: float = 0.0) -> np.ndarray:
    """Class numbers as probabilities, float32 (N, num_classes): ``1 - smoothing`` on the label, the rest evenly on all.

    Args:
        labels: int (N,), 0 … ``num_classes`` - 1. smoothing: 0 … 1.

    Source: Szegedy et al., "Rethinking the Inception Architecture" (2016), section 7.

    Raises:
        UsageError: a label or ``smoothing`` out of range.

    >>> soft_labels(np.array([1]), 2, smoothing=0.2).round(2).tolist()
    [[0.10000000149011612, 0.8999999761581421]]
    """
    labels = np.asarray(labels)
    if not 0 <= smoothing < 1:
        raise UsageError(f"smoothing={smoothing}: give at least 0 and less than 1")
    if labels.size and not 0 <= labels.min() <= labels.max() < num_classes:
        raise UsageError(f"labels {labels.min()} to {labels.max()}: with num_classes={num_classes} give 0 and up")
    targets = np.full((len(labels), num_classes), smoothing / num_classes, np.float32)
    targets[np.arange(len(labels)), labels.astype(np.int64)] += np.float32(1 - smoothing)
    return targets


def mixup(
    images: np.ndarray,
    labels: np.ndarray,
    rng: np.random.Generator,
    *,
    num_classes: int,
    alpha: float = 0.2,
    smoothing: float = 0.0,
) -> tuple[np.ndarray, np.ndarray]:
    """Each image blended with the one before it in the batch, by one share drawn from Beta(alpha, alpha).

    The pairing (the batch rolled by one) is as in ``torchvision.transforms.v2.MixUp``: batches are shuffled already.
    Source: Zhang et al., "mixup: Beyond Empirical Risk Minimization" (2018).

    Args:
        images: uint8 (N, H, W, C). labels: int64 (N,). rng: see the module.
        num_classes, smoothing: see :func:`soft_labels`. alpha: above 0; small values hardly change images.

    Returns:
        images as uint8, rounded; targets, float32 (N, num_classes).

    Raises:
        UsageError: a value out of range.
    """
    targets = soft_labels(labels, num_classes, smoothing)
    mixed, share = mixup_images(images, rng, alpha)
    return mixed, _blend(targets, share)


def mixup_images(images: np.ndarray, rng: np.random.Generator, alpha: float) -> tuple[np.ndarray, float]:
    """The images of :func:`mixup`, uint8 (N, H, W, C), and the share of each one's label."""
    share = _share(rng, alpha)
    mixed = images * np.float32(share) + np.roll(images, 1, 0) * np.float32(1 - share)
    return np.rint(mixed).astype(np.uint8), share


def cutmix(
    images: np.ndarray,
    labels: np.ndarray,
    rng: np.random.Generator,
    *,
    num_classes: int,
    alpha: float = 1.0,
    smoothing: float = 0.0,
) -> tuple[np.ndarray, np.ndarray]:
    """A box of each image replaced by the previous image's; labels are mixed by the box's true area.

    The box has the image's shape and is clipped at the border, as in ``torchvision.transforms.v2.CutMix``.

    Args:
        images, labels, rng, num_classes, alpha, smoothing: as :func:`mixup`'s.

    Source: Yun et al., "CutMix: Regularization Strategy to Train Strong Classifiers" (2019).

    Returns and raises as :func:`mixup`.

    >>> rng = np.random.default_rng(0)
    >>> mixed, targets = cutmix(np.zeros((4, 8, 8, 3), np.uint8), np.arange(4), rng, num_classes=4)
    >>> mixed.shape, targets.shape
    ((4, 8, 8, 3), (4, 4))
    """
    mixed, kept = cutmix_images(images, rng, alpha)
    return mixed, _blend(soft_labels(labels, num_classes, smoothing), kept)


def cutmix_images(images: np.ndarray, rng: np.random.Generator, alpha: float) -> tuple[np.ndarray, float]:
    """The images of :func:`cutmix`, uint8 (N, H, W, C), and the share of each one's label."""
    share = _share(rng, alpha)
    height, width = images.shape[1:3]
    y, x = int(rng.integers(height)), int(rng.integers(width))
    half_h, half_w = (int(0.5 * math.sqrt(1 - share) * side) for side in (height, width))
    top, left = max(y - half_h, 0), max(x - half_w, 0)
    bottom, right = min(y + half_h, height), min(x + half_w, width)
    mixed = images.copy()
    mixed[:, top:bottom, left:right] = np.roll(images[:, top:bottom, left:right], 1, 0)
    return mixed, 1 - (bottom - top) * (right - left) / (height * width)


def random_erasing(
    images: np.ndarray,
    rng: np.random.Generator,
    *,
    probability: float = 0.5,
    area: tuple[float, float] = (0.02, 0.33),
    ratio: tuple[float, float] = (0.3, 3.3),
    value: int = 0,
) -> np.ndarray:
    """A random box of some images set to ``value``; defaults and draws are those of torchvision's RandomErasing.

    Source: Zhong et al., "Random Erasing Data Augmentation" (2020).

    Args:
        images: uint8 (N, H, W, C). rng: see the module.
        probability: of each image. area: share of the image. ratio: height by width, drawn on a log scale.
        value: 0 to 255.

    Raises:
        UsageError: a value out of range.

    >>> white = np.full((2, 32, 32, 3), 255, np.uint8)
    >>> erased = random_erasing(white, np.random.default_rng(0), probability=1.0)
    >>> erased.shape, bool((erased == 0).any())
    ((2, 32, 32, 3), True)
    """
    low, high = ratio
    if not (0 <= probability <= 1 and 0 < area[0] <= area[1] <= 1 and 0 < low <= high and 0 <= value <= 255):
        raise UsageError(f"probability={probability}, area={area}, ratio={ratio}, value={value}: out of range")
    erased, (height, width) = images.copy(), images.shape[1:3]
    chosen = rng.random(len(images)) < probability
    draws = rng.random((len(images), 10, 4))  # ten tries, as torchvision
    for i in np.flatnonzero(chosen).tolist():
        for u_area, u_ratio, u_top, u_left in draws[i].tolist():
            size = height * width * (area[0] + (area[1] - area[0]) * u_area)
            aspect = math.exp(math.log(low) + (math.log(high) - math.log(low)) * u_ratio)
            h, w = round(math.sqrt(size * aspect)), round(math.sqrt(size / aspect))
            if h < height and w < width:
                top, left = int(u_top * (height - h + 1)), int(u_left * (width - w + 1))
                erased[i, top : top + h, left : left + w] = value
                break
    return erased


def _share(rng: np.random.Generator, alpha: float) -> float:
    if not alpha > 0:
        raise UsageError(f"alpha={alpha}: give a number above 0")
    return float(rng.beta(alpha, alpha))


def _blend(targets: np.ndarray, share: float) -> np.ndarray:
    return targets * np.float32(share) + np.roll(targets, 1, 0) * np.float32(1 - share)


# Operations, strengths and nearest pixels are those of ``torchvision.transforms.RandAugment`` on Pillow images. Source:
# Cubuk et al., "RandAugment: Practical automated data augmentation with a reduced search space" (2020).
BINS = 31  # magnitudes are 0 … 30
Change = Callable[[np.ndarray, float, int], None]


def rand_augment(
    images: np.ndarray, rng: np.random.Generator, *, num_ops: int = 2, magnitude: int = 9, fill: int = 0
) -> np.ndarray:
    """``num_ops`` operations on each image, each drawn from :data:`OPERATIONS`, with a random sign if it has one.

    Args:
        images: uint8 (N, H, W, C), C 3 (RGB) or 1. rng: of the draws.
        num_ops: at least 0. magnitude: 0 … 30, of all operations.
        fill: value of pixels from outside the image, 0 … 255.

    Raises:
        UsageError: a value out of range.

    >>> white = np.full((1, 8, 8, 1), 255, np.uint8)
    >>> bool((rand_augment(white, np.random.default_rng(0), num_ops=0) == white).all())
    True
    """
    if num_ops < 0 or not 0 <= magnitude < BINS:
        raise UsageError(
            f"num_ops={num_ops}, magnitude={magnitude}: give at least 0, and a magnitude of 0 to {BINS - 1}"
        )
    if not 0 <= fill <= 255:
        raise UsageError(f"fill={fill}: give 0 to 255")
    out = images.copy()
    for image, drawn in zip(out, draw_operations(rng, len(out), num_ops, magnitude).tolist()):
        apply_operations(image, drawn, fill)
    return out


def draw_operations(rng: np.random.Generator, n: int, num_ops: int, magnitude: int) -> np.ndarray:
    """The operations of ``n`` images: int64 (n, num_ops, 2), the operation's number and the magnitude with its sign."""
    numbers = rng.integers(0, len(OPERATIONS), (n, num_ops))
    signs = 2 * rng.integers(0, 2, (n, num_ops)) - 1
    return np.stack([numbers, signs * magnitude], axis=2)


def apply_operations(image: np.ndarray, drawn: Sequence[Sequence[int]], fill: int = 0) -> None:
    """The drawn operations on one image, uint8 (H, W, C), in place, one after another."""
    place = image[..., 0] if image.ndim == 3 and image.shape[2] == 1 else image
    for number, level in drawn:
        _CHANGES[int(number)](place, level / (BINS - 1), fill)


def _rotate(image: np.ndarray, share: float, fill: int) -> None:
    """About the centre, up to 30 degrees; positive ones counterclockwise."""
    angle = -math.radians(30 * share % 360)
    cos, sin = round(math.cos(angle), 15), round(math.sin(angle), 15)
    x, y = image.shape[1] / 2, image.shape[0] / 2
    _affine(image, (cos, sin, x - cos * x - sin * y, -sin, cos, y + sin * x - cos * y), fill)


def _posterize(image: np.ndarray, share: float, fill: int) -> None:
    """Keep the upper 8 to 4 bits."""
    bits = 8 - int(np.rint(abs(share) * 4))
    image &= np.uint8(255 & ~(2 ** (8 - bits) - 1))


def _autocontrast(image: np.ndarray, share: float, fill: int) -> None:
    """Stretch each channel to 0 … 255."""
    for plane in _planes(image):
        low, high = int(plane.min()), int(plane.max())
        if high > low:
            scale = 255.0 / (high - low)
            table = np.clip(np.trunc(np.arange(256) * scale - low * scale), 0, 255)
            plane[...] = table.astype(np.uint8)[plane]


def _equalize(image: np.ndarray, share: float, fill: int) -> None:
    """Make each channel's histogram as even as possible."""
    for plane in _planes(image):
        counts = np.bincount(plane.ravel(), minlength=256)
        present = counts[counts > 0]
        step = int(counts.sum() - present[-1]) // 255 if len(present) > 1 else 0
        if step:
            before = np.concatenate([[0], np.cumsum(counts)[:-1]])
            plane[...] = np.minimum((step // 2 + before) // step, 255).astype(np.uint8)[plane]


def _coloured(change: Callable[[np.ndarray, float], None]) -> Change:
    return lambda image, share, fill: change(image, 1 + 0.9 * share)


_TABLE: dict[str, Change] = {
    "identity": lambda image, share, fill: None,
    "shear-x": lambda image, share, fill: _affine(image, (1.0, 0.3 * share, 0.0, 0.0, 1.0, 0.0), fill),
    "shear-y": lambda image, share, fill: _affine(image, (1.0, 0.0, 0.0, 0.3 * share, 1.0, 0.0), fill),
    "translate-x": lambda image, share, fill: _affine(image, (1.0, 0.0, _moved(image, 1, share), 0.0, 1.0, 0.0), fill),
    "translate-y": lambda image, share, fill: _affine(image, (1.0, 0.0, 0.0, 0.0, 1.0, _moved(image, 0, share)), fill),
    "rotate": _rotate, "brightness": _coloured(colour.brightness), "color": _coloured(colour.saturation),
    "contrast": _coloured(colour.contrast), "sharpness": _coloured(colour.sharpness), "posterize": _posterize,
    # Thresholds as float32, like torchvision's table of them.
    "solarize": lambda image, share, fill:
        np.copyto(image, 255 - image, where=image >= np.float32(255 * (1 - abs(share)))),
    "autocontrast": _autocontrast, "equalize": _equalize,
}  # fmt: skip
#: The names of the operations, in torchvision's order.
OPERATIONS = tuple(_TABLE)
_CHANGES = tuple(_TABLE.values())


def _moved(image: np.ndarray, axis: int, share: float) -> float:
    return -float(int(150 / 331 * image.shape[axis] * share))


def _planes(image: np.ndarray) -> list[np.ndarray]:
    return [image] if image.ndim == 2 else [image[..., k] for k in range(image.shape[2])]


def _affine(image: np.ndarray, matrix: tuple[float, ...], fill: int) -> None:
    """The nearest pixel of ``matrix`` · (x, y, 1), in place; Pillow's ``Image.transform`` in its 16.16 arithmetic."""
    columns, rows = _sources(image.shape[1], image.shape[0], matrix)
    image[...] = cv2.remap(
        image, columns, rows, cv2.INTER_NEAREST, borderMode=cv2.BORDER_CONSTANT, borderValue=(fill,) * 4
    ).reshape(image.shape)


@functools.lru_cache(maxsize=64)
def _sources(width: int, height: int, matrix: tuple[float, ...]) -> tuple[np.ndarray, np.ndarray]:
    def fixed(value: float) -> int:
        return math.floor(value * 65536 + 0.5)

    x, y = np.arange(width, dtype=np.int64), np.arange(height, dtype=np.int64)[:, np.newaxis]
    axes = (matrix[:3], matrix[3:])
    found = [(fixed(c + a * 0.5 + b * 0.5) + fixed(a) * x + fixed(b) * y) >> 16 for a, b, c in axes]
    return found[0].astype(np.float32), found[1].astype(np.float32)
