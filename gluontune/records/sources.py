"""Sources of images: class folders, ``.lst`` lists and CSV tables become one ordered list of images with labels."""

from __future__ import annotations

import contextlib
import csv
import gc
import hashlib
import marshal
import os
import random
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import count, repeat
from pathlib import Path
from typing import NamedTuple

from gluontune.core.errors import GluontuneError, UsageError, nearest
from gluontune.core.files import PathLike
from gluontune.core.reading import check_names, explained, leads_up, open_regular
from gluontune.records.layout import MAX_KEY, label_bytes
from gluontune.records.tarshards import is_tar, tar_samples

EXTENSIONS = frozenset((".jpg", ".jpeg", ".jpe", ".png", ".bmp", ".webp", ".tif", ".tiff", ".gif", ".ppm", ".pgm"))
PATH_COLUMNS = ("path", "file", "filename", "file_name", "image", "image_path", "img", "name")


class Item(NamedTuple):
    """One image to pack: its record's key, its label or labels, its file."""

    key: int
    label: float | tuple[float, ...]
    path: str


@dataclass(frozen=True)
class Source:
    """All images in packing order. ``classes``: the names of the labels, or None."""

    items: list[Item]
    classes: list[str] | None
    kind: str

    def fingerprint(self, *options: object) -> bytes:
        """8 bytes that change with any key, label, path, the order, or one of the ``options``."""
        with _without_collection():
            keys, labels, paths = zip(*self.items) if self.items else ((), (), ())
            values = marshal.dumps((keys, labels), 2)  # 2: of values alone
        digest = hashlib.sha256(repr(options).encode() + values)
        digest.update("\0".join(paths).encode("utf-8", "surrogateescape"))  # no path has this character
        return digest.digest()[:8]


def read_source(
    src: PathLike | Sequence[PathLike],
    *,
    root: PathLike | None = None,
    path_column: str | None = None,
    label_columns: Sequence[str] | None = None,
    shuffle: bool | None = None,
    seed: int = 0,
) -> Source:
    """The images of a class folder, an MXNet ``.lst``, a CSV table or tar archives.

    Args:
        src: a folder with one sub-folder a class (labels 0, 1, … in the order of their sorted names), a
            ``.lst`` (``key<TAB>label…<TAB>path``), a ``.csv``/``.tsv`` with a header row, or ``.tar`` archives, one
            or several: WebDataset shards or class folders.
        root: folder of relative paths in a list or table; None: its folder.
        path_column: CSV column with the path; None: path, file, image, …, else the first.
        label_columns: CSV columns with labels; None: all others. A single column of words becomes classes.
        shuffle: pack in a random order fixed by ``seed``; keys stay with their images. None: True except for a
            ``.lst``, whose order is the user's.
    """
    several = [Path(one) for one in src] if isinstance(src, (list, tuple)) else [Path(src)]  # type: ignore[arg-type]
    if not several or (len(several) > 1 and not all(is_tar(one) for one in several)):
        raise UsageError("several sources are several .tar archives; give one folder, .lst or .csv")
    path = several[0]
    with _without_collection():
        source = _read(several, Path(root) if root is not None else path.parent, path_column, label_columns)
    if not source.items:
        raise GluontuneError(f"{path}: no images in it")
    check_names(source.classes or (), path)
    if (source.kind != "list") if shuffle is None else shuffle:
        random.Random(f"gluontune-pack-{seed}").shuffle(source.items)
    return source


def _read(several: list[Path], root: Path, path_column: str | None, label_columns: Sequence[str] | None) -> Source:
    path = several[0]
    if is_tar(path) and not path.is_dir():
        return _read_tars(several)
    if path.is_dir():
        return _read_folder(path)
    if path.suffix.lower() == ".lst":
        return _read_list(path, root)
    if path.suffix.lower() in (".csv", ".tsv"):
        try:
            return _read_table(path, root, path_column, label_columns)
        except csv.Error as error:
            raise GluontuneError(f"{path}: not a table: {error}") from error
    if not path.exists():
        raise GluontuneError(f"{path}: no such file or folder")
    raise UsageError(f"{path}: give a folder with a sub-folder for each class, a .lst, .csv or .tar file")


