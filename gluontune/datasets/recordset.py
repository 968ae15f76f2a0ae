"""``records:PATH``: RecordIO files; and cached facts of images: shape, mean and deviation."""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from gluontune.codec import image
from gluontune.core.errors import GluontuneError, UsageError
from gluontune.core.files import cache_dir, write_json
from gluontune.core.forking import at_work
from gluontune.core.reading import parse_json, read_text
from gluontune.datasets.catalog import Dataset, of_splits
from gluontune.datasets.split import RecordSplit, Split
from gluontune.records import RecordReader

TEST_NAMES = ("test.rec", "val.rec")
TEST_SHARE = 0.1


def open_records(path: str | None, info: Any) -> Dataset:
    """Open ``FOLDER`` (train.rec and test.rec or val.rec), ``TRAIN.rec,TEST.rec``, or one file, split 90/10.

    A ``classes.txt`` beside the training file has the class names, one a line.
    """
    name = f"records:{path}"
    train_path, test_path = _paths(str(path))
    labels = _labels(train_path)
    classes = _classes(train_path, labels)
    slug = f"records-{train_path.stem}-{_fingerprint(train_path, test_path)}"
    notes = []
    train = RecordSplit(slug, "train", train_path, labels, classes)
    if test_path is None:
        keep, held = _divide(labels, name, classes)
        train, test = (train._take(keep), RecordSplit(slug, "test", train_path, labels[held], classes, held))
        notes.append("one record file: a tenth of each class is kept for testing, always the same records")
    else:
        test = RecordSplit(slug, "test", test_path, _labels(test_path), classes)

    facts = summary(f"pixels {slug} {train_path} {test_path}", [train, test])
    size = sum(p.stat().st_size for p in (train_path, test_path) if p is not None)
    return of_splits(info, name, classes, (train, test), facts, str(path), size, notes)


def open_parts(info: Any, parts: Mapping[str, Path], classes: tuple[str, ...]) -> Dataset:
    """A data set of the catalogue from its record files ``train`` and ``test``."""
    train, test = record_splits(info.name, parts, classes)
    info = replace(info, num_train=len(train), num_test=len(test))
    return Dataset(info.name, info, classes, info.image_shape, info.mean, info.std, info.augment, train, test)


def record_splits(slug: str, parts: Mapping[str, Path], classes: tuple[str, ...]) -> list[RecordSplit]:
    """The splits of record files by part, in their order."""
    splits = []
    for part, path in parts.items():
        with RecordReader(path) as reader:
            splits.append(RecordSplit(slug, part, path, reader.labels(), classes))
    return splits


def _paths(path: str) -> tuple[Path, Path | None]:
    named = [Path(p).expanduser().absolute() for p in path.split(",")]
    if len(named) > 2 or not all(p.strip() for p in path.split(",")):
        raise UsageError(f"data set 'records:{path}': give one file, TRAIN.rec,TEST.rec, or a folder")
    if len(named) == 1 and named[0].is_dir():
        train = named[0] / "train.rec"
        test = next((named[0] / n for n in TEST_NAMES if (named[0] / n).is_file()), None)
        if not train.is_file() or test is None:
            lacks = "train.rec" if not train.is_file() else "test.rec or val.rec"
            raise GluontuneError(f"{named[0]}: the folder has no {lacks}; name the files: records:TRAIN.rec,TEST.rec")
        return train, test
    for file in named:
        if not file.is_file():
            raise GluontuneError(f"{file}: no such record file")
    if len(named) == 2 and named[0] == named[1]:
        raise UsageError(f"data set 'records:{path}': the training and the test file are the same")
    return named[0], named[1] if len(named) == 2 else None


def _labels(path: Path) -> np.ndarray:
    """int64 (N,) class numbers; refuses others."""
    with RecordReader(path) as reader:
        found = np.array(reader.labels())
    if not len(found):
        raise GluontuneError(f"{path}: the file has no records")
    if found.ndim == 2 and found.shape[1] == 1:
        found = found[:, 0]
    if found.ndim != 1:
        raise GluontuneError(
            f"{path}: its records carry {found.shape[1]} labels each; a classifier needs one class number"
        )
    # More classes than records cannot be learned: such a label is an id or damaged.
    wrong = np.flatnonzero(~(found >= 0) | (found != np.floor(found)) | (found > max(len(found), 2)))
    if len(wrong):
        at = int(wrong[0])
        raise GluontuneError(
            f"{path}: label {found[at]:g} of record {at} is out of range: class numbers are whole, from 0, "
            f"and fewer than the {len(found):,} records"
        )
    return found.astype(np.int64)


