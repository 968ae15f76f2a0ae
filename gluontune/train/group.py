"""The training processes from the outside: one for each rank, driven in step through pipes.

A :class:`Group` starts fresh processes for one recipe and drives them: so many steps, a validation, a
reset. While one group is measured, others can be paused (SIGSTOP), so that their loaders cannot run
ahead and their threads cannot disturb: that is how the ladder interleaves its contenders.
"""

from __future__ import annotations

import os
import selectors
import signal
import sys
import time
from typing import Any

from gluontune import runtime
from gluontune.errors import GluontuneError
from gluontune.parallel import Cluster, start_cluster
from gluontune.parallel.piped import PipedProcess, end_message
from gluontune.recipe import Recipe

__all__ = ["Group", "RunFailed"]

_TICK_S = 0.5
_CHILD = (sys.executable, "-m", "gluontune.train.child")


class RunFailed(GluontuneError):
    """A training process failed; carries what a failed RunResult says."""

    def __init__(self, kind: str, message: str, phase: str, log: str = ""):
        super().__init__(f"{message} (while {phase})")
        self.kind, self.message, self.phase, self.log = kind, message, phase, log

    def to_dict(self) -> dict[str, str]:
        return {"type": self.kind, "message": self.message, "phase": self.phase}


class Group:
    """Fresh processes that train one recipe.

    Args:
        recipe: what to train; ``num_devices`` ranks unless ``engine`` is ``local``.
        die_with_parent: have Linux kill the ranks, even paused ones, when the starting thread ends.
        time_limit: seconds that building, or one command, may take before it counts as hung.
        wait: return when the ranks are ready; otherwise call :meth:`wait` before anything else.

    Raises (all methods):
        RunFailed: a rank raised, died or hung. The other ranks are ended.
    """

    def __init__(
        self, recipe: Recipe, *, die_with_parent: bool = False, time_limit: float = 600.0, wait: bool = True
    ):
        self.recipe, self.time_limit = recipe, time_limit
        self.world = 1 if recipe.engine == "local" else recipe.num_devices
        self.cluster: Cluster | None = None
        self.ranks: list[PipedProcess] = []
        self.ready: list[dict[str, Any]] = []
        if recipe.engine == "horovod":
            message = "gluontune does not start Horovod ranks yet: use engine='kvstore' (--engine kvstore)"
            raise RunFailed("EngineMissing", message, "starting")
        env = runtime.child_env(recipe.runtime, recipe.env, processes=self.world)
        self.applied_env = runtime.applied(env)
        try:
            if recipe.engine == "kvstore":
                self.cluster = start_cluster(self.world, env)
                env = {**env, **self.cluster.worker_env}
            for rank in range(self.world):
                setup: dict[str, Any] = {
                    "recipe": recipe.to_dict(),
                    "rank": rank,
                    "world": self.world,
                    "die_with_parent": die_with_parent,
                    "parent": os.getpid(),
                    "cpus": runtime.cpus_for_rank(rank, self.world) if self.world > 1 else None,
                }
                self.ranks.append(PipedProcess(_CHILD, setup, env))
            if wait:
                self.wait()
        except BaseException:
            self.close()
            raise

    def wait(self) -> None:
        """Wait until every rank has built its net and data."""
        self.ready = self._gather("ready")

    @property
    def pids(self) -> list[int]:
        """Process ids of the ranks (and of the parameter server), for the monitor."""
        helpers = [p.pid for p in self.cluster.processes] if self.cluster else []
        return [r.process.pid for r in self.ranks] + helpers

    @property
    def batches_per_epoch(self) -> int:
        return int(self.ready[0]["batches_per_epoch"])

    @property
    def samples_per_step(self) -> int:
        """Images of all ranks in one step."""
        return sum(int(r["samples_per_step"]) for r in self.ready)

    def steps(self, count: int) -> dict[str, float]:
        """``count`` steps on every rank: ``{"samples", "seconds", "loss", "count"}``, samples of all ranks together."""
        done = self._ask({"do": "steps", "count": count})
        return {
            "samples": sum(d["samples"] for d in done),
            "seconds": max(d["seconds"] for d in done),
            "loss": sum(d["loss"] for d in done) / len(done),
            "count": count,
        }

    def validate(self) -> dict[str, float]:
        """Rank 0 validates; the others wait."""
        return self._ask({"do": "validate"}, ranks=1)[0]

    def reset(self) -> None:
        """All ranks back to the seeded start."""
        self._ask({"do": "reset"})

    def attribution(self, on: bool) -> None:
        """Measure the phases of the steps from now on, or leave the steps alone."""
        self._ask({"do": "attribution", "on": on})

    def loading_alone(self, seconds: float) -> dict[str, Any]:
        """Rank 0's loader without its net; see :func:`gluontune.train.probe.loading_alone`."""
        return self._ask({"do": "loading", "seconds": seconds}, ranks=1)[0]["found"]

    def training_alone(self, sizes: list[int], seconds: float) -> dict[str, Any]:
        """Rank 0's net without its loader; see :func:`gluontune.train.probe.training_alone`."""
        return self._ask({"do": "training", "sizes": sizes, "seconds": seconds}, ranks=1)[0]["found"]

    def phases(self) -> dict[str, Any]:
        """Rank 0's report of the step's phases."""
        return self._ask({"do": "phases"}, ranks=1)[0]["report"]

    def peak_rss_mib(self) -> float:
        """Highest resident memory of the ranks' own processes, added up, MiB."""
        return sum(d["peak_rss_mib"] for d in self._ask({"do": "memory"}))

    def pause(self) -> None:
        """Stop all threads and workers of the group until :meth:`resume`."""
        for rank in self.ranks:
            rank.signal(signal.SIGSTOP)

    def resume(self) -> None:
        for rank in self.ranks:
            rank.signal(signal.SIGCONT)

    def close(self) -> None:
        """End all processes of the group; safe to call twice."""
        for rank in self.ranks:
            rank.close()
        self.ranks = []
        if self.cluster is not None:
            self.cluster.close()
            self.cluster = None

    def __enter__(self) -> Group:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _ask(self, command: dict[str, Any], ranks: int | None = None) -> list[dict[str, Any]]:
        asked = self.ranks[:ranks]
        if not asked:
            raise RunFailed("Closed", "the run has ended", command["do"])
        for rank in asked:
            rank.say(command)
        return self._gather("done", asked)

    def _gather(self, wanted: str, asked: list[PipedProcess] | None = None) -> list[dict[str, Any]]:
        """One ``wanted`` event from each rank; anything else, or silence, is a failure."""
        waiting = dict(enumerate(self.ranks if asked is None else asked))
        answers: dict[int, dict[str, Any]] = {}
        deadline = time.monotonic() + self.time_limit
        with selectors.DefaultSelector() as selector:
            for place, rank in waiting.items():
                selector.register(rank.reading, selectors.EVENT_READ, place)
            while len(answers) < len(waiting):
                for key, _ in selector.select(_TICK_S):
                    event = waiting[key.data].poll()
                    if event is None:
                        continue
                    if event["event"] != wanted:
                        self._fail(key.data, event)
                    answers[key.data] = event
                    selector.unregister(key.fd)
                if self.cluster is not None and (trouble := self.cluster.failed()):
                    self._end(RunFailed("ClusterFailed", trouble, "training"))
                if time.monotonic() > deadline and len(answers) < len(waiting):
                    self._hung(sorted(set(waiting) - set(answers)), wanted)
        return [answers[place] for place in sorted(answers)]

    def _fail(self, place: int, event: dict[str, Any]) -> None:
        rank, name = self.ranks[place], f"rank {place}: " if self.world > 1 else ""
        if event["event"] == "error":
            self._end(RunFailed(event["type"], name + event["message"], event["phase"], rank.tail()))
        message = end_message(rank, "the training process")
        lines = rank.tail().strip().splitlines()
        self._end(RunFailed("ProcessDied", f"{name}{message}", "training", "\n".join(lines[-20:])))

    def _hung(self, places: list[int], wanted: str) -> None:
        who = f"rank {', '.join(map(str, places))} has" if self.world > 1 else "the training process has"
        phase = "starting" if wanted == "ready" else "training"
        job = f"; does {self.recipe.job} ever end?" if self.recipe.job else ""
        message = f"{who} not answered for {self.time_limit:.0f} s{job} (--time-limit sets the limit)"
        self._end(RunFailed("TimeLimit", message, phase, self.ranks[places[0]].tail()))

    def _end(self, failure: RunFailed) -> None:
        self.close()
        raise failure
