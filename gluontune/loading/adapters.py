"""From numpy batches to NDArrays on one or several devices, with the copy hidden behind the compute.

This module imports mxnet when it is used; the loaders themselves do not.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterator
from typing import Any

import numpy as np

from gluontune.errors import UsageError
from gluontune.loading.base import Loader
from gluontune.runtime import mxnet

__all__ = ["DeviceLoader", "to_device"]


def to_device(images: Any, labels: Any, ctx: Any) -> Any:
    """Put one batch on a device, or a share of it on each of several.

    On the CPU a numpy batch is not copied: the NDArray reads its memory, which stays reserved until
    MXNet has let it go. On a GPU it goes through page-locked memory, asynchronously.

    Args:
        images: numpy uint8 (N, H, W, C) or an NDArray.
        labels: numpy (N,) or an NDArray; numpy labels become float32, as Gluon's losses expect.
        ctx: an ``mx.Context``, or a list of them.

    Returns:
        ``(images, labels)`` on one context; for a list, a list of such pairs: shares as equal as they
        can be, and none that is empty (Gluon's ``split_and_load`` fails on 3 samples for 4 devices).

    Raises:
        UsageError: an empty list of contexts.

    >>> mx = mxnet()
    >>> batch, classes = np.zeros((3, 8, 8, 3), np.uint8), np.arange(3)
    >>> images, labels = to_device(batch, classes, mx.cpu())
    >>> images.shape, images.dtype.__name__, labels.asnumpy().tolist()
    ((3, 8, 8, 3), 'uint8', [0.0, 1.0, 2.0])
    >>> [len(part) for part, _ in to_device(batch, classes, [mx.cpu(i) for i in range(4)])]
    [1, 1, 1]
    """
    if not isinstance(ctx, (list, tuple)):
        return _put(images, ctx), _put(_float_labels(labels), ctx)
    if not ctx:
        raise UsageError("ctx=[]: give at least one context")
    n, share = len(images), len(ctx)
    edges = [n * k // share for k in range(share + 1)]
    labels = _float_labels(labels)
    return [
        (_put(images[a:b], device), _put(labels[a:b], device)) for a, b, device in zip(edges, edges[1:], ctx) if b > a
    ]


def _float_labels(labels: Any) -> Any:
    return labels.astype(np.float32) if isinstance(labels, np.ndarray) else labels


def _put(array: Any, ctx: Any) -> Any:
    mx = mxnet()
    if not isinstance(array, np.ndarray):
        return array.as_in_context(ctx)
    if ctx.device_type == "cpu" and ctx.device_id == 0:
        # from_numpy makes what it is given read-only: give it a view, so that the memory can be used again.
        return mx.nd.from_numpy(np.ascontiguousarray(array).view(), zero_copy=True)
    if ctx.device_type == "cpu":
        return mx.nd.array(array, ctx=ctx, dtype=array.dtype)
    return mx.nd.array(array, ctx=mx.cpu_pinned(ctx.device_id), dtype=array.dtype).as_in_context(ctx)


class DeviceLoader:
    """Any loader, with its batches already on the device(s) when you ask for them.

    A thread of its own takes batches from the loader and starts their copies while you compute. A
    drop-in for ``gluon.data.DataLoader``: ``for images, labels in loader`` is one epoch.

    Args:
        loader: what ``gt.loading.build`` gives, or any iterable of (images, labels).
        ctx: an ``mx.Context``, or a list of them (then each item is a list of pairs, see ``to_device``).
        ahead: batches that wait on the device, at least 1.

    >>> from gluontune.loading import ResidentLoader
    >>> import cv2
    >>> class Split:
    ...     labels = np.arange(4)
    ...     def __len__(self): return 4
    ...     def read(self, i): return cv2.imencode(".png", np.full((8, 8, 1), i, np.uint8))[1]
    >>> loader = DeviceLoader(ResidentLoader(Split(), batch_size=2, image_shape=(8, 8, 1)), mxnet().cpu())
    >>> [images[:, 0, 0, 0].asnumpy().tolist() for images, labels in loader]
    [[0, 1], [2, 3]]
    """

    def __init__(self, loader: Any, ctx: Any, ahead: int = 2):
        if ahead < 1:
            raise UsageError(f"ahead={ahead}: give a whole number of at least 1")
        self.loader, self.ctx, self.ahead = loader, ctx, ahead
        self._stop: threading.Event | None = None
        self._thread: threading.Thread | None = None

    def __len__(self) -> int:
        return len(self.loader)

    def __iter__(self) -> Iterator[Any]:
        return self._run(iter(self.loader))

    def epoch(self, n: int) -> Iterator[Any]:
        """The batches of epoch ``n`` of the loader, on the device."""
        return self._run(self.loader.epoch(n))

    def close(self) -> None:
        """End the thread and the loader."""
        self._end()
        if isinstance(self.loader, Loader) or hasattr(self.loader, "close"):
            self.loader.close()

    def __enter__(self) -> DeviceLoader:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _end(self) -> None:
        if self._stop is not None and self._thread is not None:
            self._stop.set()
            self._thread.join(timeout=10.0)
        self._stop = self._thread = None

    def _run(self, batches: Iterator[Any]) -> Iterator[Any]:
        self._end()
        stop = self._stop = threading.Event()
        ready: queue.Queue[tuple[str, Any]] = queue.Queue(self.ahead)
        self._thread = threading.Thread(
            target=self._feed, args=(batches, ready, stop), name="gluontune-device", daemon=True
        )
        self._thread.start()
        try:
            while True:
                kind, item = ready.get()
                if kind == "error":
                    raise item
                if kind == "end":
                    return
                yield item
                del item
        finally:
            stop.set()

    def _feed(self, batches: Iterator[Any], ready: queue.Queue[tuple[str, Any]], stop: threading.Event) -> None:
        def offer(kind: str, item: Any) -> None:
            while not stop.is_set():
                try:
                    ready.put((kind, item), timeout=0.2)
                    return
                except queue.Full:
                    continue

        try:
            for images, labels in batches:
                offer("batch", to_device(images, labels, self.ctx))
                if stop.is_set():
                    return
            offer("end", None)
        except BaseException as error:  # the consumer must learn of it, whatever it is
            offer("error", error)
        finally:
            close = getattr(batches, "close", None)
            if close is not None:
                close()
