"""Several processes of PyTorch's engine: DistributedDataParallel over gloo on CPUs, nccl on GPUs."""

from __future__ import annotations

import contextlib
import datetime
import os
import warnings
from typing import Any

from gluontune.engines.torch import CARD

__all__ = ["TorchRanks"]

_PATIENCE = datetime.timedelta(seconds=60)  # for a rank that does not answer


class TorchRanks:
    """This rank among those of a run.

    Each rank keeps its own running statistics, as on MXNet's engines; gradients are averaged while the backward pass
    goes on.

    Args:
        library: torch. rank, world: of the run. gpu: whether the ranks are on GPUs, one each.
    """

    def __init__(self, library: Any, rank: int, world: int, gpu: bool):
        self._torch, self.world = library, world
        self._module: Any = None
        if world > 1:
            library.distributed.init_process_group(
                "nccl" if gpu else "gloo",
                init_method=os.environ[CARD.meeting],
                rank=rank,
                world_size=world,
                timeout=_PATIENCE,
            )

    def around(self, net: Any) -> Any:
        """The net as it is trained: its gradients are the mean of all ranks' after each backward pass."""
        if self.world == 1:
            return net
        # Gradients come channels-last, their places in the exchange are contiguous: a copy, and no matter.
        warnings.filterwarnings("ignore", message="Grad strides do not match bucket view strides")
        self._module = self._torch.nn.parallel.DistributedDataParallel(
            net, broadcast_buffers=False, gradient_as_bucket_view=True
        )
        return self._module

    def only_adding(self) -> Any:
        """A context for a backward pass whose gradients are not exchanged yet."""
        return contextlib.nullcontext() if self._module is None else self._module.no_sync()

    def close(self) -> None:
        """Leave the group."""
        if self.world > 1 and self._torch.distributed.is_initialized():
            self._torch.distributed.destroy_process_group()
