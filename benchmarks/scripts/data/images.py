"""Pictures: a pattern for each class, moved and noisy, in the formats of MNIST, CIFAR-10, folders and archives."""

from __future__ import annotations

import gzip
import importlib
import io
import tarfile
import zipfile
from collections.abc import Iterable

import cv2
import numpy as np

from benchmarks.scripts.place import Place, d2l_file, maker
from gluontune import runtime
from gluontune.records import RecordWriter

__all__ = ["archive", "encoded", "pictures", "scene"]

_IDX = {
    "mnist": (
        "6c95f4b05d2bf285e1bfb0e7960c31bd3b3f8a7d", "2a80914081dc54586dbdf242f9805a6b8d2a15fc",
        "c3a25af1f52dad7f726cce8cacb138654b760d48", "763e7fa3757d93b0cdec073cef058b2004252c17",
    ),
    "fashion-mnist": (
        "0cf37b0d40ed5169c6b3aba31069a9770ac9043d", "236021d52f1e40852b06a4c3008d8de8aef1e40b",
        "626ed6a7c06dd17c0eec72fa3be1740f146a2863", "17f9ab60e7257a1620f4ad76bbbaf857c3920701",
    ),
}  # fmt: skip
_IDX_FILES = ("train-images-idx3-ubyte", "train-labels-idx1-ubyte", "t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte")
_CIFAR10 = {
    "data_batch_1.bin": "aadd24acce27caa71bf4b10992e9e7b2d74c2540",
    "data_batch_2.bin": "c0ba65cce70568cd57b4e03e9ac8d2a5367c1795",
    "data_batch_3.bin": "1dd00a74ab1d17a6e7d73e185b69dbf31242f295",
    "data_batch_4.bin": "aab85764eb3584312d3c7f65fd2fd016e36a258e",
    "data_batch_5.bin": "26e2849e66a845b7f1e4614ae70f4889ae604628",
    "test_batch.bin": "67eb016db431130d61cd03c7ad570b013799c88c",
}


