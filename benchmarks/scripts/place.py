"""The folder of one script: its sources, its home folder and the data that a maker writes."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

__all__ = ["MAKERS", "Place", "d2l_file", "maker"]

F = TypeVar("F", bound=Callable[..., None])
#: Makers of data by name: functions of a place and the options of an entry.
MAKERS: dict[str, Callable[..., None]] = {}


def maker(function: F) -> F:
    """Enter a maker of data under its name."""
    MAKERS[function.__name__] = function
    return function


class Place:
    """Where the data of one script go.

    Args:
        root: folder of the script; it is also its home folder. cwd: where the script starts.
    """

    def __init__(self, root: Path, cwd: Path):
        self.root, self.cwd, self.source = root, cwd, root / "src"
        self.site = root / "site"
        self.random = np.random.default_rng(0)

    def file(self, name: str) -> Path:
        """A path below the folder in which the script starts; ``~/`` is the home folder. Its folder is made."""
        path = self.root / name[2:] if name.startswith("~/") else self.cwd / name
        path.parent.mkdir(parents=True, exist_ok=True)
        return path

    def write(self, name: str, content: bytes | str, official: str = "") -> Path:
        """Write a file; ``official`` is the SHA-1 of the file that it stands in for."""
        path = self.file(name)
        data = content.encode() if isinstance(content, str) else content
        path.write_bytes(data)
        if official:
            self.stands_in(path, official)
        return path

    def stands_in(self, path: Path, official: str) -> None:
        """Let the file pass for the one with this SHA-1."""
        known = self.site / "stand_ins.json"
        table: dict[str, Any] = json.loads(known.read_text())
        table[hashlib.sha1(path.read_bytes()).hexdigest()] = official
        known.write_text(json.dumps(table, indent=1))


def d2l_file(place: Place, name: str, content: bytes | str) -> None:
    """A file that d2l's library finds among its downloads: ``name`` is its key there."""
    sources = [place.source / "d2l" / "mxnet.py", *sorted(place.source.glob("chapter_*/*.py"))]
    entry = re.compile(rf"DATA_HUB\['{re.escape(name)}'\] = \(([^)]*)\)")
    found = next(match for source in sources if (match := entry.search(source.read_text())))
    strings = re.findall(r"'([^']*)'", found[1])
    file = "".join(strings[:-1]).rsplit("/", 1)[-1]
    place.write(f"../data/{file}", content, strings[-1])
