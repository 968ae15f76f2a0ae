"""Anonymous memory shared by processes (``memfd_create``), gone with the last, and weights in it without locks.

One process makes it with :func:`create`; the first learner writes its weights into it.
"""

from __future__ import annotations

import contextlib
import fcntl
import mmap
import os

import numpy as np

from gluontune.core.errors import GluontuneError

#: The environment variable with the path for the ranks.
PATH_VARIABLE = "GLUONTUNE_SHARED_MEMORY"

_MAGIC = 0x6C7531
_WORDS = 3  # of the header: magic, number of weights, checksum of the shapes; then a step counter a learner
_ALIGN = 4096


def available() -> bool:
    """Whether this system has such memory: Linux."""
    return hasattr(os, "memfd_create")


def create() -> tuple[int, str]:
    """New shared memory: its descriptor, to be closed in the end, and the path for other processes.

    Raises:
        GluontuneError: the system has none.
    """
    try:
        handle = os.memfd_create("gluontune-weights")
    except (AttributeError, OSError) as error:
        raise GluontuneError(
            f"engines 'shared-memory' and 'async' need Linux's memfd_create: {error}; use engine='kvstore'"
        ) from error
    return handle, f"/proc/{os.getpid()}/fd/{handle}"


def opened(path: str, what: str) -> int:
    """A descriptor of shared memory, to be closed once it is mapped; ``what`` names it in errors."""
    try:
        return os.open(path, os.O_RDWR)
    except OSError as error:
        raise GluontuneError(f"{path}: the {what} cannot be opened: {error}") from error


def steps_of(path: str, rank: int) -> int:
    """Steps taken by learner ``rank``; 0 before anyone has attached."""
    handle = os.open(path, os.O_RDONLY)
    try:
        found = os.pread(handle, 8, 8 * (_WORDS + rank))
    finally:
        os.close(handle)
    return int.from_bytes(found, "little")


class SharedWeights:
    """The shared weights in one learner, float32 (N,): writes to ``weights`` are visible to all.

    Args:
        path: of :func:`create`, or of any file. first: this learner's weights, the content of new memory.
        mark: a number that identifies the net (a checksum of the shapes). rank, world: this learner among the others.

    Source: Recht et al., *Hogwild!*, 2011; Zhang et al., *GaDei*, 2017 (deck 001).
    """

    def __init__(self, path: str, first: np.ndarray, *, mark: int, rank: int, world: int):
        self.rank = rank
        begin = -(-8 * (_WORDS + world) // _ALIGN) * _ALIGN
        size = begin + 4 * len(first)
        handle = opened(path, "shared weights")
        try:
            fcntl.flock(handle, fcntl.LOCK_EX)
            found = os.fstat(handle).st_size
            fresh = found == 0
            if fresh:
                os.ftruncate(handle, size)
            elif found != size:
                raise GluontuneError(f"the shared weights take {found} bytes, this learner's net {size}: nets differ")
            self._memory = mmap.mmap(handle, size)
            self._header = np.frombuffer(self._memory, np.int64, _WORDS + world)
            self.weights = np.frombuffer(self._memory, np.float32, len(first), begin)
            if fresh:
                self.weights[:] = first
                self._header[:_WORDS] = _MAGIC, len(first), mark
            elif self._header[:_WORDS].tolist() != [_MAGIC, len(first), mark]:
                raise GluontuneError("the shared weights are of a net with other shapes: nets differ")
        finally:
            fcntl.flock(handle, fcntl.LOCK_UN)  # the mapping holds a descriptor of its own
            os.close(handle)

    @property
    def steps(self) -> list[int]:
        """Steps taken by each learner."""
        return self._header[_WORDS:].tolist()

    def add(self, change: np.ndarray, steps: int) -> None:
        """Add this learner's change to the weights, without a lock: of two simultaneous additions one may be lost."""
        np.add(self.weights, change, out=self.weights)
        self._header[_WORDS + self.rank] = steps

    def put(self, weights: np.ndarray, steps: int) -> None:
        """Overwrite the weights; while all learners are idle."""
        self.weights[:] = weights
        self._header[_WORDS + self.rank] = steps

    def close(self) -> None:
        """Release the memory."""
        del self.weights, self._header
        with contextlib.suppress(BufferError):  # a view in use: the memory is released with the process
            self._memory.close()
