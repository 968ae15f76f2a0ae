"""``folder:PATH``: images in class folders."""

from __future__ import annotations

import hashlib
import os
import warnings
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

from gluontune.codec import header, image
from gluontune.core.errors import GluontuneError
from gluontune.datasets.catalog import Dataset, DatasetWarning, of_splits
from gluontune.datasets.recordset import remembered, summary
from gluontune.datasets.split import FileSplit
from gluontune.records.sources import class_folders

SUFFIXES = (".jpg", ".jpeg", ".png", ".bmp", ".webp", ".tif", ".tiff", ".ppm")
TEST_NAMES = ("test", "val", "valid", "validation")
TEST_SHARE = 0.1
MAX_DAMAGED = 0.25  # of the images; more is a broken copy, not a few bad files
HEAD, TAIL = 65536, 65536


def open_folder(path: str | None, info: Any) -> Dataset:
    """Open class folders: ``PATH/train/<class>/`` and ``PATH/test|val/<class>/``, or ``PATH/<class>/``.

    One level is split: a tenth of each class, chosen by the file names alone, is the test part. Damaged files are
    skipped with a note; more than a quarter of them are an error.
    """
    root = Path(str(path)).expanduser().absolute()
    name = f"folder:{path}"
    if not root.is_dir():
        raise GluontuneError(f"{root}: no such folder" if not root.exists() else f"{root}: not a folder")
    train_root = root / "train" if (root / "train").is_dir() else root
    test_root = next((root / n for n in TEST_NAMES if train_root != root and (root / n).is_dir()), None)
    classes = _classes(train_root)
    if train_root == root and set(classes) <= set(TEST_NAMES):
        raise GluontuneError(f"{root}: it has {' and '.join(classes)}, but no folder named train")
    found, damaged = _scan(root, train_root, classes)
    notes: list[str] = []
    if test_root is None:
        train, test = _divide(name, found, classes)
        layout = "no test folder" if train_root != root else "one level of class folders"
        notes.append(f"{layout}: a tenth of each class is kept for testing, always the same files")
    else:
        train = found
        test_classes = _classes(test_root)
        strange = [c for c in test_classes if c not in classes]
        if strange:
            raise GluontuneError(
                f"{test_root / strange[0]}: a class that {train_root} lacks; add training images of it, "
                "or remove it from the test part"
            )
        test, more = _scan(root, test_root, test_classes, classes)
        damaged += more
    _judge(root, len(train) + len(test), damaged, notes)
    return _assemble(name, info, root, classes, train, test, notes)


Sample = tuple[str, int, int, int]  # path relative to the root, class number, size, modification time in ns


def _classes(folder: Path) -> list[str]:
    if found := class_folders(folder, hidden=(".", "__")):
        return found
    loose = [name for name in os.listdir(folder) if name.lower().endswith(SUFFIXES)]
    if loose:
        raise GluontuneError(
            f"{folder}: {len(loose):,} images but no class folders; put them in one folder for each class, "
            "such as cat/1.jpg"
        )
    raise GluontuneError(f"{folder}: the folder has no images; put them in one folder for each class")


def _scan(root: Path, part: Path, names: list[str], classes: list[str] | None = None) -> tuple[list[Sample], list[str]]:
    """The samples below ``part`` and the reasons of the damaged ones."""
    numbers = {c: i for i, c in enumerate(classes or names)}
    samples: list[Sample] = []
    empty = []
    for name in names:
        before = len(samples)
        samples += _images(root, part / name, numbers[name])
        if len(samples) == before:
            empty.append(name)
    if not samples:
        raise GluontuneError(f"{part}: its {len(names)} class folders hold no images ({', '.join(SUFFIXES)})")
    if empty and classes is None:
        raise GluontuneError(f"{part / empty[0]}: the class folder holds no images; add some or remove the folder")
    key = hashlib.blake2b(repr(samples).encode(), digest_size=16).hexdigest()

    def look() -> dict[str, Any]:
        with ThreadPoolExecutor(8) as pool:
            reasons = list(pool.map(lambda s: _fault(os.path.join(root, s[0])), samples))
        return {"faults": {str(i): r for i, r in enumerate(reasons) if r}}

    faults = remembered(f"scan {part} {key}", look)["faults"]
    whole = [s for i, s in enumerate(samples) if str(i) not in faults]
    return whole, [f"{os.path.join(root, samples[int(i)][0])}: {reason}" for i, reason in faults.items()]