def pictures(
    place: Place, count: int, classes: int = 10, size: int = 32, channels: int = 3
) -> tuple[np.ndarray, np.ndarray]:
    """``count`` pictures, uint8 in rows, columns and channels, and their classes."""
    random = np.random.default_rng(classes * 1000 + size)  # the same patterns for train and test
    patterns = random.random((classes, 5, 5, channels))
    labels = place.random.integers(0, classes, count)
    labels[: min(classes, count)] = np.arange(min(classes, count))
    found = np.empty((count, size, size, channels), np.uint8)
    for index, label in enumerate(labels):
        grown = cv2.resize(patterns[label], (size, size), interpolation=cv2.INTER_CUBIC).reshape(size, size, channels)
        moved = np.roll(grown, place.random.integers(-size // 16, size // 16 + 1, 2), (0, 1))
        noise = place.random.normal(0, 0.1, moved.shape)
        found[index] = np.clip((moved + noise) * 220 + 18, 0, 255)
    return found, labels


def encoded(picture: np.ndarray, suffix: str = ".jpg") -> bytes:
    """A picture as a file of this kind."""
    return cv2.imencode(suffix, picture)[1].tobytes()


def archive(files: Iterable[tuple[str, bytes]], kind: str) -> bytes:
    """A ``zip``, ``tar`` or ``tar.gz`` of the files."""
    out = io.BytesIO()
    if kind == "zip":
        with zipfile.ZipFile(out, "w") as packed:
            for name, content in files:
                packed.writestr(zipfile.ZipInfo(name), content)
        return out.getvalue()
    with tarfile.open(fileobj=out, mode="w") as tar:
        for name, content in files:
            entry = tarfile.TarInfo(name)
            entry.size = len(content)
            tar.addfile(entry, io.BytesIO(content))
    return gzip.compress(out.getvalue(), mtime=0) if kind == "tar.gz" else out.getvalue()


def idx(array: np.ndarray) -> bytes:
    """An array of bytes in MNIST's format."""
    return bytes((0, 0, 8, array.ndim)) + np.array(array.shape, ">i4").tobytes() + array.astype(np.uint8).tobytes()


@maker
def mnist(
    place: Place, *, train: int, test: int, of: str = "mnist", at: str = "~/.mxnet/datasets/{}", packed: bool = True
) -> None:
    """The four files of MNIST or Fashion-MNIST, with or without gzip."""
    at = at.format(of)
    officials = _IDX[of] if packed else ("",) * 4
    arrays = []
    for count in (train, test):
        images, labels = pictures(place, count, size=28, channels=1)
        arrays += [images[..., 0], labels]
    for name, array, official in zip(_IDX_FILES, arrays, officials):
        data = gzip.compress(idx(array), mtime=0) if packed else idx(array)
        place.write(f"{at}/{name}{'.gz' if packed else ''}", data, official)


@maker
def cifar10(place: Place, *, train: int, test: int, at: str = "~/.mxnet/datasets/cifar10") -> None:
    """CIFAR-10's binary files."""
    for name, official in _CIFAR10.items():
        images, labels = pictures(place, test if name == "test_batch.bin" else train // 5)
        rows = np.concatenate([labels[:, None], images.transpose(0, 3, 1, 2).reshape(len(images), -1)], 1)
        place.write(f"{at}/{name}", rows.astype(np.uint8).tobytes(), official)


@maker
def folders(
    place: Place, *, at: str, count: int, classes: int = 4, size: int = 64, names: str = "c{}", suffix: str = ".jpg"
) -> None:
    """Folders of pictures, one for each class."""
    images, labels = pictures(place, count, classes, size)
    for index, (image, label) in enumerate(zip(images, labels)):
        place.write(f"{at}/{names.format(label)}/{index:05d}{suffix}", encoded(image, suffix))


@maker
def bananas(place: Place, *, train: int = 256, test: int = 64) -> None:
    """d2l's detection set: one object in a picture, its box in a table."""
    files = []
    for part, count in (("train", train), ("val", test)):
        rows = ["img_name,label,xmin,ymin,xmax,ymax"]
        for index in range(count):
            picture, (x, y, side) = scene(place, 256)
            rows.append(f"{index}.png,0,{x},{y},{x + side},{y + side}")
            files.append((f"banana-detection/bananas_{part}/images/{index}.png", encoded(picture, ".png")))
        files.append((f"banana-detection/bananas_{part}/label.csv", "\n".join(rows).encode()))
    d2l_file(place, "banana-detection", archive(files, "zip"))


def scene(place: Place, size: int) -> tuple[np.ndarray, tuple[int, int, int]]:
    """A noisy picture with a bright disc; corner and side of its box."""
    side = int(place.random.integers(size // 5, size // 2))
    x, y = (int(v) for v in place.random.integers(0, size - side, 2))
    coarse = place.random.integers(0, 128, (8, 8, 3)).astype(np.uint8)
    picture = cv2.resize(coarse, (size, size))
    cv2.circle(picture, (x + side // 2, y + side // 2), side // 2, (40, 220, 240), -1)
    return picture, (x, y, side)


@maker
def records(place: Place, *, at: str, train: int, test: int, classes: int = 10, size: int = 32) -> None:
    """Record files of pictures: ``train.rec`` and ``test.rec`` with lists beside them."""
    for part, count in (("train", train), ("test", test)):
        images, labels = pictures(place, count, classes, size)
        with RecordWriter(place.file(f"{at}/{part}.rec")) as writer:
            for image, label in zip(images, labels):
                writer.write(encoded(image), float(label))
        rows = (f"{index}\t{label}\t{index}.jpg" for index, label in enumerate(labels))
        place.write(f"{at}/{part}.lst", "\n".join(rows) + "\n")


@maker
def pretrained(place: Place, *, net: str, library: str = "mxnet", at: str = "~/.mxnet/models") -> None:
    """Random parameters of a net of Gluon's or gluoncv's zoo, where its trained ones would be."""
    mx = runtime.mxnet()
    zoo = mx.gluon.model_zoo if library == "mxnet" else importlib.import_module(f"{library}.model_zoo")
    store, made = zoo.model_store, getattr(zoo, "vision", zoo).get_model(net)
    made.initialize(mx.init.Xavier())
    made(mx.nd.zeros((1, 3, 224, 224)))
    path = place.file(f"{at}/{net}-{store.short_hash(net)}.params")
    made.save_parameters(str(path))
    place.stands_in(path, store._model_sha1[net])
