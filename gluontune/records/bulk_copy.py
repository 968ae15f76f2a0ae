"""Files copied into framed records by the compiled codec, a block of them in one call without Python's lock."""

from __future__ import annotations

import contextlib
import ctypes
import os
from array import array
from collections import deque
from dataclasses import dataclass
from typing import Any

from gluontune.codec import native
from gluontune.errors import UsageError
from gluontune.records.layout import IMAGE_HEAD, label_bytes
from gluontune.records.sources import Item

__all__ = ["CopiedBlock", "BulkCopier", "available"]

ROOM = 8 << 20  # bytes of records in one call


@dataclass(frozen=True)
class CopiedBlock:
    """Framed records of the first few items, as many as could be made."""

    data: memoryview  # of a buffer that `BulkCopier.give_back` takes for the next block
    sizes: list[int]  # framed
    lengths: list[int]
    crcs: list[int]


def available() -> bool:
    """Whether there is a compiled codec."""
    return native.load() is not None


class BulkCopier:
    """Makes records of plain JPEG files (or any, if ``exact``) one after the other, until one needs a closer look."""

    def __init__(self, library: Any):
        self.codec = library
        self._free: deque[bytearray] = deque()

    @classmethod
    def find(cls) -> BulkCopier | None:
        """A gatherer for any number of threads, or None without a compiled codec."""
        library = native.load()
        return None if library is None else cls(library)

    def give_back(self, data: Any) -> None:
        """``data`` of a :class:`CopiedBlock` is written: its memory, whose pages are there, serves the next block."""
        if isinstance(data, memoryview) and isinstance(data.obj, bytearray):
            self._free.append(data.obj)

    def gather(self, items: list[Item], exact: bool) -> CopiedBlock:
        """Records of ``items`` from the first on, up to one that this cannot make."""
        heads: list[bytes] = []
        sizes = array("I")
        known: dict[Any, tuple[int, float, bytes]] = {}
        pack = IMAGE_HEAD.pack
        with contextlib.suppress(UsageError):  # a label that float32 cannot hold ends it here
            for key, label, _ in items:
                made = known.get(label) if label else None  # 0.0 and -0.0 are two labels
                if made is None:
                    made = known[label] = label_bytes(label)
                flag, field, extra = made
                heads.append(pack(flag, field, key, 0) + extra if extra else pack(flag, field, key, 0))
                sizes.append(24 + len(extra))
        count = len(heads)
        paths = os.fsencode("\0".join([path for _, _, path in items[:count]])) + b"\0"
        results = array("I", bytes(12 * count))
        start = results.buffer_info()[0]
        try:
            buffer = self._free.pop()
        except IndexError:
            buffer = bytearray(ROOM)
        done = self.codec.gt_gather(
            paths, b"".join(heads), sizes.buffer_info()[0], count, exact,
            ctypes.addressof(ctypes.c_char.from_buffer(buffer)), ROOM, start, start + 4 * count, start + 8 * count,
        )  # fmt: skip
        found = [results[k * count : k * count + done].tolist() for k in range(3)]
        return CopiedBlock(memoryview(buffer)[: sum(found[0])], *found)
