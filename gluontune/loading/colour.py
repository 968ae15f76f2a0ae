"""Changes of colour, by the definitions of Pillow's ``ImageEnhance`` and ``ImageOps`` (which torchvision calls).

The functions of one image change it in place: uint8 (H, W, 3), RGB, or (H, W), grey. Those of a batch take uint8
(N, H, W, C) and a generator, and return new arrays.

>>> image = np.full((2, 2, 3), (100, 50, 0), np.uint8)
>>> brightness(image, 1.5)
>>> image[0, 0].tolist()
[150, 75, 0]
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Callable

import cv2
import numpy as np

from gluontune.core.errors import UsageError

# ITU-R BT.601 luma, as in cv2.cvtColor and PIL.
LUMA = np.array([0.299, 0.587, 0.114], np.float32)
_LEVELS = np.arange(256, dtype=np.float32)
_SMOOTH = np.array([[1, 1, 1], [1, 5, 1], [1, 1, 1]], np.float32) / 13


def grey_of(image: np.ndarray) -> np.ndarray:
    """The luma of RGB (H, W, 3) as Pillow rounds it, uint8 (H, W); grey (H, W) unchanged.

    >>> grey_of(np.full((1, 1, 3), (255, 0, 0), np.uint8)).tolist()
    [[76]]
    """
    if image.ndim == 2:
        return image
    red, green, blue = (image[..., k].astype(np.uint32) for k in range(3))
    return ((red * 19595 + green * 38470 + blue * 7471 + 0x8000) >> 16).astype(np.uint8)


def brightness(image: np.ndarray, factor: float) -> None:
    """0 is black, 1 the image, 2 twice as bright."""
    _look_up(image, _LEVELS * np.float32(factor))


def contrast(image: np.ndarray, factor: float) -> None:
    """Away from the image's mean luma: 0 is that grey, 1 the image."""
    mean = np.float32(int(grey_of(image).mean() + 0.5))
    _look_up(image, mean + np.float32(factor) * (_LEVELS - mean))


def saturation(image: np.ndarray, factor: float) -> None:
    """Away from each pixel's luma: 0 is grey, 1 the image. A grey image is unchanged."""
    if image.ndim == 3:
        _away_from(image, grey_of(image)[..., np.newaxis], factor)


def sharpness(image: np.ndarray, factor: float) -> None:
    """Away from the smoothed image, with an unchanged border: 0 is smooth, 1 the image."""
    smooth = image.copy()
    if min(image.shape[:2]) > 2:
        smooth[1:-1, 1:-1] = cv2.filter2D(image, -1, _SMOOTH)[1:-1, 1:-1]
    _away_from(image, smooth, factor)


def hue(image: np.ndarray, turn: float) -> None:
    """Turn the hue by ``turn`` of the colour circle (-0.5 … 0.5); in floating point, without Pillow's 256 steps."""
    if image.ndim == 3:
        hsv = cv2.cvtColor(image.astype(np.float32) / 255, cv2.COLOR_RGB2HSV)
        hsv[..., 0] = (hsv[..., 0] + np.float32(360 * turn)) % 360
        image[...] = np.rint(cv2.cvtColor(hsv, cv2.COLOR_HSV2RGB) * 255)


#: The steps of :func:`color_jitter`, in the order of its strengths.
STEPS: tuple[Callable[[np.ndarray, float], None], ...] = (brightness, contrast, saturation, hue)


def draw_steps(rng: np.random.Generator, n: int, strengths: Sequence[float]) -> np.ndarray:
    """For each image the numbers of the ``STEPS`` in a random order, with the factor of each: float64 (n, k, 2)."""
    wanted = [k for k in range(4) if strengths[k] > 0]
    spread = rng.uniform(-1, 1, (n, 4)) * np.asarray(strengths) + (1, 1, 1, 0)
    factors = np.maximum(spread, (0, 0, 0, -0.5))
    order = rng.permuted(np.tile(np.array(wanted, np.int64), (n, 1)), axis=1)
    return np.stack([order, np.take_along_axis(factors, order, 1)], axis=2)


