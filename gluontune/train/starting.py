"""Starting the processes of a run: on this machine, or on several hosts through their agents."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from gluontune import runtime
from gluontune.errors import GluontuneError
from gluontune.interpreter import python
from gluontune.parallel.fleet import Fleet, HostsDiffer
from gluontune.parallel.horovod import Meeting, start_meeting
from gluontune.parallel.hosts import Hosts
from gluontune.parallel.kvstore import Cluster, start_cluster
from gluontune.parallel.link import LinkLost
from gluontune.parallel.piped import PipedProcess
from gluontune.parallel.shared import PATH_VARIABLE, available, create
from gluontune.recipe import Recipe
from gluontune.train.faults import RunFailed
from gluontune.train.torch_ranks import MEETING_VARIABLE
from gluontune.train.torch_sharing import EXPORT_VARIABLE

__all__ = ["Here", "LocalRanks", "start_on_hosts"]

_CHILD = "gluontune.train.child"
_LEARNER = "gluontune.train.learner"  # a child that is started again when it dies


class LocalRanks:
    """What ranks on this machine say of their place."""

    notices_after_s = 0.0  # a process that died is seen at once
    ranks: list[PipedProcess]

    @property
    def pids(self) -> list[int]:
        """Process ids of the ranks, and of what helps them."""
        return [rank.process.pid for rank in self.ranks]

    def trouble(self) -> tuple[str, str] | None:
        """Kind and message of a helper that failed, or None."""
        return None

    def where(self, rank: int) -> str:
        """Nothing to add in messages: all ranks are here."""
        return ""

    def facts(self) -> list[dict[str, Any]]:
        """No hosts to tell of in a result."""
        return []

    def deliver(self, path: str) -> list[str]:
        """Where each rank finds the file ``path``."""
        return [path] * len(self.ranks)


class Here(LocalRanks):
    """The ranks of a run on this machine, and the helpers of its engine.

    Args:
        recipe: what to train. world: ranks. setup: of rank and local rank: the first command.

    Attributes:
        ranks: in order. applied: variables that gluontune set for them.
        cluster: of a parameter server, or None.

    Raises:
        RunFailed: the engine is not installed.
    """

    def __init__(self, recipe: Recipe, world: int, setup: Callable[[int, int], dict[str, Any]]):
        self.ranks = []
        self.cluster: Cluster | None = None
        self._meeting: Meeting | None = None
        self._memory: list[int] = []  # shared by the ranks
        self._folder: tempfile.TemporaryDirectory[str] | None = (
            None  # where PyTorch's ranks meet, without memory of that kind
        )
        env = runtime.child_env(recipe.runtime, recipe.env, processes=world)
        self.applied = runtime.applied(env)
        try:
            if recipe.engine == "horovod":
                self._meeting = _or_failed(lambda: start_meeting([world]), "EngineMissing")
            if recipe.engine == "kvstore":
                self.cluster = start_cluster(world, env)
                env = {**env, **self.cluster.worker_env}
            if recipe.engine in ("async", "shared-memory"):
                env = {**env, PATH_VARIABLE: self._shared()}
            if recipe.engine == "ddp" and available():
                env = {**env, MEETING_VARIABLE: f"file://{self._shared()}", EXPORT_VARIABLE: self._shared()}
            elif recipe.engine == "ddp":
                self._folder = tempfile.TemporaryDirectory(prefix="gluontune-ddp-")
                env = {**env, MEETING_VARIABLE: f"file://{Path(self._folder.name) / 'meeting'}"}
            module = _LEARNER if recipe.engine == "async" else _CHILD
            for rank in range(world):
                cpus = runtime.cpus_for_rank(rank, world) if world > 1 else None
                first = {**setup(rank, rank), "parent": os.getpid(), "cpus": cpus}
                own = self._meeting.envs[rank] if self._meeting is not None else {}
                self.ranks.append(PipedProcess(python("-m", module), first, {**env, **own}))
        except BaseException:
            self.close()
            raise

    def _shared(self) -> str:
        """Memory that the ranks share; its path."""
        memory, path = _or_failed(create, "EngineMissing")
        self._memory.append(memory)
        return str(path)

    @property
    def pids(self) -> list[int]:
        return super().pids + ([p.pid for p in self.cluster.processes] if self.cluster else [])

    def trouble(self) -> tuple[str, str] | None:
        message = self.cluster.failed() if self.cluster is not None else None
        return None if message is None else ("ClusterFailed", message)

    def close(self) -> None:
        """End everything; safe to call twice."""
        for rank in self.ranks:
            rank.close()
        if self.cluster is not None:
            self.cluster.close()
        if self._meeting is not None:
            self._meeting.close()
        for memory in self._memory:
            os.close(memory)
        if self._folder is not None:
            self._folder.cleanup()
        self.ranks, self.cluster, self._meeting, self._memory, self._folder = [], None, None, [], None


def start_on_hosts(
    recipe: Recipe, world: int, hosts: Hosts, setup: Callable[[int, int], dict[str, Any]], folder: str | None
) -> Fleet:
    """The same on several hosts.

    Args:
        folder: of the checkpoints, if there are any.

    Raises:
        RunFailed: a host does not answer, or differs, or cannot do what it must.
    """
    if recipe.engine not in ("kvstore", "horovod"):
        way = "start the same command on each with --nnodes and --rendezvous" if recipe.engine == "ddp" else ""
        way = way or "across hosts use kvstore or horovod"
        message = f"engine={recipe.engine!r} is not started on other machines by ssh: {way}"
        raise RunFailed("EngineMissing", message, "starting")
    fleet = _or_failed(lambda: Fleet(hosts, world, recipe.engine, recipe.runtime), "HostFailed")
    try:
        if folder is not None:
            _or_failed(lambda: fleet.check_folder(folder), "HostFailed")
        _or_failed(lambda: fleet.start(_CHILD, setup, recipe.env), "HostFailed")
    except BaseException:
        fleet.close()
        raise
    return fleet


def _or_failed(work: Callable[[], Any], kind: str) -> Any:
    """The result of ``work``; an error of it as one of the run."""
    try:
        return work()
    except LinkLost as error:
        raise RunFailed("HostUnreachable", str(error), "starting") from error
    except HostsDiffer as error:
        raise RunFailed("RanksDiffer", str(error), "starting") from error
    except GluontuneError as error:
        raise RunFailed(kind, str(error), "starting") from error
