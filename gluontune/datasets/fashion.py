"""Fashion-MNIST: the full set, and the sample of it in gluontune.

Source: Xiao, Rasul, Vollgraf, "Fashion-MNIST: a Novel Image Dataset for Benchmarking Machine Learning
Algorithms", arXiv:1708.07747. MIT licence, Zalando SE.
"""

from __future__ import annotations

import gzip
import hashlib
import zlib
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any, Callable

import numpy as np

from gluontune.core.errors import GluontuneError, UsageError
from gluontune.core.files import writable_folder
from gluontune.core.reading import explained
from gluontune.datasets import png
from gluontune.datasets.dataset import Dataset
from gluontune.datasets.download import as_png, files_of, filling, records_folder
from gluontune.datasets.recordset import open_parts
from gluontune.records import RecordWriter

CLASSES = ("T-shirt/top", "Trouser", "Pullover", "Dress", "Coat", "Sandal", "Shirt", "Sneaker", "Bag", "Ankle boot")
URL = "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/"
DEBIAN = Path("/usr/share/datasets/fashion-mnist")  # of the package dataset-fashion-mnist

# File: SHA-256 of the official .gz, and of its content. Debian compresses anew, so only the latter agrees there.
OFFICIAL = {
    "train-images-idx3-ubyte": (
        "3aede38d61863908ad78613f6a32ed271626dd12800ba2636569512369268a84",
        "c59f468a2f672dc815687fe0f83887768d799fd8a3f3276145d20f83aa44d888",
    ),
    "train-labels-idx1-ubyte": (
        "a04f17134ac03560a47e3764e11b92fc97de4d1bfaf8ba1a3aa29af54cc90845",
        "bad3541b69d912435c50bb6ba87bec294ff4f6a2e1246121d8633921760443d9",
    ),
    "t10k-images-idx3-ubyte": (
        "346e55b948d973a97e58d2351dde16a484bd415d4595297633bb08f03db6a073",
        "5b4141f0afbad91edebe8549f8fcffe087ea10ca49f1dbef5c9a5cd8815ce37b",
    ),
    "t10k-labels-idx1-ubyte": (
        "67da17c76eaffca5446c3361aaab5c3cd6d1c2608764d35dfb1850b086bf8dd5",
        "0402a96d92fd2663957122ceb108a494c5af83dab82d92729df917d7dec38c34",
    ),
}
LIMIT = 64 << 20  # bytes: the largest file unpacks to 47 MB
SAMPLE_PER_CLASS = {"train": 1000, "test": 200}
PREFIX = {"train": "train", "test": "t10k"}


def sample_folder() -> Path:
    """The folder of the embedded sample: the repository's ``data``, or the wheel's ``_data``."""
    package = Path(__file__).resolve().parent.parent
    for folder in (package.parent / "data", package / "_data"):
        if (folder / "fashion-mnist-sample-train.rec").is_file():
            return folder
    raise GluontuneError(
        f"the embedded sample is missing from {package.parent / 'data'}: check out data/ again, reinstall, "
        "or make it with `gluontune data make sample --source FOLDER`"
    )


def open_sample(rest: str | None, info: Any) -> Dataset:
    folder = sample_folder()
    parts = {part: folder / f"fashion-mnist-sample-{part}.rec" for part in ("train", "test")}
    return open_parts(info, parts, CLASSES)


def open_full(rest: str | None, info: Any) -> Dataset:
    added = f"FOLDER` with the four official files (Debian: apt install dataset-fashion-mnist, FOLDER is {DEBIAN})"
    return open_parts(info, files_of(info, "", added), CLASSES)


def present(info: Any) -> Path | None:
    """The folder of the data set, or None."""
    if info.name == "sample":
        try:
            return sample_folder()
        except GluontuneError:
            return None
    return records_folder(info.name)


def read_official(folder: Path, name: str) -> np.ndarray:
    """One official file, checked: uint8 (N, 28, 28) or (N,)."""
    path = folder / f"{name}.gz"
    packed = path.is_file()
    path = path if packed else folder / name
    if not path.is_file():
        raise GluontuneError(
            f"{folder}: {name}.gz is missing; the folder must hold the four official files of Fashion-MNIST "
            f"(Debian: apt install dataset-fashion-mnist puts them in {DEBIAN})"
        )
    with explained(path):
        try:
            with gzip.open(path) if packed else path.open("rb") as stream:
                data = stream.read(LIMIT + 1)
        except (EOFError, zlib.error, gzip.BadGzipFile) as error:
            raise GluontuneError(f"{path}: damaged or cut off: {error}; download it again") from error
    found = hashlib.sha256(data).hexdigest()
    if found != OFFICIAL[name][1]:
        raise GluontuneError(
            f"{path}: its content has SHA-256 {found[:16]}…, the official file {OFFICIAL[name][1][:16]}…; "
            "download it again"
        )
    pixels = np.frombuffer(data, np.uint8)
    return pixels[16:].reshape(-1, 28, 28) if "images" in name else pixels[8:]


