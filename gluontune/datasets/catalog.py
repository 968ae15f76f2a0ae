"""The registry of data sets, the one place to add one, and the opened data set."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Callable

import numpy as np

from gluontune.core.errors import GluontuneError, UnknownNameError, UsageError
from gluontune.core.reading import check_names
from gluontune.datasets.split import Split
from gluontune.recipe.registry import Registry, resolve


class DatasetWarning(UserWarning):
    """A warning about a data set, such as skipped images."""


@dataclass(frozen=True)
class DatasetInfo:
    """An entry of the registry.

    Args:
        name: as in a Recipe; forms with a value after the colon have it in capitals (``folder:PATH``).
        summary: one sentence.
        source: URL or description of the origin. licence: its terms.
        opener: ``"module:function"``, called with the text behind the name's colon, or None.
        fetcher, adder, maker: ``"module:function"`` behind ``gluontune data fetch / add / make``, or None.
        bytes: of the download, or of the records without a download; None if it depends.
        num_train, num_test: images; None if it depends.
        image_shape: (H, W, C), or None for mixed sizes or if it depends.
        mean, std: of each channel over the training images, in units of 0 … 1; None if it depends.
        augment: usual augmentation of its training images, a name of ``gt.loading``; None if it depends.
        sha256: of the download.
        probe: ``"module:function"`` that returns the folder of the present data set or None; or None.
    """

    name: str
    summary: str
    source: str
    licence: str
    opener: str
    fetcher: str | None = None
    adder: str | None = None
    maker: str | None = None
    bytes: int | None = None
    num_train: int | None = None
    num_test: int | None = None
    image_shape: tuple[int, int, int] | None = None
    mean: tuple[float, ...] | None = None
    std: tuple[float, ...] | None = None
    augment: str | None = None
    sha256: str | None = None
    probe: str | None = None

    def to_dict(self) -> dict[str, Any]:
        """The values of a listing, ready for JSON."""
        shown = ("name", "summary", "source", "licence", "bytes", "num_train", "num_test", "augment", "sha256")
        values = {name: getattr(self, name) for name in (*shown, "image_shape", "mean", "std")}
        return {name: list(value) if isinstance(value, tuple) else value for name, value in values.items()}


@dataclass(frozen=True)
class Dataset:
    """An opened data set.

    Args:
        name: as requested.
        info: its registry entry, with the figures of this data set.
        classes: names of the classes; a label is a position in it.
        image_shape: (H, W, C) of every image, or None for mixed sizes.
        mean, std: of each channel (RGB or grey), in units of 0 … 1.
        augment: usual augmentation of the training images.
        train, test: the two parts.
        notes: remarks, one sentence each. Skipped images are also a :class:`DatasetWarning`.
    """

    name: str
    info: DatasetInfo
    classes: tuple[str, ...]
    image_shape: tuple[int, int, int] | None
    mean: tuple[float, ...]
    std: tuple[float, ...]
    augment: str
    train: Split
    test: Split
    notes: tuple[str, ...] = field(default=())

    def __post_init__(self) -> None:
        check_classes(self.name, self.classes, self.train.labels, self.test.labels)


def of_splits(
    info: Any,
    name: str,
    classes: tuple[str, ...],
    parts: tuple[Split, Split],
    summary: tuple[tuple[int, int, int] | None, tuple[float, ...], tuple[float, ...]],
    source: Path | str,
    size: int,
    notes: Sequence[str] = (),
) -> Dataset:
    """A data set with its catalogue entry filled in."""
    check_names(classes, source)
    train, test = parts
    shape, mean, std = summary
    augment = augment_for(shape)
    filled = replace(
        info, name=name, num_train=len(train), num_test=len(test), image_shape=shape, mean=mean, std=std,
        augment=augment, bytes=size, source=str(source),
    )  # fmt: skip
    return Dataset(name, filled, classes, shape, mean, std, augment, train, test, tuple(notes))


def check_classes(name: str, classes: tuple[str, ...], train: np.ndarray, test: np.ndarray) -> None:
    """Check that labels are classes, more than one, and that all test classes occur in training."""
    for part, labels in (("training", train), ("test", test)):
        if not len(labels):
            raise GluontuneError(f"{name}: the {part} part has no images")
        wrong = np.flatnonzero((labels < 0) | (labels >= len(classes)))
        if len(wrong):
            at = int(wrong[0])
            raise GluontuneError(
                f"{name}: label {int(labels[at])} of {part} record {at} is out of range: "
                f"there are {len(classes)} classes, numbered from 0"
            )
    known = np.unique(train)
    if len(known) < 2:
        raise GluontuneError(
            f"{name}: all training images are of one class ({classes[int(known[0])]!r}); a classifier needs two or more"
        )
    strange = np.setdiff1d(np.unique(test), known)
    if len(strange):
        names = ", ".join(repr(classes[i]) for i in strange[:3].tolist())
        more = f" and {len(strange) - 3} more" if len(strange) > 3 else ""
        raise GluontuneError(
            f"{name}: the test part has classes that the training part lacks: {names}{more}; "
            "add training images of them, or remove them from the test part"
        )


def augment_for(image_shape: tuple[int, int, int] | None) -> str:
    """The usual augmentation for images of this shape: CIFAR's for small ones, ImageNet's for the rest.

    >>> augment_for((32, 32, 3)), augment_for(None)
    ('pad-crop-flip', 'random-resized-crop-flip')
    """
    small = image_shape is not None and max(image_shape[:2]) <= 64
    return "pad-crop-flip" if small else "random-resized-crop-flip"


Progress = Callable[[int, int], None]
_HERE = "gluontune.datasets"

DATASETS: Registry[DatasetInfo] = Registry("data set")
for _info in (
    DatasetInfo(
        # Clothes are as often seen mirrored. Crops are left out: the garments fill the frame and are centred, in the
        # test part too, and in the few epochs of a short run crops cost more than they gain.
        name="sample", summary="10,000 + 2,000 images of Fashion-MNIST, embedded: needs no network",
        source="https://github.com/zalandoresearch/fashion-mnist", licence="MIT (Zalando SE)",
        opener=f"{_HERE}.fashion:open_sample", maker=f"{_HERE}.fashion:make_sample", probe=f"{_HERE}.fashion:present",
        bytes=6_261_218, num_train=10_000, num_test=2_000, image_shape=(28, 28, 1), mean=(0.2867,), std=(0.3540,),
        augment="flip"
    ),
    DatasetInfo(
        name="fashion-mnist", summary="60,000 + 10,000 grey images of clothes, 28 x 28, 10 classes",
        source="https://github.com/zalandoresearch/fashion-mnist", licence="MIT (Zalando SE)",
        opener=f"{_HERE}.fashion:open_full", fetcher=f"{_HERE}.fashion:fetch", adder=f"{_HERE}.fashion:add",
        probe=f"{_HERE}.fashion:present", bytes=30_878_645, num_train=60_000, num_test=10_000,
        image_shape=(28, 28, 1), mean=(0.2860,), std=(0.3530,), augment="flip",
        sha256="3aede38d61863908ad78613f6a32ed271626dd12800ba2636569512369268a84"
    ),
    DatasetInfo(
        name="cifar10", summary="50,000 + 10,000 colour photographs, 32 x 32, 10 classes",
        source="https://www.cs.toronto.edu/~kriz/cifar.html",
        licence="none stated; its authors ask to cite Krizhevsky, 2009", opener=f"{_HERE}.cifar10:open_cifar10",
        fetcher=f"{_HERE}.cifar10:fetch", adder=f"{_HERE}.cifar10:add", probe=f"{_HERE}.cifar10:present",
        bytes=170_052_171, num_train=50_000, num_test=10_000, image_shape=(32, 32, 3), mean=(0.4914, 0.4822, 0.4465),
        std=(0.2470, 0.2435, 0.2616), augment="pad-crop-flip",
        sha256="c4a38c50a1bc5f3a1c5537f2155ab9d68f9f25eb1ed8d9ddda3db29a59bca1dd"
    ),
    DatasetInfo(
        name="synthetic",
        summary="generated images with learnable classes: synthetic:train=2000,test=200,size=256x256,"
        "classes=10,format=jpeg,seed=0", source="generated here", licence="none needed",
        opener=f"{_HERE}.synthetic:open_synthetic", maker=f"{_HERE}.synthetic:make"
    ),
    DatasetInfo(
        name="folder:PATH",
        summary="your images in class folders: PATH/train and PATH/test (or val), or one level, split 90/10",
        source="yours", licence="yours", opener=f"{_HERE}.folder:open_folder"
    ),
    DatasetInfo(
        name="records:PATH",
        summary="your RecordIO files: a folder with train.rec and test.rec (or val.rec), TRAIN.rec,TEST.rec, "
        "or one file, split 90/10", source="yours", licence="yours", opener=f"{_HERE}.recordset:open_records"
    ),
):  # fmt: skip
    DATASETS.add(_info.name.partition(":")[0], _info)


def _find(name: str) -> tuple[DatasetInfo, str | None]:
    """The entry and the text behind the colon."""
    kind, colon, rest = str(name).partition(":")
    if kind not in DATASETS:
        raise UnknownNameError("data set", str(name), [info.name for info in DATASETS])
    info = DATASETS[kind]
    if info.name.endswith(":PATH") and not rest:
        raise UsageError(f"data set {name!r}: say where the images are: {info.name}")
    if rest and kind in ("sample", "fashion-mnist", "cifar10"):
        raise UsageError(f"data set {name!r}: {kind} takes nothing after a colon")
    return info, rest if colon else None


def open_dataset(name: str) -> Dataset:
    """Open a data set by name.

    Args:
        name: ``sample``, ``fashion-mnist``, ``cifar10``, ``synthetic[:key=value,…]``, ``folder:PATH`` or
            ``records:PATH``.

    Raises:
        UnknownNameError: no such name; offers the nearest.
        GluontuneError: it is not on this machine (with the command to get it), or inconsistent.

    >>> open_dataset("sample").train
    RecordSplit(sample train: 10,000 images)
    >>> open_dataset("cifar")
    Traceback (most recent call last):
    gluontune.errors.UnknownNameError: unknown data set 'cifar': did you mean 'cifar10'? Known: ...
    """
    info, rest = _find(name)
    return resolve(info.opener)(rest, info)


def list_datasets() -> list[dict[str, Any]]:
    """One row a registered data set, plain values: name, source, licence, size, mean, deviation, present.

    ``present``: whether it is on this machine, in the folder ``path`` (None if that depends on the name).

    >>> [row["name"] for row in list_datasets()][:3]
    ['sample', 'fashion-mnist', 'cifar10']
    """
    rows = []
    for info in DATASETS:
        where = resolve(info.probe)(info) if info.probe else None
        ready = where is not None or info.probe is None
        rows.append({**info.to_dict(), "present": ready, "path": None if where is None else str(where)})
    return rows


def fetch(
    name: str, url: str | None = None, force: bool = False, progress: Progress = lambda d, t: None
) -> dict[str, Any]:
    """Download a data set, check its SHA-256, and store it in the cache folder.

    Args:
        name: ``cifar10`` or ``fashion-mnist``.
        url: another place to download from; the checksum stays the same.
        force: even if it is present.
        progress: called with (done, in all), first in bytes, then in images.

    Raises:
        UsageError: this data set is not downloaded.
        GluontuneError: no network, a wrong checksum, a full disk, …

    >>> fetch("fashion-mnist")["path"]  # doctest: +SKIP
    '/home/me/.cache/gluontune/fashion-mnist'
    >>> fetch("sample")  # it comes with gluontune
    Traceback (most recent call last):
        ...
    gluontune.errors.UsageError: ...
    """
    info, run = _able(name, "fetcher", "fetch")
    where = resolve(info.probe)(info) if info.probe else None
    if where is not None and not force:
        return {"name": info.name, "path": str(where), "already": True}
    return {"name": info.name, "already": False, **run(info, url, progress)}


def add(name: str, archive: Any, progress: Progress = lambda d, t: None) -> dict[str, Any]:
    """Import a data set from an archive or folder on this machine.

    Args:
        name: ``cifar10`` (the official binary archive, or class folders in a tar or zip archive) or
            ``fashion-mnist`` (a folder with the four official files).
        archive: its path.
        progress: called with images done and to do.

    Raises:
        GluontuneError: it is not the data set, or has refused content.
    """
    info, run = _able(name, "adder", "add")
    return {"name": info.name, **run(info, Path(archive), progress)}


def make(name: str, progress: Progress = lambda d, t: None, **options: Any) -> dict[str, Any]:
    """Generate a data set: ``sample`` (``source=``, ``out=``, ``fast=``) or ``synthetic:…``.

    Args:
        name: ``sample`` or ``synthetic:…``.
        progress: called with (done, in all).
        options: of the data set: ``source=``, ``out=``, ``fast=``.

    >>> make("cifar10")
    Traceback (most recent call last):
    gluontune.errors.UsageError: data set 'cifar10': there is nothing to make; `data make` knows sample, synthetic
    """
    info, run = _able(name, "maker", "make")
    if info.name == "synthetic":
        return {"name": name, **run(str(name).partition(":")[2], info, progress)}
    return {"name": name, **run(progress=progress, **options)}


def _able(name: str, field: str, verb: str) -> tuple[DatasetInfo, Any]:
    """The entry, and its function of a ``field``."""
    info, _ = _find(name)
    if getattr(info, field) is None:
        able = ", ".join(i.name for i in DATASETS if getattr(i, field))
        raise UsageError(f"data set {name!r}: there is nothing to {verb}; `data {verb}` knows {able}")
    return info, resolve(getattr(info, field))