def _images(root: Path, folder: Path, number: int) -> list[Sample]:
    found = []
    for place, folders, files in os.walk(folder):
        folders[:] = sorted(f for f in folders if not f.startswith("."))
        for file in sorted(files):
            if not file.startswith(".") and file.lower().endswith(SUFFIXES):
                path = os.path.join(place, file)
                try:
                    facts = os.stat(path)
                    size, changed = facts.st_size, facts.st_mtime_ns
                except OSError:  # a dangling link: reading it raises
                    size, changed = -1, 0
                found.append((os.path.relpath(path, root), number, size, changed))
    return found


def _fault(path: str) -> str | None:
    """The reason why a file is not a whole image, by its first and last bytes, or None."""
    try:
        with open(path, "rb") as stream:
            data = stream.read(HEAD)
            size = os.fstat(stream.fileno()).st_size
            if size > HEAD + TAIL:
                stream.seek(size - TAIL)
            data += stream.read()
    except OSError as error:
        return error.strerror or "cannot be read"
    reason = header.fault(data)
    if reason is None and data[:2] != b"\xff\xd8" and image.facts(data) is None and size <= HEAD + TAIL:
        return "it cannot be decoded"
    return reason


def _judge(root: Path, whole: int, damaged: list[str], notes: list[str]) -> None:
    if not damaged:
        return
    total = whole + len(damaged)
    first = damaged[0]
    if len(damaged) > MAX_DAMAGED * total:
        raise GluontuneError(
            f"{root}: {len(damaged):,} of {total:,} images are damaged, such as {first}; "
            "is the copy complete? Remove them if they really belong there"
        )
    more = f" (and {len(damaged) - 3:,} more)" if len(damaged) > 3 else ""
    notes.append(f"{len(damaged):,} of {total:,} images are skipped: {'; '.join(damaged[:3])}{more}")
    warnings.warn(f"{root}: {notes[-1]}", DatasetWarning, stacklevel=4)


def _divide(name: str, found: list[Sample], classes: list[str]) -> tuple[list[Sample], list[Sample]]:
    """A tenth of each class for testing (at least one image), by a hash of the path."""
    test: set[str] = set()
    for number, label in enumerate(classes):
        paths = [s[0] for s in found if s[1] == number]
        if len(paths) == 1:
            raise GluontuneError(f"{name}: class {label!r} has one image; it needs two, one of them for testing")
        ranked = sorted(paths, key=lambda p: hashlib.blake2b(os.fsencode(p), digest_size=8).digest())
        test.update(ranked[: max(1, round(TEST_SHARE * len(paths)))])
    return [s for s in found if s[0] not in test], [s for s in found if s[0] in test]


def _assemble(
    name: str, info: Any, root: Path, classes: list[str], train: list[Sample], test: list[Sample], notes: list[str]
) -> Dataset:
    key = hashlib.blake2b(repr((str(root), train, test)).encode(), digest_size=8).hexdigest()
    slug = f"folder-{root.name}-{key}"
    splits = [
        FileSplit(slug, part, root, [s[0] for s in samples], np.array([s[1] for s in samples], np.int64), classes)
        for part, samples in (("train", train), ("test", test))
    ]

    facts = summary(f"pixels {slug} {root}", list(splits))
    size = sum(sample[2] for sample in [*train, *test])
    return of_splits(info, name, tuple(classes), (splits[0], splits[1]), facts, root, size, notes)
