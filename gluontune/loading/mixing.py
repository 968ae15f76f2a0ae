"""Augmentations of a whole batch: mixup, CutMix, random erasing, and soft labels.

Each takes a numpy batch of a loader and a generator, and returns new arrays, which depend on these alone.

>>> rng = np.random.default_rng([0, 3, 17])  # seed, epoch, batch
>>> images, labels = np.zeros((4, 8, 8, 3), np.uint8), np.arange(4)
>>> mixed, targets = mixup(images, labels, rng, num_classes=10)
>>> mixed.shape, targets.shape, bool(np.allclose(targets.sum(1), 1))
((4, 8, 8, 3), (4, 10), True)
"""

from __future__ import annotations

import math

import numpy as np

from gluontune.core.errors import UsageError


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
