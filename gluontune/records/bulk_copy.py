"""Files copied, or made smaller, into framed records by the compiled codec: a block a call, without Python's lock."""

from __future__ import annotations

import contextlib
import ctypes
import os
import struct
from array import array
from collections import deque
from dataclasses import dataclass
from itertools import chain, repeat
from typing import Any

from gluontune.codec import native
from gluontune.codec.recode import thread_state
from gluontune.core.errors import UsageError
from gluontune.records.layout import IMAGE_HEAD, label_bytes
from gluontune.records.sources import Item
from gluontune.records.transform import Transform

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
    """Makes records of plain JPEG files (of any, where the transform is exact), until one needs a closer look."""

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

    def gather(self, items: list[Item], transform: Transform, check: bool = False) -> CopiedBlock:
        """Records of ``items`` from the first on, up to one that this cannot make."""
        recoding, state, options = transform.recoding, None, None
        if recoding is not None:
            options = (ctypes.c_int * 4)(*recoding)
        if recoding is not None or check:
            state = thread_state()
        if not transform.copies and state is None:
            return CopiedBlock(memoryview(b""), [], [], [])
        heads, sizes = _heads(items)
        count = len(sizes)
        paths = os.fsencode("\0".join([path for _, _, path in items[:count]])) + b"\0"
        results = array("I", bytes(12 * count))
        start = results.buffer_info()[0]
        try:
            buffer = self._free.pop()
        except IndexError:
            buffer = bytearray(ROOM)
        done = self.codec.gt_gather(
            paths, heads, sizes.buffer_info()[0], count, transform.exact, state and state.handle, options,
            ctypes.addressof(ctypes.c_char.from_buffer(buffer)), ROOM, start, start + 4 * count, start + 8 * count,
        )  # fmt: skip
        found = [results[k * count : k * count + done].tolist() for k in range(3)]
        return CopiedBlock(memoryview(buffer)[: sum(found[0])], *found)


def _heads(items: list[Item]) -> tuple[bytes, array[int]]:
    """What stands before each file in its record, and its sizes: up to a label that float32 cannot hold."""
    keys, labels = [item.key for item in items], [item.label for item in items]
    with contextlib.suppress(UsageError):
        if set(map(type, labels)) == {float}:  # the usual case: all at once
            for label in set(labels):
                label_bytes(label)
            fields = chain.from_iterable(zip(repeat(0), labels, keys, repeat(0)))
            return struct.pack("<" + "IfQQ" * len(items), *fields), array("I", [IMAGE_HEAD.size]) * len(items)
    heads: list[bytes] = []
    sizes = array("I")
    with contextlib.suppress(UsageError):
        for key, label, _ in items:
            flag, field, extra = label_bytes(label)
            heads.append(IMAGE_HEAD.pack(flag, field, key, 0) + extra)
            sizes.append(len(heads[-1]))
    return b"".join(heads), sizes