def _classes(train_path: Path, labels: np.ndarray) -> tuple[str, ...]:
    listed = train_path.with_name("classes.txt")
    if listed.is_file():
        try:
            names = [line.strip() for line in read_text(listed).split("\n") if line.strip()]
        except (OSError, UnicodeDecodeError) as error:
            raise GluontuneError(f"{listed}: cannot read the class names: {error}") from error
        if len(set(names)) != len(names):
            raise GluontuneError(f"{listed}: a class name stands there twice")
        return tuple(names)
    return tuple(str(i) for i in range(int(labels.max()) + 1))


def _divide(labels: np.ndarray, name: str, classes: tuple[str, ...]) -> tuple[np.ndarray, np.ndarray]:
    held = []
    random = np.random.default_rng(0)
    for label in np.unique(labels).tolist():
        where = np.flatnonzero(labels == label)
        if len(where) == 1:
            raise GluontuneError(
                f"{name}: class {classes[label] if label < len(classes) else label!r} has one record; "
                "it needs two, one of them for testing"
            )
        held.append(random.permutation(where)[: max(1, round(TEST_SHARE * len(where)))])
    chosen = np.sort(np.concatenate(held))
    return np.setdiff1d(np.arange(len(labels)), chosen), chosen


def _fingerprint(*paths: Path | None) -> str:
    """A text that changes when a file is replaced."""
    digest = hashlib.blake2b(digest_size=6)
    for path in paths:
        if path is not None:
            facts = path.stat()
            digest.update(f"{path} {facts.st_size} {facts.st_mtime_ns}\n".encode(errors="backslashreplace"))
    return digest.hexdigest()


SAMPLE = 500  # images for mean and deviation


def common_shape(splits: list[Split]) -> tuple[int, int, int] | None:
    """(H, W, C) of every image, or None for different sizes. C is 1 only if all are grey."""
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
    """Mean and standard deviation of each channel, in units of 0 … 1, of ``sample`` evenly spaced images."""
    chosen = np.unique(np.linspace(0, len(split) - 1, min(sample, len(split))).astype(int)).tolist()

    @at_work()
    def moments(i: int) -> np.ndarray:
        pixels = split.decode(i, channels).reshape(-1, channels).astype(np.float64) / 255
        return np.stack([pixels.mean(axis=0), (pixels**2).mean(axis=0)])

    with ThreadPoolExecutor(2) as pool:
        first, second = np.mean(list(pool.map(moments, chosen)), axis=0)
    deviation = np.sqrt(np.maximum(second - first**2, 0))
    # A deviation of zero (all images of one colour) would divide by zero in normalization.
    deviation = np.where(deviation < 1e-4, 1.0, deviation)
    return tuple(np.round(first, 4).tolist()), tuple(np.round(deviation, 4).tolist())


def remembered(key: str, work: Any) -> dict[str, Any]:
    """``work()``'s plain values, cached in the cache folder under ``key`` if it is writable."""
    digest = hashlib.blake2b(key.encode(errors="backslashreplace"), digest_size=12).hexdigest()
    path: Path = cache_dir() / "facts" / f"{digest}.json"
    with contextlib.suppress(OSError, ValueError, KeyError):
        found = parse_json(read_text(path))
        if isinstance(found, dict) and found.get("key") == key:
            return found["values"]
    values = work()
    with contextlib.suppress(GluontuneError):  # read-only or full: it is only a cache
        write_json(path, {"key": key, "values": values})
    return values


def summary(key: str, splits: list[Any]) -> tuple[Any, tuple[float, ...], tuple[float, ...]]:
    """Common shape (None: mixed sizes), and mean and deviation of the first split; cached under ``key``."""

    def work() -> dict[str, Any]:
        shape = common_shape(splits)
        mean, std = mean_std(splits[0], 3 if shape is None else shape[2])
        return {"shape": shape, "mean": mean, "std": std}

    known = remembered(key, work)
    shape = tuple(known["shape"]) if known["shape"] else None
    return shape, tuple(known["mean"]), tuple(known["std"])
