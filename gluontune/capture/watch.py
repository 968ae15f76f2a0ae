"""The training steps of a running script: where they end, their losses and samples, the phases of their time."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from gluontune.capture.helpers.base import patched, with_subclasses


class Steps:
    """Calls ``over`` at the end of each step, in the script's thread."""

    def __init__(self, over: Callable[[], None]):
        self._over = over
        self.trainers = 0
        self._first: Any = None

    def install(self, mx: Any) -> None:
        patched(mx.gluon.Trainer, "__init__", self._around_trainer)
        patched(mx.gluon.Trainer, "_update", self._around_update)
        for owner in (mx.nd.NDArray, mx.autograd):
            patched(owner, "backward", self._around_backward)

    def _around_trainer(self, original: Any, *args: Any, **kwargs: Any) -> None:
        self.trainers += 1
        original(*args, **kwargs)

    def _around_update(self, original: Any, trainer: Any, *args: Any, **kwargs: Any) -> Any:
        found = original(trainer, *args, **kwargs)
        if self._first is None:
            self._first = trainer
        if trainer is self._first:
            self._over()
        return found

    def _around_backward(self, original: Any, *args: Any, **kwargs: Any) -> Any:
        found = original(*args, **kwargs)
        if not self.trainers:
            self._over()
        return found


class Watch(Steps):
    """Steps with what can be seen of them."""

    def __init__(self, mx: Any, over: Callable[[], None]):
        super().__init__(self._counted_over)
        self._mx, self._told = mx, over
        self.reads_losses = False  # which waits for each
        self.losses: list[float | None] = []  # means of all that was differentiated in a step, or None
        self.loaders, self.workers = 0, 0
        self.samples, self.counted = 1, 0  # of the last step, and of the steps since ``begin``
        self.left_out_s = 0.0  # since then, between the end of an epoch's data and the next recorded step
        self._batch, self._rows, self._head = 0, 0, 0
        self._loss: float | None = None
        self._phases: dict[str, float] | None = None
        self._recording_since: float | None = None
        self._no_data_since: float | None = None
        self._fetching = False

    def install(self, mx: Any) -> None:
        super().install(mx)
        for name in ("step", "update"):
            patched(mx.gluon.Trainer, name, self._around_batch_size)
        patched(mx.autograd._RecordingStateScope, "__enter__", self._around_recording)
        patched(mx.gluon.data.DataLoader, "__iter__", self._around_loader)
        for kind in with_subclasses(mx.io.DataIter):
            if "next" in vars(kind):
                patched(kind, "next", self._fetched)

    def wait(self) -> None:
        self._mx.nd.waitall()

    def begin(self, phases: bool) -> None:
        """Count from here. phases: whether to time them, which waits in between."""
        self.counted, self.left_out_s = 0, 0.0
        self._no_data_since = None
        self._phases = {} if phases else None

    def phases_pct(self, seconds: float) -> dict[str, float]:
        """The share of each phase in ``seconds``, percent; what belongs to none is the rest."""
        found = {name: 100 * spent / seconds for name, spent in (self._phases or {}).items()}
        return {**found, "rest": max(0.0, 100 - sum(found.values()))} if found else {}

    # -- hooks

    def _counted_over(self) -> None:
        """A step is over: how many samples, which loss."""
        rows = [count for count in (self._batch, self._rows, self._head) if count > 1]  # a batch of 1 says nothing
        self.samples = rows[0] if rows else 1
        self.counted += self.samples
        if self.reads_losses:
            self.losses.append(self._loss)
        self._rows, self._head, self._loss = 0, 0, None
        self._told()

    def _timed(self, phase: str, work: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Call ``work``; if phases are timed, wait for it and add its time to one."""
        if self._phases is None:
            return work(*args, **kwargs)
        began = time.perf_counter()
        found = work(*args, **kwargs)
        if self._phases is not None:  # the step may have been the last that was timed
            self.wait()
            self._phases[phase] = self._phases.get(phase, 0.0) + time.perf_counter() - began
        return found

    def _around_batch_size(self, original: Any, trainer: Any, batch_size: Any, *args: Any, **kwargs: Any) -> Any:
        self._batch = int(batch_size)
        return original(trainer, batch_size, *args, **kwargs)

    def _around_update(self, original: Any, trainer: Any, *args: Any, **kwargs: Any) -> Any:
        timed = functools.partial(self._timed, "update", original)
        return super()._around_update(timed, trainer, *args, **kwargs)

    def _around_backward(self, original: Any, *args: Any, **kwargs: Any) -> Any:
        def backward(heads: Any, *rest: Any, **more: Any) -> Any:
            if self._phases is not None and self._recording_since is not None:
                self.wait()
                spent = time.perf_counter() - self._recording_since
                self._phases["forward"] = self._phases.get("forward", 0.0) + spent
            self._recording_since = None
            found = self._timed("backward", original, heads, *rest, **more)
            self._note(list(heads) if isinstance(heads, (list, tuple)) else [heads])
            return found

        return super()._around_backward(backward, *args, **kwargs)

    def _note(self, heads: list[Any]) -> None:
        shapes = [getattr(head, "shape", ()) for head in heads]
        self._head = sum(shape[0] for shape in shapes if shape)
        if not self.reads_losses:
            return
        try:
            read = sum(float(np.mean(_values(head))) for head in heads)
        except Exception:  # a head of another kind: the script's own affair
            return
        self._loss = read if self._loss is None else self._loss + read

    def _around_recording(self, original: Any, scope: Any) -> Any:
        if scope._enter_is_record:
            now = time.perf_counter()
            if self._no_data_since is not None:
                self.left_out_s += now - self._no_data_since
                self._no_data_since = None
            self._recording_since = now
        return original(scope)

    def _around_loader(self, original: Any, loader: Any) -> Iterator[Any]:
        self.loaders += 1
        self.workers = max(self.workers, int(getattr(loader, "_num_workers", 0) or 0))
        batches = iter(original(loader))
        while True:
            try:
                batch = self._fetched(next, batches)
            except StopIteration:
                return
            yield batch

    def _fetched(self, fetch: Callable[..., Any], *args: Any) -> Any:
        """The next batch; the clock of a slice stands still from the end of the data on."""
        if self._fetching:  # an iterator that calls another
            return fetch(*args)
        self._fetching = True
        try:
            batch = self._timed("data", fetch, *args)
        except StopIteration:
            self.wait()
            if self._no_data_since is None and self._phases is None:
                self._no_data_since = time.perf_counter()
            raise
        finally:
            self._fetching = False
        data = getattr(batch, "data", batch)
        first = data[0] if isinstance(data, (list, tuple)) and data else data
        shape = getattr(first, "shape", ())
        self._rows = int(shape[0]) if shape else 0
        return batch


def _values(head: Any) -> Any:
    try:
        return head.asnumpy()
    except TypeError:  # of bfloat16
        return head.astype("float32").asnumpy()
