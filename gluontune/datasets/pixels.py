"""Facts that only the images themselves tell: one shape or many, mean and deviation; worked out once."""

from __future__ import annotations

import hashlib
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

from gluontune.codec import image
from gluontune.datasets.split import Split
from gluontune.errors import GluontuneError
from gluontune.files import cache_dir, parse_json, write_json
from gluontune.reading import read_text

__all__ = ["common_shape", "mean_std", "remembered", "summary"]

SAMPLE = 500  # images that mean and deviation are taken from


def common_shape(splits: list[Split]) -> tuple[int, int, int] | None:
    """(H, W, C) of every image, or None at the first that has another size. C is 1 only if all are grey."""
    size, channels = None, 1
    for split in splits:
        for i in range(len(split)):
            data = split.read(i)
            found = image.facts(data)
            if found is None:
                raise GluontuneError(f"{split.name_of(i)}: the image's header is broken; replace or remove it")
            if size is not None and found[:2] != size:
                return None
            size, channels = found[:2], max(channels, found.channels)
    return None if size is None else (*size, channels)


def mean_std(split: Split, channels: int, sample: int = SAMPLE) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Mean and standard deviation of each channel, in units of 0 … 1.

    Args:
        split: training images; ``sample`` of them, evenly spaced, are decoded. Each image counts the same,
            whatever its size.
        channels: 3 or 1.

    Raises:
        GluontuneError: one of them cannot be decoded.
    """
    chosen = np.unique(np.linspace(0, len(split) - 1, min(sample, len(split))).astype(int)).tolist()

    def moments(i: int) -> np.ndarray:
        pixels = split.decode(i, channels).reshape(-1, channels).astype(np.float64) / 255
        return np.stack([pixels.mean(axis=0), (pixels**2).mean(axis=0)])

    with ThreadPoolExecutor(2) as pool:
        first, second = np.mean(list(pool.map(moments, chosen)), axis=0)
    deviation = np.sqrt(np.maximum(second - first**2, 0))
    # A deviation of zero (all images of one colour) would divide by zero when images are normalized.
    deviation = np.where(deviation < 1e-4, 1.0, deviation)
    return tuple(np.round(first, 4).tolist()), tuple(np.round(deviation, 4).tolist())


def remembered(key: str, work: Any) -> dict[str, Any]:
    """``work()``'s plain values, kept in the cache folder under ``key``; a cache that cannot be written is no error."""
    digest = hashlib.blake2b(key.encode(errors="backslashreplace"), digest_size=12).hexdigest()
    path: Path = cache_dir() / "facts" / f"{digest}.json"
    try:
        found = parse_json(read_text(path))
        if isinstance(found, dict) and found.get("key") == key:
            return found["values"]
    except (OSError, ValueError, KeyError):
        pass
    values = work()
    try:
        write_json(path, {"key": key, "values": values})
    except GluontuneError:
        return values  # read-only or full: it is only a memory
    return values


def summary(key: str, splits: list[Any]) -> tuple[Any, tuple[float, ...], tuple[float, ...]]:
    """Common shape (None: mixed sizes), and mean and deviation of the first split; remembered under ``key``."""

    def work() -> dict[str, Any]:
        shape = common_shape(splits)
        mean, std = mean_std(splits[0], 3 if shape is None else shape[2])
        return {"shape": shape, "mean": mean, "std": std}

    known = remembered(key, work)
    shape = tuple(known["shape"]) if known["shape"] else None
    return shape, tuple(known["mean"]), tuple(known["std"])
