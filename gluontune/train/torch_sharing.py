"""One export for all ranks of a machine: rank 0 writes it into memory that they share, the others read it there.

MXNet has to be imported for an export, which takes seconds and some hundred MiB. The memory is that of
:mod:`gluontune.parallel.shared`: it has no name that could be left behind, is gone with the process that made it, and
is emptied when the last rank has read.
"""

from __future__ import annotations

import os
import struct
import time

from gluontune.errors import GluontuneError
from gluontune.recipe import Recipe
from gluontune.train.torch_export import Exported, exported

__all__ = ["EXPORT_VARIABLE", "exported_once"]

EXPORT_VARIABLE = "GLUONTUNE_EXPORTED_NET"  # the path of the memory; without it, each rank exports for itself
_SIZE = struct.Struct("<Q")  # of the export in bytes, written last; then a byte for each rank: whether it has read
_LOOK_S = 0.02


def exported_once(recipe: Recipe, rank: int, world: int) -> Exported:
    """The job of a recipe, exported by rank 0; by this process where the ranks share no memory.

    Args:
        rank, world: of this process among those that share the memory.

    Raises:
        GluontuneError: as :func:`exported`, on rank 0. On the others: whoever had started them is gone.
    """
    path = os.environ.get(EXPORT_VARIABLE)
    if world == 1 or path is None:
        return exported(recipe)
    if rank == 0:
        found = exported(recipe)
        _write(path, found.packed(), world)
    else:
        found = Exported.unpacked(_read(path, world))
    _done(path, rank, world)
    return found


def _write(path: str, content: bytes, world: int) -> None:
    with open(path, "r+b") as file:
        file.seek(_SIZE.size + world)
        file.write(content)
        file.flush()
        file.seek(0)
        file.write(_SIZE.pack(len(content)))


def _read(path: str, world: int) -> bytes:
    """Wait for rank 0; where it fails, whoever has started the ranks ends this one."""
    while True:
        try:
            with open(path, "rb") as file:
                head = file.read(_SIZE.size)
                size = _SIZE.unpack(head)[0] if len(head) == _SIZE.size else 0
                if size:
                    file.seek(_SIZE.size + world)
                    return file.read(size)
        except OSError as error:
            told = f"the process that had started this rank is gone: {error.strerror}"
            raise GluontuneError(told) from error
        time.sleep(_LOOK_S)


def _done(path: str, rank: int, world: int) -> None:
    """Mark this rank as one that has what it needs; the last one empties the memory."""
    with open(path, "r+b", buffering=0) as file:
        file.seek(_SIZE.size + rank)
        file.write(b"\1")
        file.seek(_SIZE.size)
        if file.read(world) == b"\1" * world:
            file.truncate(0)
