"""The registry of data sets: the one place to add one."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Callable

from gluontune.core.errors import UnknownNameError, UsageError
from gluontune.datasets.dataset import Dataset, DatasetInfo
from gluontune.recipe.registry import Registry, resolve

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
    info = _able(name, "fetcher", "fetch")
    where = resolve(info.probe)(info) if info.probe else None
    if where is not None and not force:
        return {"name": info.name, "path": str(where), "already": True}
    assert info.fetcher is not None
    return {"name": info.name, "already": False, **resolve(info.fetcher)(info, url, progress)}


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
    info = _able(name, "adder", "add")
    assert info.adder is not None
    return {"name": info.name, **resolve(info.adder)(info, Path(archive), progress)}


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
    info = _able(name, "maker", "make")
    assert info.maker is not None
    if info.name == "synthetic":
        return {"name": name, **resolve(info.maker)(str(name).partition(":")[2], info, progress)}
    return {"name": name, **resolve(info.maker)(progress=progress, **options)}


def _able(name: str, field: str, verb: str) -> DatasetInfo:
    info, _ = _find(name)
    if getattr(info, field) is None:
        able = ", ".join(i.name for i in DATASETS if getattr(i, field))
        raise UsageError(f"data set {name!r}: there is nothing to {verb}; `data {verb}` knows {able}")
    return info
