"""Fashion-MNIST: the full set, and the sample of it in gluontune.

Source: Xiao, Rasul, Vollgraf, "Fashion-MNIST: a Novel Image Dataset for Benchmarking Machine Learning
Algorithms", arXiv:1708.07747. MIT licence, Zalando SE.
"""

from __future__ import annotations

import gzip
import hashlib
import importlib
import struct
import zlib
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any, Callable

import numpy as np

from gluontune.core.errors import GluontuneError, UsageError
from gluontune.core.files import writable_folder
from gluontune.core.reading import explained
from gluontune.datasets.catalog import Dataset
from gluontune.datasets.download import as_png, download, files_of, filling, records_folder, write_records
from gluontune.datasets.recordset import open_parts

# Small grey PNG files: a row is stored as differences from its neighbours, by one of five filters (PNG specification,
# section 9). The best filters for deflate cannot be computed, only tried: rows are changed one at a time, and changes
# that shrink the file are kept. zopfli then optimizes the deflate stream; any PNG decoder reads the result.
SIGNATURE = b"\x89PNG\r\n\x1a\n"
ITERATIONS = 30  # of zopfli; more gain less than one byte an image


def zopfli() -> Any:
    """The module ``zopfli.zlib``."""
    try:
        return importlib.import_module("zopfli.zlib")
    except ImportError as error:
        raise GluontuneError(
            "the smallest PNG files need zopfli: `pip install zopfli`, or add --fast (the same pixels, 4 % larger)"
        ) from error


def encode_grey(image: np.ndarray, compress: Callable[..., bytes] | None = None) -> bytes:
    """A grey image, uint8 (H, W), as a PNG file.

    ``compress`` makes a zlib stream, such as ``zopfli().compress``; None: zlib with the best of the usual filters.
    """
    rows = _filtered_rows(image)
    plain = [[f] * len(rows) for f in range(5)]
    starts = sorted([*plain, _least_sum(rows)], key=lambda choice: len(_deflate(_join(rows, choice))))
    data = _deflate(_join(rows, starts[0])) if compress is None else _search(rows, starts, compress)
    height, width = image.shape
    header = struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0)
    return b"".join((SIGNATURE, _chunk(b"IHDR", header), _chunk(b"IDAT", data), _chunk(b"IEND", b"")))


def _search(rows: list[list[bytes]], starts: list[list[int]], compress: Callable[..., bytes]) -> bytes:
    """The smallest stream by climbing from the four best starts and refining the winner."""
    choices = [_climb(rows, s) for s in starts[:2]] + starts[:1] + [_climb(rows, s) for s in starts[2:4]]
    tried = [_packed(rows, choice, compress) for choice in choices]
    best = min(tried, key=len)
    refined = _refine(rows, choices[tried.index(best)], compress)
    return min(best, _packed(rows, refined, compress), key=len)


def _packed(
    rows: list[list[bytes]], choice: list[int], compress: Callable[..., bytes], iterations: int = ITERATIONS
) -> bytes:
    return compress(_join(rows, choice), numiterations=iterations, blocksplitting=0)


def _chunk(kind: bytes, body: bytes) -> bytes:
    return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))


def _deflate(raw: bytes) -> bytes:
    return zlib.compress(raw, 9)


