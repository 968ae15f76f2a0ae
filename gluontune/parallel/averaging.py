"""Ranks that train alone for some steps and then exchange their parameters: averages, or changes to shared weights."""

from __future__ import annotations

import ctypes
import zlib
from abc import ABC, abstractmethod
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import numpy as np

from gluontune.core.errors import GluontuneError
from gluontune.parallel.shared import SharedWeights
from gluontune.runtime import mxnet

WORTH_A_THREAD = 262_144  # weights: passing fewer to a thread costs more than adding them


class Averaging(ABC):
    """Every so many steps, the ranks' parameters are replaced by their mean.

    Called at the same steps on every rank. Statistics of a net (BatchNorm's) are averaged as well; each rank has its
    optimizer's states. With SGD or momentum and ``every=1`` this is the exchange of gradients, up to rounding.

    Args:
        arrays: the NDArrays of the parameters, in the same order on every rank.
        every: steps between exchanges. world: number of ranks.

    Source: McDonald et al., *Distributed training strategies for the structured perceptron*, 2010; Lin et al.,
    *Don't use large mini-batches, use local SGD*, 2020.
    """

    def __init__(self, arrays: list[Any], every: int, world: int):
        self.arrays, self.every, self.world = arrays, every, world
        self._apart = 0  # steps since the last exchange
        self.steps_taken = 0

    def publish(self, steps_taken: int = 0) -> None:
        """Begin, or continue after ``steps_taken`` steps, with parameters that are equal on all ranks."""
        self._apart, self.steps_taken = 0, steps_taken

    def after_step(self) -> None:
        """Count a step; exchange after every ``every``-th."""
        self._apart += 1
        self.steps_taken += 1
        if self._apart >= self.every:
            self._exchange()
            self._apart = 0

    def agree(self) -> None:
        """Exchange now, after any step since the last exchange."""
        if self._apart:
            self._exchange()
            self._apart = 0

    def _at_rest(self) -> list[Any]:
        """The arrays after all queued work, in row order, the only one that is sent."""
        mxnet().nd.waitall()
        for array in self.arrays:
            _address(array)
        return self.arrays

    @abstractmethod
    def _exchange(self) -> None:
        """Exchange the ranks' parameters now."""

    def close(self) -> None:  # noqa: B027 (an exchange without memory has nothing to release)
        """End the exchange."""


class HorovodAveraging(Averaging):
    """By Horovod's ring all-reduce."""

    def __init__(self, arrays: list[Any], every: int, world: int, hvd: Any):
        super().__init__(arrays, every, world)
        self.hvd = hvd

    def _exchange(self) -> None:
        self.hvd.grouped_allreduce_(self._at_rest(), average=True, name="parameters")


class KvstoreAveraging(Averaging):
    """By MXNet's parameter server, which sums the workers' values."""

    def __init__(self, arrays: list[Any], every: int, world: int):
        super().__init__(arrays, every, world)
        self._store: Any = None
        self._keys = list(range(len(arrays)))

    def publish(self, steps_taken: int = 0) -> None:
        """As :meth:`Averaging.publish`; at first all ranks take rank 0's parameters."""
        super().publish(steps_taken)
        if self._store is not None:
            return
        self._store = mxnet().kv.create("dist_sync")
        self._store.init(self._keys, self._at_rest())
        self._store.pull(self._keys, self.arrays)
        mxnet().nd.waitall()

    def _exchange(self) -> None:
        self._store.push(self._keys, [array / self.world for array in self._at_rest()])
        self._store.pull(self._keys, self.arrays)


