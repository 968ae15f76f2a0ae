"""Start of a run's processes on this machine, and what the ranks of an engine need beside themselves."""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from gluontune import runtime
from gluontune.core.errors import GluontuneError
from gluontune.core.interpreter import python
from gluontune.core.processes import PipedProcess
from gluontune.engines import ENGINES
from gluontune.parallel.horovod import start_meeting
from gluontune.parallel.kvstore import Cluster, free_port, start_cluster
from gluontune.parallel.shared import PATH_VARIABLE, available, create
from gluontune.recipe import Recipe
from gluontune.training.rank_messages import RunFailed


class EngineHelpers:
    """The helpers of one run's engine, on this machine. They end with the calling thread.

    Args:
        recipe: of the run. world: ranks. env: of the helper processes.
        network: for ranks on several hosts, ``(interface, address)`` of each rank, rank 0 here; None: all are here.

    Attributes:
        envs: the engine's variables of each rank. cluster: of a parameter server, or None.
    """

    def __init__(
        self, recipe: Recipe, world: int, env: Mapping[str, str], network: Sequence[tuple[str, str]] | None = None
    ):
        self.envs: list[dict[str, str]] = [{} for _ in range(world)]
        self.cluster: Cluster | None = None
        self._held = contextlib.ExitStack()
        try:
            self._start_here(recipe, env) if network is None else self._start_for(network, recipe, env)
        except BaseException:
            self.close()
            raise

    def _start_here(self, recipe: Recipe, env: Mapping[str, str]) -> None:
        world, common = len(self.envs), {}
        if recipe.engine == "horovod":
            self.envs = self._held.enter_context(contextlib.closing(start_meeting([world]))).envs
        elif recipe.engine == "kvstore":
            self.cluster = self._held.enter_context(start_cluster(world, env))
            common = self.cluster.worker_env
        elif recipe.engine in ("async", "shared-memory"):
            common = {PATH_VARIABLE: self._memory()}
        elif recipe.engine == "ddp":
            card = ENGINES[recipe.backend]
            if available():
                common = {card.meeting: f"file://{self._memory()}", **{name: self._memory() for name in card.shared}}
            else:
                folder = self._held.enter_context(tempfile.TemporaryDirectory(prefix="gluontune-ddp-"))
                common = {card.meeting: f"file://{Path(folder) / 'meeting'}"}
        self.envs = [{**common, **own} for own in self.envs]

    def _start_for(self, network: Sequence[tuple[str, str]], recipe: Recipe, env: Mapping[str, str]) -> None:
        world, address = len(self.envs), network[0][1]
        if recipe.engine == "horovod":
            envs = self._held.enter_context(contextlib.closing(start_meeting([1] * world, address=address))).envs
            names = ("HOROVOD_GLOO_IFACE", "NCCL_SOCKET_IFNAME")
            given = [{"HOROVOD_GLOO_RENDEZVOUS_ADDR": address, **dict.fromkeys(names, name)} for name, _ in network]
            self.envs = [{**own, **more} for own, more in zip(envs, given)]
        elif recipe.engine == "kvstore":
            self.cluster = self._held.enter_context(start_cluster(world, env, address))
            self.envs = [{**self.cluster.worker_env, "DMLC_NODE_HOST": own} for _, own in network]
        elif recipe.engine == "ddp":
            place = {ENGINES[recipe.backend].meeting: f"tcp://{address}:{free_port(address)}"}
            self.envs = [{**place, "GLOO_SOCKET_IFNAME": name, "NCCL_SOCKET_IFNAME": name} for name, _ in network]
        else:
            raise GluontuneError(
                f"engine={recipe.engine!r} works on one host, and these ranks are on several: use engine='kvstore', "
                "'horovod' or 'ddp'"
            )

    def _memory(self) -> str:
        """Create memory that the ranks share; returns its path."""
        memory, path = create()
        self._held.callback(os.close, memory)
        return path

    @property
    def pids(self) -> list[int]:
        return [process.pid for process in self.cluster.processes] if self.cluster else []

    def trouble(self) -> tuple[str, str] | None:
        """Kind and message of a helper that failed, or None."""
        message = self.cluster.failed() if self.cluster is not None else None
        return None if message is None else ("ClusterFailed", message)

    def close(self) -> None:
        self._held.close()
        self.cluster = None


CHILD = "gluontune.training.child"
_LEARNER = "gluontune.training.learner"  # a child that is replaced when it dies


class LocalRanks:
    """The common part of sites with the engine's helpers on this machine; without any, of tests' sites."""

    ranks: list[Any]
    _helpers: EngineHelpers | None = None

    @property
    def pids(self) -> list[int]:
        own = [rank.process.pid for rank in self.ranks if isinstance(rank, PipedProcess)]
        return own + (self._helpers.pids if self._helpers is not None else [])

    def trouble(self) -> tuple[str, str] | None:
        return self._helpers.trouble() if self._helpers is not None else None

    def where(self, rank: int) -> str:
        """A rank's host, for messages; "" for this machine."""
        return ""

    def facts(self) -> list[dict[str, Any]]:
        return []

    def close(self) -> None:
        """End the processes on this machine and the helpers; safe to call twice."""
        for rank in self.ranks:
            if isinstance(rank, PipedProcess):
                rank.close()
        if self._helpers is not None:
            self._helpers.close()
        self.ranks = []


class Here(LocalRanks):
    """The ranks of a run on this machine, and the helpers of its engine."""

    def __init__(self, recipe: Recipe, world: int, setup: Callable[[int, int], dict[str, Any]]):
        self.ranks = []
        env = runtime.child_env(recipe.runtime, recipe.env, processes=world)
        self.applied = runtime.applied(env)
        self._helpers = helpers = or_failed(lambda: EngineHelpers(recipe, world, env), "EngineMissing")
        try:
            module = _LEARNER if recipe.engine == "async" else CHILD
            for rank, own in enumerate(helpers.envs):
                cpus = runtime.cpus_for_rank(rank, world) if world > 1 else None
                first = {**setup(rank, rank), "parent": os.getpid(), "cpus": cpus}
                self.ranks.append(PipedProcess(python("-m", module), first, {**env, **own}))
        except BaseException:
            self.close()
            raise


def or_failed(work: Callable[[], Any], kind: str) -> Any:
    """The result of ``work``; its errors become failures of the run."""
    try:
        return work()
    except GluontuneError as error:
        raise RunFailed(kind, str(error), "starting") from error
