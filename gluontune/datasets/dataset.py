"""Data sets: the registry's entry, and the opened data set."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from gluontune.core.errors import GluontuneError
from gluontune.core.reading import check_names
from gluontune.datasets.split import Split


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
        values: dict[str, Any] = {name: getattr(self, name) for name in shown}
        for name in ("image_shape", "mean", "std"):
            value = getattr(self, name)
            values[name] = None if value is None else list(value)
        return values


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
