"""JPEG files made at random, and what a machine needs to decode them by the own decoder."""

from __future__ import annotations

import io
import platform
from pathlib import Path

import numpy as np
import pytest
from PIL import Image, ImageFile

from gluontune.codec import native

ImageFile.MAXBLOCK = 1 << 20  # Pillow keeps an optimized file in so much, and gives up on more


def _is_own() -> bool:
    """Does this machine's processor have what the own decoder wants? From the system, not from the codec."""
    path = Path("/proc/cpuinfo")
    flags = path.read_text().split() if path.exists() else []
    return platform.machine() == "x86_64" and "avx2" in flags and "bmi2" in flags


pytestmark = pytest.mark.skipif(
    not native.compilers() or not _is_own(), reason="wants a C compiler, and a processor with AVX2 and BMI2"
)


def picture(height: int, width: int, seed: int, noise: float) -> np.ndarray:
    """Smooth colours with edges and noise, RGB."""
    rng = np.random.default_rng(seed)
    small = Image.fromarray(rng.integers(0, 256, (4, 4, 3), np.uint8)).resize((width, height), Image.BICUBIC)
    image = np.asarray(small).astype(int)
    image[height // 3 : height // 2, width // 4 : width // 2] = rng.integers(0, 256, 3)
    return np.clip(image + rng.normal(0, noise, image.shape), 0, 255).astype(np.uint8)


def jpeg(image: np.ndarray | Image.Image, **options) -> bytes:
    stream = io.BytesIO()
    image = Image.fromarray(image) if isinstance(image, np.ndarray) else image
    image.save(stream, "JPEG", **{"quality": 90, **options})
    return stream.getvalue()
