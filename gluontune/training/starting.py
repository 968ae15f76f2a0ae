"""Start of a run's processes on this machine."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

from gluontune import runtime
from gluontune.core.errors import GluontuneError
from gluontune.core.interpreter import python
from gluontune.core.processes import PipedProcess
from gluontune.parallel.kvstore import Cluster
from gluontune.recipe import Recipe
from gluontune.training.engine_helpers import EngineHelpers
from gluontune.training.rank_messages import RunFailed

CHILD = "gluontune.training.child"
_LEARNER = "gluontune.training.learner"  # a child that is replaced when it dies


class LocalRanks:
    """The common part of sites with the engine's helpers on this machine; without any, of tests' sites."""

    ranks: list[Any]
    _helpers: EngineHelpers | None = None

    @property
    def pids(self) -> list[int]:
        """Process ids on this machine of the ranks and their helpers."""
        own = [rank.process.pid for rank in self.ranks if isinstance(rank, PipedProcess)]
        return own + (self._helpers.pids if self._helpers is not None else [])

    def trouble(self) -> tuple[str, str] | None:
        """Kind and message of a helper that failed, or None."""
        return self._helpers.trouble() if self._helpers is not None else None

    def where(self, rank: int) -> str:
        """A rank's host, for messages; "" for this machine."""
        return ""

    def facts(self) -> list[dict[str, Any]]:
        """The hosts, for a result; none for this machine alone."""
        return []


class Here(LocalRanks):
    """The ranks of a run on this machine, and the helpers of its engine."""

    def __init__(self, recipe: Recipe, world: int, setup: Callable[[int, int], dict[str, Any]]):
        self.ranks = []
        env = runtime.child_env(recipe.runtime, recipe.env, processes=world)
        self.applied = runtime.applied(env)
        self._helpers = helpers = or_failed(lambda: EngineHelpers(recipe, world, env), "EngineMissing")
        self.cluster: Cluster | None = helpers.cluster
        try:
            module = _LEARNER if recipe.engine == "async" else CHILD
            for rank, own in enumerate(helpers.envs):
                cpus = runtime.cpus_for_rank(rank, world) if world > 1 else None
                first = {**setup(rank, rank), "parent": os.getpid(), "cpus": cpus}
                self.ranks.append(PipedProcess(python("-m", module), first, {**env, **own}))
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """End everything; safe to call twice."""
        for rank in self.ranks:
            rank.close()
        if self._helpers is not None:
            self._helpers.close()
        self.ranks, self.cluster = [], None


def or_failed(work: Callable[[], Any], kind: str) -> Any:
    """The result of ``work``; its errors become failures of the run."""
    try:
        return work()
    except GluontuneError as error:
        raise RunFailed(kind, str(error), "starting") from error
