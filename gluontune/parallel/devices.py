"""Which MXNet contexts a process trains on, and the safe split of a batch over them."""

from __future__ import annotations

from typing import Any

from gluontune.errors import GluontuneError
from gluontune.runtime import mxnet

__all__ = ["contexts", "split_batch"]


def contexts(devices: str = "auto", count: int = 1, first: int = 0) -> list[Any]:
    """The MXNet contexts for one process.

    Args:
        devices: ``auto`` (GPUs if this mxnet sees one, else the CPU), ``cpu`` or ``gpu``.
        count: how many GPUs; CPU contexts beyond the first share the same cores and serve tests only.
        first: index of the first GPU (a rank's own).

    Raises:
        GluontuneError: fewer GPUs than asked for.

    >>> contexts("cpu", 2)
    [cpu(0), cpu(1)]
    """
    mx = mxnet()
    gpus = 0 if devices == "cpu" else mx.context.num_gpus()
    if devices == "gpu" or (devices == "auto" and gpus):
        if first + count > gpus:
            raise GluontuneError(
                f"{first + count} GPUs wanted, but this mxnet sees {gpus}: use num_devices={max(gpus, 1)} or "
                "devices='cpu'; gluontune doctor says why a GPU is not seen"
            )
        return [mx.gpu(first + i) for i in range(count)]
    return [mx.cpu(i) for i in range(count)]


def split_batch(batch: Any, ctxs: list[Any]) -> list[Any]:
    """Cut a batch along its first axis into one NDArray for each context.

    Unlike ``gluon.utils.split_and_load`` it takes a batch that is smaller than the number of contexts:
    contexts that would get nothing are left out.

    Args:
        batch: NDArray or numpy array, shape (N, ...); its dtype is kept.

    >>> [part.shape for part in split_batch(mxnet().nd.zeros((3, 2)), contexts("cpu", 4))]
    [(1, 2), (1, 2), (1, 2)]
    """
    nd = mxnet().nd
    if not isinstance(batch, nd.NDArray):
        batch = nd.array(batch, dtype=batch.dtype, ctx=mxnet().cpu())
    if len(ctxs) == 1:
        return [batch.as_in_context(ctxs[0])]
    total, n = len(batch), min(len(ctxs), len(batch))
    edges = [total * i // n for i in range(n + 1)]
    return [batch[a:b].as_in_context(ctx) for a, b, ctx in zip(edges, edges[1:], ctxs)]
