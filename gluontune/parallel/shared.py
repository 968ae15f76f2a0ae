"""Memory that several processes share, and weights in it that are updated without locks.

The memory is anonymous (``memfd_create``): it has no name that could be left behind, and is gone with the last
process that maps it. One process makes it with :func:`create` and tells the others its path; the first learner to
:class:`attach <SharedWeights>` writes its weights into it.
"""

from __future__ import annotations

import contextlib
import fcntl
import mmap
import os
from collections.abc import Iterator

import numpy as np

from gluontune.core.errors import GluontuneError

#: The environment variable in which ranks find the path.
PATH_VARIABLE = "GLUONTUNE_SHARED_MEMORY"

_MAGIC = 0x6C7531
_WORDS = 3  # of the header: magic, number of weights, checksum of the shapes; then a step counter a learner
_ALIGN = 4096


def available() -> bool:
    """Whether this system has such memory: Linux."""
    return hasattr(os, "memfd_create")


def create() -> tuple[int, str]:
    """Shared memory without content: its descriptor, to be closed in the end, and the path for other processes.

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


def steps_of(path: str, rank: int) -> int:
    """Steps that learner ``rank`` has taken; 0 where nobody has attached yet."""
    handle = os.open(path, os.O_RDONLY)
    try:
        found = os.pread(handle, 8, 8 * (_WORDS + rank))
    finally:
        os.close(handle)
    return int.from_bytes(found, "little")


class SharedWeights:
    """One learner's view of the shared weights.

    Args:
        path: of :func:`create`, or of any file. first: this learner's weights, float32 (N,): what the memory holds
            if nobody came before. mark: a number that tells nets apart (a checksum of the shapes).
        rank, world: this learner among the others.

    Attributes:
        weights: float32 (N,), shared: what is written here is seen by all.
        fresh: whether this learner was the first.

    Raises:
        GluontuneError: the memory holds the weights of another net.

    Source: Recht et al., *Hogwild!*, 2011; Zhang et al., *GaDei*, 2017 (deck 001).

    >>> handle, path = create()
    >>> one = SharedWeights(path, np.zeros(3, np.float32), mark=7, rank=0, world=2)
    >>> two = SharedWeights(path, np.ones(3, np.float32), mark=7, rank=1, world=2)
    >>> one.add(np.full(3, 2, np.float32), steps=1)
    >>> two.weights.tolist(), two.steps, steps_of(path, 0)
    ([2.0, 2.0, 2.0], [1, 0], 1)
    >>> one.close(), two.close(), os.close(handle)
    (None, None, None)
    """

    def __init__(self, path: str, first: np.ndarray, *, mark: int, rank: int, world: int):
        self.rank = rank
        begin = -(-8 * (_WORDS + world) // _ALIGN) * _ALIGN
        size = begin + 4 * len(first)
        try:
            handle = os.open(path, os.O_RDWR)
        except OSError as error:
            raise GluontuneError(f"{path}: the shared weights cannot be opened: {error}") from error
        try:
            with _alone(handle):
                found = os.fstat(handle).st_size
                self.fresh = found == 0
                if self.fresh:
                    os.ftruncate(handle, size)
                elif found != size:
                    raise GluontuneError(
                        f"the shared weights take {found} bytes, this learner's net {size}: nets differ"
                    )
                self._memory = mmap.mmap(handle, size)
                self._header = np.frombuffer(self._memory, np.int64, _WORDS + world)
                self.weights = np.frombuffer(self._memory, np.float32, len(first), begin)
                if self.fresh:
                    self.weights[:] = first
                    self._header[:_WORDS] = _MAGIC, len(first), mark
                elif self._header[:_WORDS].tolist() != [_MAGIC, len(first), mark]:
                    raise GluontuneError("the shared weights are of a net with other shapes: nets differ")
        finally:
            os.close(handle)

    @property
    def steps(self) -> list[int]:
        """Steps that each learner has taken."""
        return self._header[_WORDS:].tolist()

    def add(self, change: np.ndarray, steps: int) -> None:
        """Add this learner's change to the weights, where others may be writing at the same time.

        No lock: where two add to the same weight at the same moment, one of the two additions can be lost.
        """
        np.add(self.weights, change, out=self.weights)
        self._header[_WORDS + self.rank] = steps

    def put(self, weights: np.ndarray, steps: int) -> None:
        """Overwrite the weights; for when all learners stand still."""
        self.weights[:] = weights
        self._header[_WORDS + self.rank] = steps

    def close(self) -> None:
        """Let the memory go."""
        del self.weights, self._header
        with contextlib.suppress(BufferError):  # somebody still holds a view: it goes with the process
            self._memory.close()


@contextlib.contextmanager
def _alone(handle: int) -> Iterator[None]:
    """Hold a file against the others."""
    fcntl.flock(handle, fcntl.LOCK_EX)
    try:
        yield
    finally:
        fcntl.flock(handle, fcntl.LOCK_UN)
