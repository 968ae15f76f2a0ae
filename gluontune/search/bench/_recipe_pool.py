"""Reusable training processes: many small recipes in a row, without a start of mxnet for each.

A process is shared by recipes with the same runtime, variables, number format, rank and world. A parameter server and
Horovod keep their state as long as their process lives, so their recipes get fresh processes.
"""

from __future__ import annotations

import gc
import json
import os
import selectors
import signal
import sys
import time
from collections.abc import Callable, Mapping
from typing import Any

from gluontune import runtime
from gluontune.core.closing import Closing
from gluontune.core.interpreter import python
from gluontune.core.processes import PipedProcess, die_with_parent, event_sender
from gluontune.parallel.shared import PATH_VARIABLE, create
from gluontune.recipe import Recipe
from gluontune.training.child import serve
from gluontune.training.starting import LocalRanks

_IDLE_S = 5.0  # a process that needs longer to end a recipe is not reused
_SHARING = ("local", "shared-memory", "async")
_RECIPES = 60  # recipes of a process at most, so that leaks do not add up
Idle = dict[tuple[Any, ...], list[tuple[PipedProcess, int]]]  # by kind, each with the number of its recipes so far


def shares_processes(recipe: Recipe) -> bool:
    return recipe.engine in _SHARING


def kind_of(values: Mapping[str, Any]) -> tuple[Any, ...]:
    """The properties that a process cannot change; recipes with equal ones can share processes."""
    engine = values.get("engine", "local")
    return (
        "shared" if engine in _SHARING else engine, values.get("runtime", "as-installed"),
        tuple(sorted(values.get("env", {}).items())), values.get("dtype") == "bfloat16",
        1 if engine == "local" else values.get("num_devices", 1),
    )  # fmt: skip


class Pool(Closing):
    """Idle processes by kind; at most two kinds are kept, to save memory."""

    def __init__(self) -> None:
        self._idle: Idle = {}

    def site(self, recipe: Recipe, world: int, setup: Callable[[int, int], dict[str, Any]]) -> _Site:
        """The processes for a recipe: the ``site`` of :class:`gluontune.train.Group`."""
        kind = kind_of(recipe.to_dict())
        for other in [k for k in self._idle if k != kind][:-1]:
            for process, _ in self._idle.pop(other):
                process.close()
        return _Site(self._idle, kind, self._idle.pop(kind, []), recipe, world, setup)

    def close(self) -> None:
        for processes in self._idle.values():
            for process, _ in processes:
                process.close()
        self._idle = {}


class _Site(LocalRanks):
    def __init__(
        self, idle: Idle, kind: tuple[Any, ...], waiting: list[tuple[PipedProcess, int]], recipe: Recipe, world: int,
        setup: Callable[[int, int], dict[str, Any]],
    ):  # fmt: skip
        self.ranks = []
        self._idle, self._kind, self._memory = idle, kind, -1
        env = runtime.child_env(recipe.runtime, recipe.env, processes=world)
        self.applied = runtime.applied(env)
        variables = {}
        if recipe.engine in ("async", "shared-memory"):
            self._memory, variables[PATH_VARIABLE] = create()
        self._used = [count + 1 for _, count in waiting] or [1] * world
        for rank in range(world):
            cpus = runtime.cpus_for_rank(rank, world) if world > 1 else None
            given = {**setup(rank, rank), "parent": os.getpid(), "cpus": cpus, "variables": variables}
            if waiting:
                process = waiting[rank][0]
                process.say(given)
            else:
                process = PipedProcess(python("-m", "gluontune.search.bench._recipe_pool"), given, env)
            self.ranks.append(process)

    def close(self) -> None:
        """Return the processes to the pool if they become idle; else end them. Safe to call twice."""
        ranks, self.ranks = self.ranks, []
        for rank in ranks:
            rank.say({"do": "quit"})
        at_rest = [self._comes_to_rest(rank) for rank in ranks]
        if ranks and all(at_rest) and max(self._used) < _RECIPES:
            self._idle[self._kind] = list(zip(ranks, self._used))
        else:
            for rank in ranks:
                rank.close()
        if self._memory >= 0:
            os.close(self._memory)
            self._memory = -1

    @staticmethod
    def _comes_to_rest(rank: PipedProcess) -> bool:
        until = time.monotonic() + _IDLE_S
        with selectors.DefaultSelector() as selector:
            selector.register(rank.reading, selectors.EVENT_READ)
            while (left := until - time.monotonic()) > 0:
                event = rank.poll()
                if event is None:
                    selector.select(left)
                elif event["event"] in ("idle", "end"):
                    return event["event"] == "idle"
        return False


def main() -> None:
    """A process of the pool: :mod:`gluontune.training.child`, with a new set-up after each ``quit``."""
    send = event_sender()
    bound = False
    while line := sys.stdin.readline():
        setup = json.loads(line)
        if "recipe" not in setup:  # a quit, after a recipe that has failed
            continue
        if not bound:
            die_with_parent(setup["parent"])
            if setup.get("cpus"):
                runtime.bind_to_cpus(setup["cpus"])
            bound = True
        os.environ.update(setup["variables"])
        serve(setup, send)
        gc.collect()
        send(event="idle")
    os.killpg(0, signal.SIGKILL) if os.getpgrp() == os.getpid() else os._exit(0)


if __name__ == "__main__":
    main()