def _official(folder: Path, part: str) -> tuple[np.ndarray, np.ndarray]:
    prefix = PREFIX[part]
    return (read_official(folder, f"{prefix}-images-idx3-ubyte"), read_official(folder, f"{prefix}-labels-idx1-ubyte"))


def choose(labels: np.ndarray, per_class: int) -> np.ndarray:
    """The first ``per_class`` positions of each class, in the official order.

    >>> choose(np.array([1, 0, 1, 1, 0]), 2).tolist()
    [0, 1, 2, 4]
    """
    return np.sort(np.concatenate([np.flatnonzero(labels == k)[:per_class] for k in np.unique(labels)]))


def make_sample(
    source: Path,
    out: Path,
    fast: bool = False,
    per_class: dict[str, int] = SAMPLE_PER_CLASS,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> dict[str, Any]:
    """Make the embedded sample from the official files. The result is always the same.

    Args:
        source: folder with the four official files; their SHA-256 is checked.
        out: folder for ``fashion-mnist-sample-{train,test}.{rec,idx}``.
        fast: zlib's compression in place of zopfli's: the same pixels, larger files.
        per_class: images of each class, by part.
        progress: called with images done and in all.
    """
    if not fast:
        png.zopfli()
    writable_folder(out)
    data = {part: _official(Path(source), part) for part in per_class}
    chosen = {part: choose(labels, per_class[part]) for part, (_, labels) in data.items()}
    total, done = sum(map(len, chosen.values())), 0
    sizes = {}
    for part, (images, labels) in data.items():
        path = Path(out) / f"fashion-mnist-sample-{part}.rec"
        where = chosen[part]
        with RecordWriter(path, checksums=False) as writer:
            for payload, label in zip(_encoded(images[where], fast), labels[where].tolist()):
                writer.write(payload, label)
                done += 1
                progress(done, total)
        sizes[path.name] = path.stat().st_size
    return {"out": str(out), "images": {p: len(w) for p, w in chosen.items()}, "bytes": sizes}


def _encoded(images: np.ndarray, fast: bool) -> Iterator[bytes]:
    if fast:
        yield from map(png.encode_grey, images)
        return
    with ProcessPoolExecutor() as pool:  # the search is Python code, which threads cannot share
        yield from pool.map(_squeeze, images, chunksize=50)


def _squeeze(image: np.ndarray) -> bytes:
    return png.encode_grey(image, png.zopfli().compress)


def add(info: Any, source: Path, progress: Callable[[int, int], None] = lambda done, total: None) -> dict[str, Any]:
    """Import the full set from a folder with the four official files."""
    if not Path(source).is_dir():
        raise UsageError(f"{source}: give the folder that holds the four official files of Fashion-MNIST")
    data = {part: _official(Path(source), part) for part in ("train", "test")}
    total, done = sum(len(labels) for _, labels in data.values()), 0
    with filling(info.name) as folder:
        for part, (images, labels) in data.items():
            with RecordWriter(folder / f"{part}.rec") as writer:
                for payload, label in zip(as_png(images), labels.tolist()):
                    writer.write(payload, label)
                    done += 1
                    progress(done, total)
    facts = {"classes": len(CLASSES), "num_train": len(data["train"][1]), "num_test": len(data["test"][1])}
    return {**facts, "kind": "official files", "path": str(records_folder(info.name))}


def fetch(info: Any, url: str | None, progress: Callable[[int, int], None]) -> dict[str, Any]:
    """Import the four files, downloaded or of Debian's package."""
    from gluontune.datasets.download import download

    if url is None and all((DEBIAN / f"{name}.gz").is_file() for name in OFFICIAL):
        return {**add(info, DEBIAN, progress), "source": str(DEBIAN)}
    base = (url or URL).rstrip("/") + "/"
    paths = [
        download(f"{base}{name}.gz", sha256, info.name, "FOLDER", progress=progress)
        for name, (sha256, _) in OFFICIAL.items()
    ]
    result = add(info, paths[0].parent, progress)
    for path in paths:
        path.unlink(missing_ok=True)
    return {**result, "source": base}