@contextlib.contextmanager
def _without_collection() -> Iterator[None]:
    """A context without garbage collection, which would visit a growing list of millions again and again."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


def split_shards(total: int, shards: int) -> list[range]:
    """Positions of each shard: concatenated shards have the same order for any number."""
    return [range(total * s // shards, total * (s + 1) // shards) for s in range(shards)]


def class_folders(folder: Path, hidden: tuple[str, ...] = (".",)) -> list[str]:
    """The names of the folders in ``folder``, sorted, without those that begin with ``hidden``."""
    with explained(folder):
        names = sorted(entry.name for entry in os.scandir(folder) if entry.is_dir())
    names = [name for name in names if not name.startswith(hidden)]
    check_names(names, folder)
    looping = [name for name in names if leads_up(folder / name, folder)]
    if looping:
        raise GluontuneError(f"{folder / looping[0]}: a link to a folder that holds it; remove it")
    return names


def _read_folder(folder: Path) -> Source:
    found = [(name, sorted(_images_below(folder / name))) for name in class_folders(folder)]
    classes = [name for name, files in found if files]
    if not classes:
        flat = any(Path(name).suffix.lower() in EXTENSIONS for name in os.listdir(folder))
        hint = "its images lie in no class folder: make one folder a class, or give a .lst or .csv" if flat else ""
        raise GluontuneError(f"{folder}: {hint or 'no class folder with images in it'}")
    items: list[Item] = []
    made = partial(tuple.__new__, Item)  # a fast Item(...) for millions
    for label, files in enumerate(files for _, files in found if files):
        items.extend(map(made, zip(count(len(items)), repeat(float(label)), files)))
    return Source(items, classes, "folder")


def _read_tars(archives: list[Path]) -> Source:
    missing = next((one for one in archives if not one.exists()), None)
    if missing is not None:
        raise GluontuneError(f"{missing}: no such file or folder")
    found, classes = tar_samples(archives, EXTENSIONS)
    for label, place in found:
        try:
            label_bytes(label)
        except UsageError as error:
            raise GluontuneError(f"{place}: {error}") from None
    return Source([Item(key, label, place) for key, (label, place) in enumerate(found)], classes, "tar")


def _images_below(folder: Path) -> Iterable[str]:
    """Image files in all depths; linked folders are followed, but none twice, and no parent of this."""
    seen: set[str] = set()
    left = [os.fspath(folder)]
    while left:
        here = left.pop()
        real = os.path.realpath(here)
        if real in seen or (seen and leads_up(here, folder)):
            continue
        seen.add(real)
        prefix = os.path.join(here, "")
        with contextlib.suppress(OSError), os.scandir(here) as entries:
            for entry in entries:
                name = entry.name
                if name[0] == ".":
                    continue
                if entry.is_dir():
                    left.append(prefix + name)
                elif name[name.rfind(".") :].lower() in EXTENSIONS:
                    yield prefix + name


def _read_list(path: Path, root: Path) -> Source:
    items: list[Item] = []
    seen: set[int] = set()
    for number, line in enumerate(_lines(path), 1):
        if not line.strip():
            continue
        fields = line.rstrip("\r\n").split("\t")
        if len(fields) < 3:
            raise GluontuneError(f"{path}: line {number} is not 'key<TAB>label…<TAB>path': {line.strip()[:60]!r}")
        try:
            key = int(fields[0])
        except ValueError:
            raise GluontuneError(f"{path}: line {number}: the key {fields[0]!r} is not a whole number") from None
        if not 0 <= key <= MAX_KEY or key in seen:
            reason = "is used twice" if key in seen else "is out of range"
            raise GluontuneError(f"{path}: line {number}: the key {key} {reason}; keys are unique and at least 0")
        seen.add(key)
        label = _numbers(fields[1:-1], f"{path}: line {number}")
        items.append(Item(key, label, os.path.join(root, fields[-1].strip())))
    return Source(items, None, "list")


def _read_table(path: Path, root: Path, path_column: str | None, labels: Sequence[str] | None) -> Source:
    lines = _lines(path)
    if not lines or not lines[0].strip():
        raise GluontuneError(f"{path}: the table is empty")
    delimiter = max(",;\t", key=lines[0].count)
    rows = csv.reader(lines, delimiter=delimiter)
    header = [name.strip() for name in next(rows)]
    where, columns = _columns(path, header, path_column, labels)
    paths, values, numbers = [], [], []
    for row in rows:
        if not any(cell.strip() for cell in row):
            continue
        if len(row) != len(header):
            raise GluontuneError(f"{path}: line {rows.line_num} has {len(row)} fields, the header {len(header)}")
        paths.append(os.path.join(root, row[where].strip()))
        values.append([row[c].strip() for c in columns])
        numbers.append(rows.line_num)
    if len(columns) == 1 and not all(_is_number(v[0]) for v in values):
        classes = sorted({v[0] for v in values})
        if "" in classes:
            line = numbers[[v[0] for v in values].index("")]
            raise GluontuneError(f"{path}: line {line}: the label is empty")
        rank = {name: float(i) for i, name in enumerate(classes)}
        return Source([Item(k, rank[v[0]], p) for k, (p, v) in enumerate(zip(paths, values))], classes, "table")
    triples = zip(paths, values, numbers)
    items = [Item(k, _numbers(v, f"{path}: line {n}"), p) for k, (p, v, n) in enumerate(triples)]
    return Source(items, None, "table")


def _columns(path: Path, header: list[str], wanted: str | None, labels: Sequence[str] | None) -> tuple[int, list[int]]:
    def place(name: str) -> int:
        if name not in header:
            close = nearest(name, header)
            hint = f"did you mean {close[0]!r}? " if close else ""
            raise UsageError(f"{path}: no column {name!r}: {hint}It has: {', '.join(header)}")
        return header.index(name)

    lowered = [name.lower() for name in header]
    usual = [lowered.index(name) for name in PATH_COLUMNS if name in lowered]
    where = place(wanted) if wanted else (usual or [0])[0]
    columns = [place(name) for name in labels] if labels else [c for c in range(len(header)) if c != where]
    if not columns:
        raise GluontuneError(f"{path}: the table has no label column beside {header[where]!r}")
    return where, columns


def _lines(path: Path) -> list[str]:
    try:
        with explained(path), os.fdopen(open_regular(path), encoding="utf-8-sig", newline="") as stream:
            lines = stream.readlines()
    except UnicodeDecodeError:
        raise GluontuneError(f"{path}: not a text file in UTF-8") from None
    if any("\0" in line for line in lines):
        raise GluontuneError(f"{path}: not a text file: it holds zero bytes")
    return lines


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _numbers(texts: Sequence[str], where: str) -> float | tuple[float, ...]:
    """The labels of a row; whole numbers are parsed as such, so that none is rounded before its check."""
    values: list[float] = []
    for text in texts:
        try:
            value = int(text)
        except ValueError:
            try:
                value = float(text)  # type: ignore[assignment]
            except ValueError:
                raise GluontuneError(f"{where}: the label {text!r} is not a number") from None
        try:
            label_bytes(value)
        except UsageError as error:
            raise GluontuneError(f"{where}: {error}") from None
        values.append(float(value))
    return values[0] if len(values) == 1 else tuple(values)
