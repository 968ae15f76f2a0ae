"""Where data sets live in the cache folder, and how a new one takes its place at once or not at all."""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

from gluontune.core.errors import GluontuneError
from gluontune.core.files import cache_dir, explain_os_error, writable_folder

__all__ = ["as_png", "files_of", "filling", "records_folder"]


def records_folder(slug: str) -> Path | None:
    """The folder with ``train.rec`` and ``test.rec`` of a data set, or None if it is not there."""
    folder = cache_dir() / slug / "records"
    there = all((folder / f"{part}.rec").is_file() for part in ("train", "test"))
    return folder if there else None


def files_of(info: Any, fetched: str, added: str) -> dict[str, Path]:
    """The record files of a data set that is fetched.

    Args:
        info: its catalogue entry. fetched, added: what ``data fetch`` and ``data add`` need, for the message.

    Raises:
        GluontuneError: it is not there; says how to get it.
    """
    folder = records_folder(info.name)
    if folder is None:
        raise GluontuneError(
            f"data set {info.name!r} is not in {cache_dir()}: run `gluontune data fetch {info.name}` "
            f"({info.bytes / 1e6:.0f} MB{fetched}),\nor `gluontune data add {info.name} {added}"
        )
    return {part: folder / f"{part}.rec" for part in ("train", "test")}


@contextlib.contextmanager
def filling(slug: str) -> Iterator[Path]:
    """A new folder that becomes the data set's ``records`` folder if the block ends well, and else goes.

    What was made from an older one (``files``, ``packed``) goes with it.

    Raises:
        GluontuneError: the cache folder is read-only, the disk full, …
    """
    home = writable_folder(cache_dir() / slug)
    _sweep(home)
    beside = home / f".records-{os.getpid()}.part"
    final = home / "records"
    old = home / f".old-{os.getpid()}.part"
    try:
        try:
            shutil.rmtree(beside, ignore_errors=True)
            beside.mkdir()
            yield beside
            if final.exists():
                os.replace(final, old)
                for name in ("files", "packed"):
                    shutil.rmtree(home / name, ignore_errors=True)
            os.replace(beside, final)
        finally:
            for leftover in (beside, old):
                shutil.rmtree(leftover, ignore_errors=True)
    except OSError as error:
        raise explain_os_error(error.filename or home, error) from error


def _sweep(home: Path) -> None:
    """Remove what killed processes left behind."""
    for part in home.glob(".*-*.part"):
        pid = part.name.split("-")[-1].split(".")[0]
        with contextlib.suppress(ValueError, OSError):
            if not Path("/proc").is_dir() or Path(f"/proc/{int(pid)}").exists():
                continue
            shutil.rmtree(part, ignore_errors=True)


def as_png(images: np.ndarray, workers: int = 2) -> Iterator[bytes]:
    """Each of uint8 (N, H, W) or (N, H, W, 3) RGB as a PNG file, in order, by OpenCV on threads."""
    import cv2

    def encode(pixels: np.ndarray) -> bytes:
        ok, data = cv2.imencode(
            ".png", pixels[:, :, ::-1] if pixels.ndim == 3 else pixels, [cv2.IMWRITE_PNG_COMPRESSION, 3]
        )
        if not ok:
            raise GluontuneError(f"OpenCV cannot encode an image of shape {pixels.shape} as PNG")
        return data.tobytes()

    with ThreadPoolExecutor(workers) as pool:
        for start in range(0, len(images), 1000):
            yield from pool.map(encode, images[start : start + 1000])
