"""``synthetic``: generated images with learnable classes, of any number and size, for measurements of I/O.

A class is a smooth, symmetric colour pattern (flips never change it), shifted and weakened, over a texture whose
amplitude falls as 1/frequency (Field, 1987): JPEG files are as large, and as slow to decode, as photographs.
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, fields
from typing import Any, Callable

import numpy as np

from gluontune.core.errors import GluontuneError, UsageError, nearest
from gluontune.datasets.catalog import Dataset, of_splits
from gluontune.datasets.download import filling, records_folder, write_records
from gluontune.datasets.recordset import mean_std, record_splits, remembered

VERSION = 1  # part of the folder's name: raise it when the pixels change
TEXTURES = 16
LIMITS = {"train": 10_000_000, "test": 10_000_000, "classes": 10_000, "seed": 2**31 - 1}


@dataclass(frozen=True)
class Options:
    """Options of ``synthetic:…``: numbers of images, ``size=HEIGHTxWIDTH``, ``format`` jpeg or png."""

    train: int = 2000
    test: int = 200
    size: tuple[int, int] = (64, 64)
    classes: int = 10
    format: str = "jpeg"
    seed: int = 0

    @property
    def slug(self) -> str:
        height, width = self.size
        counts = f"{self.train}-{self.test}-{height}x{width}-{self.classes}"
        return f"synthetic/v{VERSION}-{counts}-{self.format}-{self.seed}"


def parse(text: str | None) -> Options:
    """Read ``train=2000,test=200,size=256x256,classes=10,format=jpeg,seed=0``; with defaults."""
    known = [f.name for f in fields(Options)]
    values: dict[str, Any] = {}
    for item in filter(None, (text or "").split(",")):
        key, equals, value = item.partition("=")
        if key not in known or not equals:
            close = nearest(key, known)
            hint = f"did you mean {close[0]!r}? " if close and close[0] != key else ""
            raise UsageError(f"data set 'synthetic:{text}': {item!r}: {hint}Write {'=…,'.join(known)}=…")
        values[key] = _size(item, value) if key == "size" else value if key == "format" else _whole(item, key)
    options = Options(**values)
    if options.format not in ("jpeg", "png"):
        raise UsageError(f"data set 'synthetic:{text}': format={options.format}: choose jpeg or png")
    if options.classes < 2:
        raise UsageError(f"data set 'synthetic:{text}': classes={options.classes}: give 2 or more")
    if options.train < options.classes or options.test < 1:
        raise UsageError(
            f"data set 'synthetic:{text}': train={options.train}, test={options.test}: give a training image "
            f"for each of the {options.classes} classes and one test image at least"
        )
    return options


def _whole(item: str, key: str) -> int:
    value = item.partition("=")[2]
    if not value.isdecimal() or int(value) > LIMITS[key]:
        raise UsageError(f"data set 'synthetic': {item}: give a whole number from 0 to {LIMITS[key]:,}")
    return int(value)


def _size(item: str, value: str) -> tuple[int, int]:
    height, times, width = value.partition("x")
    width = width if times else height
    if not (height.isdecimal() and width.isdecimal()) or not all(8 <= int(v) <= 4096 for v in (height, width)):
        raise UsageError(
            f"data set 'synthetic': {item}: give size=HEIGHTxWIDTH, each from 8 to 4096 pixels, such as 256x256"
        )
    return int(height), int(width)


def make(rest: str | None, info: Any, progress: Callable[[int, int], None] = lambda d, t: None) -> dict[str, Any]:
    """Generate the images into the cache folder, once."""
    options = parse(rest)
    already = records_folder(options.slug) is not None
    if not already:
        _generate(options, progress)
    folder = str(records_folder(options.slug))
    return {"path": folder, "num_train": options.train, "num_test": options.test, "already": already}


def open_synthetic(rest: str | None, info: Any) -> Dataset:
    options = parse(rest)
    make(rest, info)
    folder = records_folder(options.slug)
    if folder is None:
        raise GluontuneError(f"{options.slug}: the generated records are gone; open it again")
    classes = tuple(f"class-{k}" for k in range(options.classes))
    paths = {part: folder / f"{part}.rec" for part in ("train", "test")}
    train, test = record_splits(options.slug, paths, classes)
    known = remembered(f"pixels {options.slug}", lambda: dict(zip(("mean", "std"), mean_std(train, 3, 200))))
    size = sum(path.stat().st_size for path in paths.values())
    facts = (*options.size, 3), tuple(known["mean"]), tuple(known["std"])
    name = f"synthetic:{rest}" if rest else "synthetic"
    return of_splits(info, name, classes, (train, test), facts, info.source, size)


def _generate(options: Options, progress: Callable[[int, int], None]) -> None:
    painter = Painter(options)

    def part(stream: int, count: int) -> Iterator[tuple[bytes, int]]:
        order = np.random.default_rng([options.seed, stream, 7]).permutation(count)
        labels = order % options.classes
        return zip(painter.images(stream, labels), labels.tolist())

    with filling(options.slug) as folder:
        parts = (folder / "train.rec", part(0, options.train)), (folder / "test.rec", part(1, options.test))
        write_records(parts, options.train + options.test, progress)
        (folder / "classes.txt").write_text("".join(f"class-{k}\n" for k in range(options.classes)))


class Painter:
    """Paints and encodes images, which depend on the options alone, not on threads."""

    def __init__(self, options: Options):
        self.options = options
        random = np.random.default_rng([options.seed, 1234])
        self.textures = [_texture(options.size, random) for _ in range(TEXTURES)]
        self.patterns = [_pattern(options.seed, k) for k in range(options.classes)]

    def images(self, stream: int, labels: np.ndarray) -> Iterator[bytes]:
        """The encoded images of a part, in order."""
        with ThreadPoolExecutor(4) as pool:
            for start in range(0, len(labels), 1000):
                chunk = range(start, min(start + 1000, len(labels)))
                yield from pool.map(lambda i: self._image(stream, i, int(labels[i])), chunk)

    def _image(self, stream: int, i: int, label: int) -> bytes:
        import cv2

        height, width = self.options.size
        random = np.random.default_rng([self.options.seed, stream, i])
        pattern = cv2.resize(self.patterns[label], (width, height), interpolation=cv2.INTER_CUBIC)
        dy, dx = (random.integers(-(height // 8), height // 8 + 1), random.integers(-(width // 8), width // 8 + 1))
        strength, contrast = random.uniform(0.5, 1.0), random.uniform(0.6, 1.2)
        texture = self.textures[int(random.integers(TEXTURES))]
        texture = np.roll(texture, (int(random.integers(height)), int(random.integers(width))), (0, 1))
        pattern = np.roll(pattern, (int(dy), int(dx)), (0, 1))
        mixed = cv2.addWeighted(pattern, float(strength), texture, float(contrast), 128.0 * 1.0)
        pixels = np.clip(mixed, 0, 255).astype(np.uint8)
        settings = {"png": (cv2.IMWRITE_PNG_COMPRESSION, 1), "jpeg": (cv2.IMWRITE_JPEG_QUALITY, 90)}
        ok, data = cv2.imencode(f".{self.options.format}", pixels, settings[self.options.format])
        if not ok:
            raise GluontuneError(f"OpenCV cannot encode an image of {height} x {width}")
        return data.tobytes()


def _texture(size: tuple[int, int], random: np.random.Generator) -> np.ndarray:
    """float32 (H, W, 3), mean 0, deviation 35, amplitude falling as 1/frequency."""
    height, width = size
    fft: Any = np.fft  # its stubs lack plain numbers
    fy, fx = fft.fftfreq(height)[:, None], fft.rfftfreq(width)[None, :]
    falling = 1 / np.maximum(np.hypot(fy, fx), 1 / max(size))
    falling[0, 0] = 0
    grey = np.fft.irfft2(np.fft.rfft2(random.normal(size=size)) * falling, s=size)
    tint = np.fft.irfft2(np.fft.rfft2(random.normal(size=size)) * falling, s=size)
    grey, tint = grey / max(grey.std(), 1e-9), tint / max(tint.std(), 1e-9)
    weights = random.uniform(-0.4, 0.4, 3)
    return np.stack([35 * grey + 35 * w * tint for w in weights], axis=-1).astype(np.float32)


def _pattern(seed: int, label: int) -> np.ndarray:
    """float32 (6, 6, 3), mean 0, deviation 40, symmetric."""
    random = np.random.default_rng([seed, 99, label])
    half = random.normal(size=(6, 3, 3))
    whole = np.concatenate([half, half[:, ::-1]], axis=1)
    whole -= whole.mean(axis=(0, 1))
    return (40 * whole / max(whole.std(), 1e-9)).astype(np.float32)
