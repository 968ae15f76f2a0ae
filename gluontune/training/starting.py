"""Start of a run's processes: on this machine, or on several hosts through their agents."""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from gluontune import runtime
from gluontune.core.errors import GluontuneError
from gluontune.core.interpreter import python
from gluontune.core.processes import PipedProcess
from gluontune.engines import ENGINES, EngineCard
from gluontune.parallel.fleet import Fleet, HostsDiffer
from gluontune.parallel.horovod import start_meeting
from gluontune.parallel.hosts import Hosts
from gluontune.parallel.kvstore import Cluster, start_cluster
from gluontune.parallel.link import LinkLost
from gluontune.parallel.shared import PATH_VARIABLE, available, create
from gluontune.recipe import Recipe
from gluontune.training.rank_messages import RunFailed

_CHILD = "gluontune.training.child"
_LEARNER = "gluontune.training.learner"  # a child that is replaced when it dies


class LocalRanks:
    """The common part of sites with ranks on this machine."""

    notices_after_s = 0.0  # a death is noticed at once
    ranks: list[Any]

    @property
    def pids(self) -> list[int]:
        """Process ids of the ranks and their helpers."""
        return [rank.process.pid for rank in self.ranks]

    def trouble(self) -> tuple[str, str] | None:
        """Kind and message of a helper that failed, or None."""
        return None

    def where(self, rank: int) -> str:
        """A rank's host, for messages; "" for this machine."""
        return ""

    def facts(self) -> list[dict[str, Any]]:
        """The hosts, for a result; none for this machine alone."""
        return []

    def deliver(self, path: str) -> list[str]:
        """The path of the file ``path`` for each rank."""
        return [path] * len(self.ranks)


class Here(LocalRanks):
    """The ranks of a run on this machine, and the helpers of its engine.

    Args:
        recipe: to train. world: ranks. setup: makes the first command from rank and local rank.

    Attributes:
        ranks: in order. applied: the variables that gluontune set for them.
        cluster: of a parameter server, or None.

    Raises:
        RunFailed: the engine is not installed.
    """

    def __init__(self, recipe: Recipe, world: int, setup: Callable[[int, int], dict[str, Any]]):
        self.ranks = []
        self.cluster: Cluster | None = None
        self._helpers = contextlib.ExitStack()  # shared by the ranks
        env = runtime.child_env(recipe.runtime, recipe.env, processes=world)
        self.applied = runtime.applied(env)
        try:
            own: list[dict[str, str]] = [{}] * world
            if recipe.engine == "horovod":
                own = self._helpers.enter_context(
                    contextlib.closing(_or_failed(lambda: start_meeting([world]), "EngineMissing"))
                ).envs
            if recipe.engine == "kvstore":
                self.cluster = self._helpers.enter_context(start_cluster(world, env))
                env = {**env, **self.cluster.worker_env}
            if recipe.engine in ("async", "shared-memory"):
                env = {**env, PATH_VARIABLE: self._shared()}
            if recipe.engine == "ddp":
                env = {**env, **self._meet(ENGINES[recipe.backend])}
            module = _LEARNER if recipe.engine == "async" else _CHILD
            for rank in range(world):
                cpus = runtime.cpus_for_rank(rank, world) if world > 1 else None
                first = {**setup(rank, rank), "parent": os.getpid(), "cpus": cpus}
                self.ranks.append(PipedProcess(python("-m", module), first, {**env, **own[rank]}))
        except BaseException:
            self.close()
            raise

    def _meet(self, card: EngineCard) -> dict[str, str]:
        """The rendezvous variables of an engine without a helper."""
        if available():
            return {card.meeting: f"file://{self._shared()}", **{name: self._shared() for name in card.shared}}
        folder = self._helpers.enter_context(tempfile.TemporaryDirectory(prefix="gluontune-ddp-"))
        return {card.meeting: f"file://{Path(folder) / 'meeting'}"}

    def _shared(self) -> str:
        """Create memory that the ranks share; returns its path."""
        memory, path = _or_failed(create, "EngineMissing")
        self._helpers.callback(os.close, memory)
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
        self._helpers.close()
        self.ranks, self.cluster = [], None


def start_on_hosts(
    recipe: Recipe, world: int, hosts: Hosts, setup: Callable[[int, int], dict[str, Any]], folder: str | None
) -> Fleet:
    """Start the ranks on several hosts.

    Args:
        folder: of the checkpoints, or None.

    Raises:
        RunFailed: a host does not answer, differs, or lacks a requirement.
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
    """The result of ``work``; its errors become failures of the run."""
    try:
        return work()
    except LinkLost as error:
        raise RunFailed("HostUnreachable", str(error), "starting") from error
    except HostsDiffer as error:
        raise RunFailed("RanksDiffer", str(error), "starting") from error
    except GluontuneError as error:
        raise RunFailed(kind, str(error), "starting") from error