def _filtered_rows(image: np.ndarray) -> list[list[bytes]]:
    """The five encodings of each row: filter number and filtered bytes."""
    x = image.astype(np.int16)
    padded = np.pad(x, ((1, 0), (1, 0)))
    left, up, corner = padded[1:, :-1], padded[:-1, 1:], padded[:-1, :-1]
    guess = left + up - corner
    to_left, to_up, to_corner = abs(guess - left), abs(guess - up), abs(guess - corner)
    paeth = np.where((to_left <= to_up) & (to_left <= to_corner), left, np.where(to_up <= to_corner, up, corner))
    filtered = [(x - p).astype(np.uint8) for p in (0 * x, left, up, (left + up) // 2, paeth)]
    return [[bytes([f]) + filtered[f][r].tobytes() for f in range(5)] for r in range(len(image))]


def _join(rows: list[list[bytes]], choice: list[int]) -> bytes:
    return b"".join([row[f] for row, f in zip(rows, choice)])


def _least_sum(rows: list[list[bytes]]) -> list[int]:
    """The usual guess: the filter with the least sum of absolute differences (PNG specification, 12.7)."""
    sums = [[int(np.abs(np.frombuffer(e[1:], np.int8).astype(int)).sum()) for e in row] for row in rows]
    return [row.index(min(row)) for row in sums]


def _climb(rows: list[list[bytes]], choice: list[int], passes: int = 2) -> list[int]:
    """Change one row's filter at a time while the file shrinks."""
    best = len(_deflate(_join(rows, choice)))
    for _ in range(passes):
        before = best
        for r in range(len(rows)):
            for f in range(5):
                trial = [*choice[:r], f, *choice[r + 1 :]]
                size = len(_deflate(_join(rows, trial)))
                if size < best:
                    best, choice = size, trial
        if best == before:
            break
    return choice


def _refine(rows: list[list[bytes]], choice: list[int], compress: Callable[..., bytes]) -> list[int]:
    """As :func:`_climb`, but measured by a quick zopfli, on changes that are nearly as good for zlib."""
    best = len(_packed(rows, choice, compress, 3))
    near = len(_deflate(_join(rows, choice)))
    for r in range(len(rows)):
        for f in range(5):
            trial = [*choice[:r], f, *choice[r + 1 :]]
            plain = len(_deflate(_join(rows, trial)))
            if f == choice[r] or plain > near + 2:
                continue
            size = len(_packed(rows, trial, compress, 3))
            if size < best:
                best, choice, near = size, trial, plain
    return choice


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
    """The first ``per_class`` positions of each class, in the official order."""
    return np.sort(np.concatenate([np.flatnonzero(labels == k)[:per_class] for k in np.unique(labels)]))


def make_sample(
    source: Path,
    out: Path,
    fast: bool = False,
    per_class: dict[str, int] = SAMPLE_PER_CLASS,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> dict[str, Any]:
    """Make the embedded sample from the official files, whose SHA-256 is checked. The result is always the same.

    Args:
        source: folder with the four official files. out: folder for ``fashion-mnist-sample-{train,test}.{rec,idx}``.
        fast: zlib's compression in place of zopfli's: the same pixels, larger files.
        per_class: images of each class, by part. progress: called with images done and in all.
    """
    if not fast:
        zopfli()
    writable_folder(out)
    data = {part: _official(Path(source), part) for part in per_class}
    chosen = {part: choose(labels, per_class[part]) for part, (_, labels) in data.items()}
    paths = {part: Path(out) / f"fashion-mnist-sample-{part}.rec" for part in data}
    images = (
        (paths[part], zip(_encoded(pixels[chosen[part]], fast), labels[chosen[part]].tolist()))
        for part, (pixels, labels) in data.items()
    )
    write_records(images, sum(map(len, chosen.values())), progress, checksums=False)
    sizes = {path.name: path.stat().st_size for path in paths.values()}
    return {"out": str(out), "images": {p: len(w) for p, w in chosen.items()}, "bytes": sizes}


def _encoded(images: np.ndarray, fast: bool) -> Iterator[bytes]:
    if fast:
        yield from map(encode_grey, images)
        return
    with ProcessPoolExecutor() as pool:  # the search is Python code, which threads cannot share
        yield from pool.map(_squeeze, images, chunksize=50)


def _squeeze(image: np.ndarray) -> bytes:
    return encode_grey(image, zopfli().compress)


def add(info: Any, source: Path, progress: Callable[[int, int], None] = lambda done, total: None) -> dict[str, Any]:
    """Import the full set from a folder with the four official files."""
    if not Path(source).is_dir():
        raise UsageError(f"{source}: give the folder that holds the four official files of Fashion-MNIST")
    data = {part: _official(Path(source), part) for part in ("train", "test")}
    with filling(info.name) as folder:
        images = (
            (folder / f"{part}.rec", zip(as_png(pixels), labels.tolist())) for part, (pixels, labels) in data.items()
        )
        write_records(images, sum(len(labels) for _, labels in data.values()), progress)
    facts = {"classes": len(CLASSES), "num_train": len(data["train"][1]), "num_test": len(data["test"][1])}
    return {**facts, "kind": "official files", "path": str(records_folder(info.name))}


def fetch(info: Any, url: str | None, progress: Callable[[int, int], None]) -> dict[str, Any]:
    """Import the four files, downloaded or of Debian's package."""
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