class SharedUpdates(Averaging):
    """Asynchronous learners: each adds its changes to shared weights, and takes the others' changes.

    No learner waits for another: no lock, no barrier. The exchange is double-buffered: during the learner's next steps
    on one copy of the weights, a thread adds the last change to the shared ones and fetches the others' changes into a
    second copy, which are added at the next exchange. A learner's weights are thus one exchange old, and the memory
    traffic overlaps with the steps if a core is free. Small nets need no thread.

    Args:
        arrays: the NDArrays of the parameters, float32, on one context.
        averaged: for each, whether changes are divided by the number of learners: for running statistics, for which
            the sum of several learners' changes would overshoot.
        path: of the shared memory. thread_from: number of weights from which a thread exchanges them.

    Source: Zhang et al., *GaDei: On scale-up training as a service for deep learning*, 2017 (deck 001); Recht et al.,
    *Hogwild!*, 2011.
    """

    def __init__(
        self, arrays: list[Any], every: int, world: int, *, averaged: Sequence[bool], path: str,
        rank: int, thread_from: int = WORTH_A_THREAD,
    ):  # fmt: skip
        super().__init__(arrays, every, world)
        wrong = [str(np.dtype(a.dtype)) for a in arrays if np.dtype(a.dtype) != np.float32]
        if wrong:
            raise GluontuneError(f"engine 'async' shares float32 parameters; this net has {wrong[0]}")
        shapes = [tuple(a.shape) for a in arrays]
        sizes = [int(np.prod(shape, dtype=np.int64)) for shape in shapes]
        edges = np.concatenate([[0], np.cumsum(sizes)])
        self._sizes, self._views = sizes, dict[int, np.ndarray]()
        self._places = [slice(int(a), int(b)) for a, b in zip(edges, edges[1:])]
        total = int(edges[-1])
        self._statistics = [place for place, average in zip(self._places, averaged) if average]
        self._now, self._mine, self._change, self._others = (np.zeros(total, np.float32) for _ in range(4))
        self._gather(self._mine)
        mark = zlib.crc32(repr(shapes).encode())
        self.shared = SharedWeights(path, self._mine, mark=mark, rank=rank, world=world)
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="gluontune-exchange")
        self._pending: Future[None] | None = None
        self._thread_from = thread_from

    def publish(self, steps_taken: int = 0) -> None:
        self._settle()
        super().publish(steps_taken)
        self._gather(self._mine)
        self._others[:] = 0
        self.shared.put(self._mine, steps_taken)

    def rejoin(self) -> int:
        """Take the shared weights. Returns the steps that this learner had taken before."""
        steps = self.shared.steps[self.shared.rank]
        super().publish(steps)
        self._pull()
        return steps

    def agree(self) -> None:
        """Add the last change, then take the shared weights."""
        super().agree()
        self._settle()
        self._pull()

    def _exchange(self) -> None:
        """Swap: this learner's last change goes out, the others' changes come in."""
        views = flat_views(self.arrays, self._views, self._sizes)
        np.concatenate(views, out=self._now)
        self._settle()
        np.subtract(self._now, self._mine, out=self._change)
        if self.world > 1:
            for place in self._statistics:
                self._change[place] /= self.world
        self._now += self._others
        put_back(self._now, self.arrays, views)
        self._now, self._mine = self._mine, self._now
        if len(self._mine) < self._thread_from:
            self._round_trip(self.steps_taken)
        else:
            self._pending = self._thread.submit(self._round_trip, self.steps_taken)

    def _round_trip(self, steps: int) -> None:
        self.shared.add(self._change, steps)
        np.subtract(self.shared.weights, self._mine, out=self._others)

    def _settle(self) -> None:
        """Wait for a running exchange."""
        if self._pending is not None:
            self._pending.result()
            self._pending = None

    def _pull(self) -> None:
        self._mine[:] = self.shared.weights
        self._others[:] = 0
        put_back(self._mine, self.arrays, flat_views(self.arrays))

    def _gather(self, flat: np.ndarray) -> None:
        for place, view in zip(self._places, flat_views(self.arrays)):
            flat[place] = view

    def close(self) -> None:
        self._settle()
        self._thread.shutdown()
        self.shared.close()


def flat_views(
    arrays: Sequence[Any], known: dict[int, np.ndarray] | None = None, sizes: list[int] | None = None
) -> list[np.ndarray]:
    """The memory of float32 NDArrays as flat numpy arrays, after all queued work on them.

    On the CPU these are writable views of the arrays, valid until the next operation on them. ``known`` has views by
    address, of earlier calls with the same arrays; ``sizes``, of the arrays, are given if a view may be of memory that
    another of them uses now.
    """
    nd = mxnet().nd
    if not arrays or arrays[0].context.device_type != "cpu":
        return [array.asnumpy().reshape(-1) for array in arrays]
    nd.waitall()
    known = {} if known is None else known
    if len(known) > 8 * len(arrays):  # arrays that move all the time
        known.clear()
    found = []
    for array in arrays:
        address = _address(array)
        view = known.get(address)
        if view is None:
            size = int(np.prod(array.shape, dtype=np.int64))
            memory: Any = (ctypes.c_float * size).from_address(address)
            view = known[address] = np.frombuffer(memory, np.float32)
        found.append(view)
    if sizes is not None and [len(view) for view in found] != sizes:
        known.clear()
        return flat_views(arrays, known)
    return found


def put_back(flat: np.ndarray, arrays: Sequence[Any], views: Sequence[np.ndarray]) -> None:
    """Write the values of ``flat``, array by array, into the NDArrays of ``views``."""
    on_cpu = arrays[0].context.device_type == "cpu"
    begin = 0
    for array, view in zip(arrays, views):
        values = flat[begin : begin + len(view)]
        begin += len(view)
        if on_cpu:
            view[:] = values
        else:
            array[:] = values.reshape(array.shape)


def _address(array: Any) -> int:
    """The address of an NDArray, which MXNet brings into row order."""
    mx, address = mxnet(), ctypes.c_void_p()
    mx.base.check_call(mx.base._LIB.MXNDArrayGetData(array.handle, ctypes.byref(address)))
    return int(address.value or 0)
