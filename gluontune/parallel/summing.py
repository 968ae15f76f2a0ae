"""Ranks of one machine that sum their gradients in memory they share: no server, no sockets, no thread.

MXNet's ``dist_sync`` sends each gradient to a server process and back through the network stack, even on one machine,
and the server needs a core.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from gluontune import runtime
from gluontune.core.errors import GluontuneError, UsageError
from gluontune.core.processes import die_with_parent
from gluontune.parallel.averaging import Averaging, flat_views, put_back
from gluontune.parallel.shared import PATH_VARIABLE, create, opened

_CAPACITY = 1 << 20  # float32 values in one round; more go in several
_LINE = 8  # int64 in a cache line: no two ranks write to the same one
_YIELDS_S = 300e-6  # time for which a waiting rank yields its core; then it sleeps
_SLEEP_S = 50e-6
_DIRECT = 2  # most ranks that each add up everything; more divide the sum and read the parts


class SharedSum:
    """One rank's part in sums over shared memory.

    Rounds alternate between two halves of the memory, so that one wait is enough: a rank can be one round ahead of the
    others, not two. All ranks add in the same order and get the same bits. Up to two ranks add up everything; of more,
    each adds up its share, and all read the others'.

    Args:
        path: of :func:`gluontune.parallel.shared.create`. rank, world: this process among the ranks.
        capacity: float32 values in one round, the same on all ranks; longer arrays take several.

    Raises:
        GluontuneError: the memory cannot be opened.

    >>> from gluontune.parallel.shared import create
    >>> handle, path = create()
    >>> alone = SharedSum(path, rank=0, world=1)
    >>> values = np.arange(3, dtype=np.float32)
    >>> alone.add_up(values)
    >>> values.tolist(), alone.close(), os.close(handle)
    ([0.0, 1.0, 2.0], None, None)
    """

    def __init__(self, path: str, *, rank: int, world: int, capacity: int = _CAPACITY):
        self.rank, self.world, self.capacity = rank, world, capacity
        self._round = self._waits = 0
        self._parent = os.getppid()
        # Per rank: its number of waits, and the length that it contributes to each half. Then, for each half, the
        # values of each rank and the sum.
        head = 3 * _LINE * world
        begin = -(-8 * head // mmap.PAGESIZE) * mmap.PAGESIZE
        size = begin + 4 * 2 * (world + 1) * capacity
        handle = opened(path, "memory of engine 'shared-memory'")
        try:
            os.ftruncate(handle, size)  # the same size for all; untouched pages take no memory
            self._memory = mmap.mmap(handle, size)
        finally:
            os.close(handle)
        self._head = np.frombuffer(self._memory, np.int64, head).reshape(3, world, _LINE)
        self._slots = np.frombuffer(self._memory, np.float32, offset=begin).reshape(2, world + 1, capacity)

    def add_up(self, values: np.ndarray) -> None:
        """Replace float32 values (N,) by their sum over all ranks, in place, after all have arrived.

        Raises:
            GluontuneError: the ranks have different numbers of values; the process that started them has ended.
        """
        for begin in range(0, len(values), self.capacity):
            self._one_round(values[begin : begin + self.capacity], len(values))

    def _one_round(self, values: np.ndarray, whole: int) -> None:
        half, count = self._round % 2, len(values)
        self._round += 1
        slots = self._slots[half, :, :count]
        slots[self.rank] = values
        self._head[1 + half, self.rank, 0] = whole
        self._wait()
        brought = self._head[1 + half, :, 0]
        if (brought != whole).any():
            raise GluontuneError(
                f"rank {self.rank} sums {whole:,} values, the ranks brought {brought.tolist()}: their nets differ"
            )
        if self.world <= _DIRECT:
            np.copyto(values, slots[0])
            for other in slots[1 : self.world]:
                values += other
            return
        share = -(-count // self.world)
        mine = slice(self.rank * share, (self.rank + 1) * share)
        np.copyto(slots[self.world, mine], slots[0, mine])
        for other in slots[1 : self.world]:
            slots[self.world, mine] += other[mine]
        self._wait()
        np.copyto(values, slots[self.world])

    def _wait(self) -> None:
        """Wait until every rank has waited as often as this one."""
        self._waits += 1
        reached = self._head[0, :, 0]
        reached[self.rank] = self._waits
        start = looked = time.monotonic()
        while reached.min() < self._waits:
            now = time.monotonic()
            if now - start < _YIELDS_S:
                os.sched_yield()
                continue
            time.sleep(_SLEEP_S)
            if now - looked > 1.0:
                looked = now
                if os.getppid() != self._parent:
                    raise GluontuneError("the process that started this rank is gone, and another rank does not come")

    def close(self) -> None:
        """Release the memory."""
        del self._head, self._slots
        with contextlib.suppress(BufferError):  # a view in use: the memory is released with the process
            self._memory.close()


class SharedExchange:
    """Collective operations of the ranks of engine ``shared-memory``."""

    def __init__(self, path: str, rank: int, world: int):
        self.rank = rank
        self._sum = SharedSum(path, rank=rank, world=world)
        self._flat = np.zeros(0, np.float32)
        self._views: dict[int, np.ndarray] = {}
        self._last: list[Any] = []  # the arrays of the last call: mostly the same
        self._sizes: list[int] = []

    def sum_gradients(self, grads: Sequence[Any], factor: float = 1.0) -> None:
        """Replace each NDArray by its sum over the ranks: a sum, because the trainer divides by the global batch.

        Args:
            grads: float32, of one context, the same shapes in the same order on every rank. factor: of the sum.

        Raises:
            GluontuneError: another data type, sparse gradients; other shapes on another rank.
        """
        views = self._checked(grads)
        np.concatenate(views, out=self._flat)
        self._sum.add_up(self._flat)
        if factor != 1.0:
            self._flat *= np.float32(factor)
        put_back(self._flat, grads, views)

    def take_from_first(self, named: Mapping[str, Any]) -> None:
        """Overwrite each NDArray with that of rank 0 (parameters, and BatchNorm's running statistics)."""
        arrays = [named[name] for name in sorted(named)]
        views = self._checked(arrays)
        if self.rank == 0:
            np.concatenate(views, out=self._flat)
        else:
            self._flat[:] = 0
        self._sum.add_up(self._flat)
        put_back(self._flat, arrays, views)

    def read_once(self, read: Callable[[], Any]) -> Any:
        """The result of ``read``: all ranks see the same files."""
        return read()

    def _checked(self, arrays: Sequence[Any]) -> list[np.ndarray]:
        """The arrays' memory, with a buffer for all of it."""
        if len(arrays) != len(self._last) or any(a is not b for a, b in zip(arrays, self._last)):
            for array in arrays:
                if array.stype != "default" or np.dtype(array.dtype) != np.float32:
                    kind = np.dtype(array.dtype).name if array.stype == "default" else array.stype
                    raise GluontuneError(
                        f"engine 'shared-memory' sums dense float32 arrays, and this net has {kind} ones: use "
                        "engine='kvstore'"
                    )
            self._last, self._sizes = list(arrays), [array.size for array in arrays]
            self._flat = np.zeros(sum(self._sizes), np.float32)
        return flat_views(arrays, self._views, self._sizes)

    def leave(self) -> None:
        """Release the memory."""
        self._sum.close()


class SharedAveraging(Averaging):
    """By the memory that the ranks of one machine share."""

    def __init__(self, arrays: list[Any], every: int, world: int, exchange: SharedExchange):
        super().__init__(arrays, every, world)
        self.exchange = exchange

    def _exchange(self) -> None:
        self.exchange.sum_gradients(self.arrays, factor=1 / self.world)


_VARIABLE = "GLUONTUNE_RANK"
_TICK_S = 0.1


@dataclass(frozen=True)
class Ranks:
    """This process among the ranks of a script.

    Args:
        rank: 0 … ``world`` - 1. world: processes.
        exchange: its ``sum_gradients`` is for ``gt.optim.setup(…, workers=world, exchange=…)``.
    """

    rank: int
    world: int
    exchange: SharedExchange


def start_ranks(count: int) -> Ranks:
    """Run this script as ``count`` processes on this machine.

    Write it at the top of the script: the process that you started runs the script ``count`` times with the same
    arguments, waits for all, and ends with their status; in each of those the function returns. If one fails, or on
    Ctrl-C, all end. Each is bound to its CPUs; give it a share of the threads (``OMP_NUM_THREADS``) as well.

    Args:
        count: processes, 1 or more; 1 starts none.

    Returns:
        The rank, the number of ranks, and the exchange of their gradients (float32, one context each).

    Raises:
        UsageError: fewer than 1; not called from a script.
        GluontuneError: the system has no shared memory (Linux has it).

    >>> ranks = start_ranks(1)
    >>> ranks.rank, ranks.world
    (0, 1)
    """
    if count < 1:
        raise UsageError(f"start_ranks({count!r}): give a whole number of at least 1")
    told = os.environ.get(_VARIABLE)
    if told is not None:
        rank, world, parent = map(int, told.split("/"))
        die_with_parent(parent)
        runtime.bind_to_cpus(runtime.cpus_for_rank(rank, world))
        return Ranks(rank, world, SharedExchange(os.environ[PATH_VARIABLE], rank, world))
    if count > 1:
        script = getattr(sys.modules["__main__"], "__file__", None)
        if script is None or not sys.argv or not os.path.isfile(sys.argv[0]):
            raise UsageError(f"start_ranks({count}) starts a script more than once, and this is none: python SCRIPT.py")
    handle, path = create()
    if count > 1:
        raise SystemExit(_run(count, path))
    exchange = SharedExchange(path, 0, 1)
    os.close(handle)  # it is mapped
    return Ranks(0, 1, exchange)


def _run(count: int, path: str) -> int:
    """Start all, wait for all; returns the status of the first that failed, or 0."""
    running: list[Any] = []
    try:
        for rank in range(count):
            env = {**os.environ, PATH_VARIABLE: path, _VARIABLE: f"{rank}/{count}/{os.getpid()}"}
            running.append(subprocess.Popen([sys.executable, *sys.argv], env=env))
        while running:
            for process in list(running):
                code = process.poll()
                if code is None:
                    continue
                running.remove(process)
                if code:
                    return code if code > 0 else 128 - code
            time.sleep(_TICK_S)
        return 0
    except KeyboardInterrupt:
        return 130
    finally:
        for process in running:
            with contextlib.suppress(OSError):
                process.kill()
        for process in running:
            process.wait()
