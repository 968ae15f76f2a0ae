"""RandAugment: a few operations on each image, drawn from fourteen, all of one strength.

Operations, strengths and pixels are those of ``torchvision.transforms.RandAugment`` on Pillow images; nearest pixels,
as there. Source: Cubuk et al., "RandAugment: Practical automated data augmentation with a reduced search space" (2020).

>>> images = np.random.default_rng(0).integers(0, 256, (4, 32, 32, 3), np.uint8)
>>> rand_augment(images, np.random.default_rng([0, 3, 17])).shape
(4, 32, 32, 3)
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
    check(num_ops, magnitude)
    if not 0 <= fill <= 255:
        raise UsageError(f"fill={fill}: give 0 to 255")
    out = images.copy()
    for image, drawn in zip(out, draw(rng, len(out), num_ops, magnitude).tolist()):
        apply(image, drawn, fill)
    return out


def check(num_ops: int, magnitude: int) -> None:
    """Refuse values out of range."""
    if num_ops < 0 or not 0 <= magnitude < BINS:
        raise UsageError(
            f"num_ops={num_ops}, magnitude={magnitude}: give at least 0, and a magnitude of 0 to {BINS - 1}"
        )


def draw(rng: np.random.Generator, n: int, num_ops: int, magnitude: int) -> np.ndarray:
    """The operations of ``n`` images: int64 (n, num_ops, 2), the operation's number and the magnitude with its sign."""
    numbers = rng.integers(0, len(OPERATIONS), (n, num_ops))
    signs = 2 * rng.integers(0, 2, (n, num_ops)) - 1
    return np.stack([numbers, signs * magnitude], axis=2)


def apply(image: np.ndarray, drawn: Sequence[Sequence[int]], fill: int = 0) -> None:
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
    found = []
    for a, b, c in (matrix[:3], matrix[3:]):
        found.append((fixed(c + a * 0.5 + b * 0.5) + fixed(a) * x + fixed(b) * y) >> 16)
    return found[0].astype(np.float32), found[1].astype(np.float32)
