"""The ranks of one PyTorch training on this machine: a process each, their gradients averaged by gloo."""

from __future__ import annotations

import importlib
import os
import shutil
import tempfile
from collections.abc import Callable
from typing import Any

__all__ = ["Ranks"]


class Ranks:
    """Rank 0's view of all ranks, or a follower's.

    Args:
        torch: the module. size: how many there are; with 1 nothing is started, and nothing is exchanged.
        follow: ``(ranks, **settings)``, what a follower builds; it has the methods that :meth:`call` names. Any other
            process must be able to import it.
        settings: for ``follow``.
        rank, folder: of a follower, which rank 0 sets.
    """

    def __init__(
        self,
        torch: Any,
        size: int,
        follow: Callable[..., Any] | None = None,
        settings: dict[str, Any] | None = None,
        rank: int = 0,
        folder: str | None = None,
    ):
        self.torch, self.size, self.rank = torch, size, rank
        self.followers: list[Any] = []
        if size == 1:
            return
        self.folder = folder or tempfile.mkdtemp(prefix="gluontune-torch-")
        if rank == 0:
            processes = importlib.import_module("torch.multiprocessing").get_context("spawn")
            for number in range(1, size):
                arguments = (number, size, self.folder, os.getpid(), follow, settings or {})
                self.followers.append(processes.Process(target=_follow, args=arguments, daemon=True))
                self.followers[-1].start()
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
        self.dist = importlib.import_module("torch.distributed")
        self.dist.init_process_group("gloo", init_method=f"file://{self.folder}/meeting", rank=rank, world_size=size)

    def average(self, parameters: list[Any]) -> None:
        """Replace each gradient by its mean over the ranks, all of them in one exchange."""
        if self.size == 1:
            return
        grads = [p.grad for p in parameters]
        flat = self.torch.cat([g.reshape(-1) for g in grads])
        self.dist.all_reduce(flat)
        flat /= self.size
        parts = flat.split([g.numel() for g in grads])
        self.torch._foreach_copy_(grads, [part.view(g.shape) for part, g in zip(parts, grads)])

    def call(self, name: str, **arguments: Any) -> None:
        """Have the followers call this method of what they built; rank 0 calls its own."""
        if self.size > 1:
            self.dist.broadcast_object_list([(name, arguments)], src=0)

    def heard(self) -> tuple[str, dict[str, Any]]:
        """What rank 0 called."""
        told: list[Any] = [None]
        self.dist.broadcast_object_list(told, src=0)
        return told[0]

    def close(self) -> None:
        """End the followers, whatever they wait for."""
        for process in self.followers:
            process.kill()
            process.join()
        if self.followers:
            shutil.rmtree(self.folder, ignore_errors=True)


def _follow(
    rank: int, size: int, folder: str, parent: int, follow: Callable[..., Any], settings: dict[str, Any]
) -> None:
    importlib.import_module("gluontune.parallel.parent_death").die_with_parent(parent)
    ranks = Ranks(importlib.import_module("torch"), size, rank=rank, folder=folder)
    work = follow(ranks=ranks, **settings)
    while True:
        name, arguments = ranks.heard()
        getattr(work, name)(**arguments)
