"""Our loaders for PyTorch, imported with the first batch: tensors (N, C, H, W), ``channels_last``, without a copy,
on the GPU ahead of time, resumable in mid-epoch.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any

import numpy as np

from gluontune.core.errors import UsageError
from gluontune.core.files import Closing
from gluontune.loading.base import Loader
from gluontune.runtime.pytorch import torch


def to_tensors(images: np.ndarray, labels: Any) -> tuple[Any, Any]:
    """A numpy batch as tensors that read the same memory, which is reused once they and their views are deleted.

    uint8 (N, H, W, C) becomes (N, C, H, W) in ``torch.channels_last``; labels are int64 (N,), or the mapping of a
    ``FieldsLoader``, with arrays as tensors and lists unchanged.
    """
    library = torch()
    placed = library.from_numpy(images).permute(0, 3, 1, 2)
    return placed, _each(labels, lambda array: library.from_numpy(np.ascontiguousarray(array)))


def _each(labels: Any, change: Callable[[Any], Any]) -> Any:
    """``labels`` changed; of a mapping, each value except lists."""
    if isinstance(labels, dict):
        return {name: v if isinstance(v, list) else change(v) for name, v in labels.items()}
    return change(labels)


class TorchLoader(Closing):
    """One of our numpy loaders in place of ``torch.utils.data.DataLoader``.

    ``for images, labels in loader`` is one epoch; each loop is the next one, shuffled anew, unless ``set_epoch`` names
    one. ``len(loader)`` is the number of batches.

    Args:
        loader: a loader that yields uint8 numpy batches; see ``gt.loading.build(..., framework="torch")``.
        device: of the batches; None: main memory. For a CUDA device they are copied through page-locked memory on a
            separate stream, ``ahead`` batches in advance.
        normalize: float32 ``(pixels / 255 - mean) / std`` with the loader's ``mean`` and ``std`` (of pixels of 0 … 1),
            computed on the device; else the batch stays uint8.
        ahead: batches in advance on a CUDA device.

    Raises:
        UsageError: the loader yields NDArrays, or is to be normalized without ``mean`` and ``std``.
    """

    def __init__(self, loader: Loader, device: Any = None, normalize: bool = False, ahead: int = 2):
        if loader.yields != "uint8-nhwc":
            raise UsageError(
                f"loader {loader.name!r} yields MXNet's NDArrays: with framework='torch' use 'threaded' or 'resident'"
            )
        if ahead < 1:
            raise UsageError(f"ahead={ahead}: give a whole number of at least 1")
        self.loader, self.device, self.ahead = loader, device, ahead
        self.mean, self.std = getattr(loader, "mean", None), getattr(loader, "std", None)
        if normalize and (self.mean is None or self.std is None):
            raise UsageError("normalize=True needs mean and std of each channel, for pixels of 0 to 1")
        self.normalize = bool(normalize)
        self._epoch, self._done = 0, 0  # the caller's position: the loader may be ahead of it
        self._scale: Any = None

    def __len__(self) -> int:
        return self.loader.order.num_batches(self._epoch)

    def __iter__(self) -> Iterator[tuple[Any, Any]]:
        return self.epoch(self._epoch)

    def set_epoch(self, epoch: int) -> None:
        """Make the next loop epoch ``epoch``, like ``DistributedSampler.set_epoch``; a resumed epoch continues.

        Raises:
            UsageError: below 0.
        """
        if epoch < 0:
            raise UsageError(f"epoch={epoch}: epochs are numbered from 0")
        if epoch != self._epoch:
            self._epoch, self._done = epoch, 0

    def epoch(self, n: int) -> Iterator[tuple[Any, Any]]:
        """The batches of epoch ``n``: the same for the same seed and any number of threads."""
        resumed = self.loader._resume_at
        batches = self.loader.epoch(n)
        self._epoch, self._done = n, resumed[1] if resumed is not None and resumed[0] == n else 0
        return self._run(n, batches)

    def state_dict(self) -> dict[str, Any]:
        """The caller's position: yielded batches count as used, prefetched ones do not."""
        return {**self.loader.state(), "epoch": self._epoch, "batch": self._done}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from ``state`` with the same batches, byte for byte.

        Raises:
            UsageError: the state is of another data set, batch size, seed or sharding.
        """
        self.loader.restore(state)
        self._epoch, self._done = int(state["epoch"]), int(state["batch"])

    def close(self) -> None:
        """End the loader's threads. It may be called twice."""
        self.loader.close()

    def _run(self, n: int, batches: Iterator[tuple[Any, Any]]) -> Iterator[tuple[Any, Any]]:
        device = None if self.device is None else torch().device(self.device)
        cuda = device is not None and device.type == "cuda"
        made = self._copied(batches, device) if cuda else self._placed(batches, device)
        try:
            for batch in made:
                if self._epoch == n:
                    self._done += 1
                yield batch
                del batch  # the loader reuses its memory once the caller releases it
            if self._epoch == n:
                self._epoch, self._done = n + 1, 0
        finally:
            made.close()
            batches.close()  # type: ignore[attr-defined]

    def _placed(self, batches: Iterator[tuple[Any, Any]], device: Any) -> Any:
        for images, labels in batches:
            tensors = to_tensors(images, labels)
            del images
            if device is not None:
                tensors = (tensors[0].to(device), _each(tensors[1], lambda tensor: tensor.to(device)))
            yield self._finish(*tensors)
            del tensors

    def _copied(self, batches: Iterator[tuple[Any, Any]], device: Any) -> Any:
        """Batches copied through page-locked memory on a separate stream, ``ahead`` in advance."""
        cuda = torch().cuda
        side = cuda.Stream(device)
        waiting: deque[tuple[Any, Any]] = deque()
        while True:
            for item in islice(batches, self.ahead + 1 - len(waiting)):
                with cuda.stream(side):
                    ahead = [_each(part, lambda t: t.pin_memory()) for part in to_tensors(*item)]
                    ahead = [_each(part, lambda t: t.to(device, non_blocking=True)) for part in ahead]
                    waiting.append((ahead[0], ahead[1]))
            if not waiting:
                return
            images, labels = waiting.popleft()
            here = cuda.current_stream(device)
            here.wait_stream(side)
            for part in (images, labels):  # memory is not reused before the work on it is done
                _each(part, lambda tensor, here=here: tensor.record_stream(here))  # type: ignore[misc]
            yield self._finish(images, labels)

    def _finish(self, images: Any, labels: Any) -> tuple[Any, Any]:
        if not self.normalize:
            return images, labels
        library = torch()
        if self._scale is None or self._scale[0].device != images.device:
            mean, std = (np.asarray(v, np.float64).reshape(-1, 1, 1) for v in (self.mean, self.std))
            both = (1 / (255 * std), mean / std)
            self._scale = [library.as_tensor(v, dtype=library.float32, device=images.device) for v in both]
        return images.float().mul_(self._scale[0]).sub_(self._scale[1]), labels