def color_jitter(
    images: np.ndarray,
    rng: np.random.Generator,
    *,
    brightness: float = 0.4,
    contrast: float = 0.4,
    saturation: float = 0.4,
    hue: float = 0.1,
) -> np.ndarray:
    """Each image's colours changed by its own factors, in its own order, as torchvision's ``ColorJitter``.

    Args:
        images: uint8 (N, H, W, C), C 3 (RGB) or 1. rng: of the factors.
        brightness, contrast, saturation: factors are drawn from 1 ± this, and not below 0.
        hue: turns are drawn from ± this share of the colour circle, 0 … 0.5.

    Raises:
        UsageError: a value out of range.

    >>> grey = np.full((2, 4, 4, 3), 100, np.uint8)
    >>> changed = color_jitter(grey, np.random.default_rng(0))
    >>> changed.shape, bool((changed == grey).all()), int(grey.max())
    ((2, 4, 4, 3), False, 100)
    """
    strengths = (brightness, contrast, saturation, hue)
    if not all(math.isfinite(v) and v >= 0 for v in strengths) or hue > 0.5:
        raise UsageError(
            f"brightness={brightness}, contrast={contrast}, saturation={saturation}, hue={hue}: "
            "give at least 0, and hue at most 0.5"
        )
    out = images.copy()
    for image, steps in zip(out, draw_steps(rng, len(out), strengths).tolist()):
        apply_steps(image, steps)
    return out


def apply_steps(image: np.ndarray, steps: Sequence[Sequence[float]]) -> None:
    """The ``STEPS`` of one image, uint8 (H, W, C), in place: number and factor of each (see :func:`draw_steps`)."""
    place = image[..., 0] if image.ndim == 3 and image.shape[2] == 1 else image
    for number, factor in steps:
        STEPS[int(number)](place, factor)


def normalize(images: np.ndarray, mean: Sequence[float], std: Sequence[float], layout: str = "NCHW") -> np.ndarray:
    """``(pixels / 255 - mean) / std`` as float32, torchvision's ``ToTensor`` and ``Normalize``.

    Done on the device it saves three quarters of the copied bytes: ``gt.loading.build(..., framework="torch",
    normalize=True)``, or gluontune's input stage inside the net.

    Args:
        images: uint8 (N, H, W, C). mean, std: of each channel, for pixels of 0 … 1. layout: ``NCHW`` or ``NHWC``.

    Raises:
        UsageError: another layout, or not one mean and one std above 0 for each channel.

    >>> normalize(np.full((1, 2, 2, 1), 255, np.uint8), [0.5], [0.25])[0, 0, 0].tolist()
    [2.0, 2.0]
    """
    channels = images.shape[-1]
    centre, spread = np.asarray(mean, np.float64), np.asarray(std, np.float64)
    if centre.shape != (channels,) or spread.shape != (channels,) or not (spread > 0).all():
        raise UsageError(f"mean={mean}, std={std}: give {channels} numbers each, std above 0")
    if layout not in ("NCHW", "NHWC"):
        raise UsageError(f"layout={layout!r}: choose NCHW or NHWC")
    scale, shift = (1 / (255 * spread)).astype(np.float32), (centre / spread).astype(np.float32)
    if layout == "NHWC":
        return images * scale - shift
    out = np.empty((len(images), channels, *images.shape[1:3]), np.float32)
    for k in range(channels):
        np.multiply(images[..., k], scale[k], out=out[:, k])
        out[:, k] -= shift[k]
    return out


def jitter(image: np.ndarray, brightness: float, contrast: float, saturation: float) -> None:
    """Colour jitter in place on uint8 RGB (H, W, 3) or grey (H, W), as one affine map of the colours.

    Brightness b, then contrast c about the mean grey value m, then saturation s towards grey:
    ``y = c·b·(s·x + (1 - s)·luma·x) + (1 - c)·b·m``; the three steps of torchvision's ColorJitter
    without its rounding in between.
    """
    mean = cv2.mean(image)
    if image.ndim == 2:
        matrix = np.array([[contrast * brightness, (1 - contrast) * brightness * mean[0]]], np.float32)
    else:
        grey = float(LUMA @ np.asarray(mean[:3], np.float32))
        colours = saturation * np.eye(3, dtype=np.float32) + (1 - saturation) * np.tile(LUMA, (3, 1))
        offset = np.full((3, 1), (1 - contrast) * brightness * grey, np.float32)
        matrix = np.hstack([contrast * brightness * colours, offset]).astype(np.float32)
    cv2.transform(image, matrix, dst=image)


def _look_up(image: np.ndarray, table: np.ndarray) -> None:
    """Each value by a table of 256, truncated and clipped as Pillow does."""
    image[...] = np.clip(table, 0, 255).astype(np.uint8)[image]


def _away_from(image: np.ndarray, other: np.ndarray, factor: float) -> None:
    """Pillow's ``Image.blend(other, image, factor)``."""
    start = other.astype(np.float32)
    image[...] = np.clip(start + np.float32(factor) * (image - start), 0, 255).astype(np.uint8)
