"""Images inside tar archives: WebDataset shards, and class folders in a tar.

A member is read in place: its path is ``shard.tar!OFFSET+SIZE!member``, which all else treats like a file. (Format: the
WebDataset documentation: members with the same name up to the first dot are one sample.)
"""

from __future__ import annotations

import os
import re
import tarfile
from collections.abc import Iterator, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

from gluontune.core.errors import GluontuneError
from gluontune.core.reading import explained, open_regular, parse_json

LABEL_KEYS = ("label", "cls", "class")
_PLACE = re.compile(r"(.+\.tar)!(\d+)\+(\d+)!", re.S)


def is_tar(path: Any) -> bool:
    """Whether this is the name of a tar archive; compressed ones are refused later."""
    return ".tar" in Path(path).suffixes[-2:] or Path(path).suffix in (".tgz", ".tbz2", ".txz")


def place_of(path: str) -> tuple[str, int, int] | None:
    """Archive, offset and size of a member's path; None for the path of a file."""
    found = _PLACE.match(path) if "!" in path else None
    return (found[1], int(found[2]), int(found[3])) if found else None


def read_member(place: tuple[str, int, int]) -> bytes:
    """The bytes of one member; raises OSError if the archive is missing or truncated."""
    archive, offset, size = place
    with os.fdopen(open_regular(archive), "rb") as stream:
        stream.seek(offset)
        data = stream.read(size)
    if len(data) < size:
        raise OSError(None, "the archive ends inside this member")
    return data


def tar_samples(archives: Sequence[Path], extensions: frozenset[str]) -> tuple[list[tuple[Any, str]], list[str] | None]:
    """(label, path) of each image in the order of the archives, and the class names if labels have names.

    A label is the number in ``.cls`` (or ``.cls2`` …: several labels), else ``label`` in ``.json``, else the image's
    folder.
    """
    found: list[tuple[Any, str]] = []
    for archive in archives:
        for name, parts in _samples(archive):
            images = sorted(part for part in parts if "." + part.rpartition(".")[2].lower() in extensions)
            if images:
                offset, size = parts[images[0]]
                place = f"{archive}!{offset}+{size}!{name}.{images[0]}"
                found.append((_label(archive, name, parts), place))
    names = [label for label, _ in found if isinstance(label, str)]
    if not names:
        return found, None
    if len(names) < len(found):
        raise GluontuneError(
            f"{archives[0]}: {len(names)} of {len(found)} samples have no label of their own but a folder; "
            "give all of them a .cls or .json, or none"
        )
    classes = sorted(set(names))
    rank = {name: float(k) for k, name in enumerate(classes)}
    return [(rank[label], place) for label, place in found], classes


def _samples(archive: Path) -> Iterator[tuple[str, dict[str, tuple[int, int]]]]:
    """Samples in the archive's order: name up to the first dot, and (offset, size) of its members."""
    try:
        with explained(archive):
            os.close(open_regular(archive))
        with explained(archive), tarfile.open(archive, "r:") as tar:
            visible = (m for m in tar if m.isreg() and not m.name.rpartition("/")[2].startswith("."))
            for name, members in groupby(visible, lambda m: _split_name(m.name)[0]):
                yield name, {_split_name(m.name)[1]: (m.offset_data, m.size) for m in members}
    except tarfile.TarError as error:
        raise GluontuneError(
            f"{archive}: no whole, uncompressed tar archive ({error}); unpack a compressed one first (gunzip)"
        ) from error


def _split_name(path: str) -> tuple[str, str]:
    """A member's path up to the first dot of its file name, and the rest."""
    folder, _, file = path.rpartition("/")
    stem, _, extension = file.partition(".")
    return f"{folder}/{stem}" if folder else stem, extension


def _label(archive: Path, name: str, parts: dict[str, tuple[int, int]]) -> Any:
    def text(part: str) -> str:
        return read_member((str(archive), *parts[part])).decode("utf-8", "replace").strip()

    numbers = sorted(part for part in parts if re.fullmatch(r"cls\d*", part))
    try:
        if numbers:
            values = tuple(float(text(part)) for part in numbers)
            return values[0] if len(values) == 1 else values
        if "json" in parts:
            facts = parse_json(text("json"))
            label = next((facts[key] for key in LABEL_KEYS if facts.get(key) is not None), None)
            if label is not None:
                return tuple(map(float, label)) if isinstance(label, list) else float(label)
    except (ValueError, TypeError, AttributeError):
        raise GluontuneError(f"{archive}: sample {name}: its label is not a number") from None
    folder = name.rpartition("/")[0].rpartition("/")[2]
    if not folder or folder == ".":
        raise GluontuneError(
            f"{archive}: sample {name} has no label: a member {name}.cls, 'label' in {name}.json, or a class folder"
        )
    return folder
