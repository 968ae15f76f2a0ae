"""The training processes from the outside: one for each rank, driven in step through pipes.

A :class:`Group` starts fresh processes for one recipe and drives them: so many steps, a validation, a
reset. While one group is measured, others can be paused (SIGSTOP), so that their loaders cannot run
ahead and their threads cannot disturb: that is how the ladder interleaves its contenders.
"""

from __future__ import annotations

import contextlib
import os
import selectors
import signal
import sys
import time
from collections.abc import Callable
from typing import Any

from gluontune import runtime
from gluontune.errors import GluontuneError
from gluontune.parallel import Cluster, start_cluster
from gluontune.parallel.horovod import Meeting, start_meeting
from gluontune.parallel.piped import PipedProcess, end_message
from gluontune.recipe import Recipe
from gluontune.train.faults import FAULTS, RunFailed, difference_between, second_hand

__all__ = ["FAULTS", "Group", "RunFailed"]

_TICK_S = 0.5
_GRACE_S = 3.0  # for the rank at fault to be heard, after another that lost its connection to it
_SILENT_S = 20.0  # a rank's process shows signs of life every 2 s while it works, even while it waits
_CHILD = (sys.executable, "-m", "gluontune.train.child")


class Group:
    """Fresh processes that train one recipe.

    Args:
        recipe: what to train; ``num_devices`` ranks unless ``engine`` is ``local``.
        die_with_parent: have Linux kill the ranks, even paused ones, when the starting thread ends.
        time_limit: seconds that building, or one command, may take before it counts as hung.
        wait: return when the ranks are ready; otherwise call :meth:`wait` before anything else.
        checkpoints: ``{"folder", "keep"}`` for :meth:`checkpoint`.
        on_log: called with rank and line for each line that a rank prints.

    Raises (all methods):
        RunFailed: a rank raised, died or hung. The other ranks are ended.
    """

    def __init__(
        self,
        recipe: Recipe,
        *,
        die_with_parent: bool = False,
        time_limit: float = 600.0,
        wait: bool = True,
        checkpoints: dict[str, Any] | None = None,
        on_log: Callable[[int, str], None] | None = None,
    ):
        self.on_log = on_log
        self._heard: dict[int, float] = {}  # when each rank was last heard of
        self._at: dict[int, int] = {}  # the step that each was at
        self.recipe, self.time_limit = recipe, time_limit
        self.world = 1 if recipe.engine == "local" else recipe.num_devices
        self.cluster: Cluster | None = None
        self.ranks: list[PipedProcess] = []
        self.ready: list[dict[str, Any]] = []
        self.meeting: Meeting | None = None
        if recipe.engine == "horovod":
            try:
                self.meeting = start_meeting(self.world)
            except GluontuneError as error:
                raise RunFailed("EngineMissing", str(error), "starting") from error
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
                    "checkpoints": checkpoints,
                    "cpus": runtime.cpus_for_rank(rank, self.world) if self.world > 1 else None,
                }
                own = self.meeting.envs[rank] if self.meeting is not None else {}
                self.ranks.append(PipedProcess(_CHILD, setup, {**env, **own}))
            if wait:
                self.wait()
        except BaseException:
            self.close()
            raise

    def wait(self) -> None:
        """Wait until every rank has built its net and data."""
        self.ready = self._gather("ready")
        if difference := difference_between(self.ready):
            self._end(RunFailed("RanksDiffer", difference, "starting"))

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

    def checkpoint(self, extra: dict[str, Any], wait: bool) -> dict[str, Any]:
        """Rank 0 copies its state and begins to write it: ``{"written", "error", "skipped"}``.

        Args:
            extra: values for the header. wait: until it is on the disk.
        """
        return self._ask({"do": "checkpoint", "extra": extra, "wait": wait}, ranks=1)[0]

    def restore(self, path: str) -> None:
        """All ranks go on from a checkpoint."""
        self._ask({"do": "restore", "path": path})

    def attribution(self, on: bool) -> None:
        """Measure the phases of the steps from now on, or leave the steps alone."""
        self._ask({"do": "attribution", "on": on})

    def loading_alone(self, seconds: float) -> dict[str, Any]:
        """Rank 0's loader without its net; see :func:`gluontune.train.probe.loading_alone`."""
        return self._ask({"do": "loading", "seconds": seconds}, ranks=1)[0]["found"]

    def training_alone(self, sizes: list[int], seconds: float) -> dict[str, Any]:
        """Rank 0's net without its loader; see :func:`gluontune.train.probe.training_alone`."""
        return self._ask({"do": "training", "sizes": sizes, "seconds": seconds}, ranks=1)[0]["found"]

    def individual(self, what: str, **given: Any) -> dict[str, Any]:
        """Other weights, another optimizer, a score: one command of :mod:`gluontune.train.individual`."""
        return self._ask({"do": "individual", "what": what, "given": given})[0]["found"]

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
        with contextlib.suppress(OSError):
            self._pass_on_logs()
        for rank in self.ranks:
            rank.close()
        self.ranks = []
        if self.cluster is not None:
            self.cluster.close()
            self.cluster = None
        if self.meeting is not None:
            self.meeting.close()
            self.meeting = None

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
        now = time.monotonic()
        deadline, self._heard = now + self.time_limit, dict.fromkeys(waiting, now)
        with selectors.DefaultSelector() as selector:
            for place, rank in waiting.items():
                selector.register(rank.reading, selectors.EVENT_READ, place)
            while len(answers) < len(waiting):
                began = time.monotonic()
                found = selector.select(_TICK_S)
                # This process was stopped itself (Ctrl-Z): such time is nobody's silence.
                if (stopped := time.monotonic() - began - _TICK_S) > 1:
                    deadline += stopped
                    self._heard = {place: heard + stopped for place, heard in self._heard.items()}
                for key, _ in found:
                    self._hear(key.data, wanted, answers)
                    if key.data in answers:
                        selector.unregister(key.fd)
                self._pass_on_logs()
                if self.cluster is not None and (trouble := self.cluster.failed()):
                    self._end(RunFailed("ClusterFailed", trouble, "training"))
                self._check_silence(sorted(set(waiting) - set(answers)), wanted, deadline)
        return [answers[place] for place in sorted(answers)]

    def _hear(self, place: int, wanted: str, answers: dict[int, dict[str, Any]]) -> None:
        """Take what a rank has said: signs of life, then the answer."""
        while place not in answers and (event := self.ranks[place].poll()) is not None:
            self._heard[place] = time.monotonic()
            if event["event"] == "beat":
                self._at[place] = event["step"]
            elif event["event"] == wanted:
                answers[place] = event
            else:
                self._fail(place, event)

    def _pass_on_logs(self) -> None:
        if self.on_log is not None:
            for place, rank in enumerate(self.ranks):
                for line in rank.new_lines():
                    self.on_log(place, line)

    def _fail(self, place: int, event: dict[str, Any]) -> None:
        place, event = self._culprit(place, event)
        rank, name = self.ranks[place], f"rank {place}: " if self.world > 1 else ""
        if event["event"] == "error":
            kind = "ConnectionLost" if second_hand(event) else event["type"]
            self._end(RunFailed(kind, name + event["message"], event["phase"], rank.tail()))
        message = end_message(rank, "the training process")
        lines = rank.tail().strip().splitlines()
        self._end(RunFailed("ProcessDied", f"{name}{message}", "training", "\n".join(lines[-20:])))

    def _culprit(self, place: int, event: dict[str, Any]) -> tuple[int, dict[str, Any]]:
        """The rank at fault: one that lost its connection to another may be heard before that other's end."""
        until = time.monotonic() + _GRACE_S
        while second_hand(event) and time.monotonic() < until:
            time.sleep(0.05)
            for other in set(range(len(self.ranks))) - {place}:
                heard = self.ranks[other].poll()
                if heard is not None and heard["event"] in ("end", "error") and not second_hand(heard):
                    return other, heard
        return place, event

    def _check_silence(self, missing: list[int], wanted: str, deadline: float) -> None:
        now = time.monotonic()
        if self.world > 1 and wanted == "done":
            silent = [place for place in missing if now - self._heard[place] > _SILENT_S]
            if silent:
                who = f"rank {', '.join(map(str, silent))}"
                message = (
                    f"{who} has given no sign of life for {_SILENT_S:.0f} s: stopped, swapped out or cut off?"
                )
                self._end(RunFailed("RankSilent", message, "training", self.ranks[silent[0]].tail()))
        if missing and now > deadline:
            behind = min((self._at.get(place, 0) for place in missing), default=0)
            self._hung([place for place in missing if self._at.get(place, 0) == behind], wanted)

    def _hung(self, places: list[int], wanted: str) -> None:
        who = f"rank {', '.join(map(str, places))} has" if self.world > 1 else "the training process has"
        phase = "starting" if wanted == "ready" else "training"
        job = f"; does {self.recipe.job} ever end?" if self.recipe.job else ""
        message = f"{who} not answered for {self.time_limit:.0f} s{job} (--time-limit sets the limit)"
        self._end(RunFailed("TimeLimit", message, phase, self.ranks[places[0]].tail()))

    def _end(self, failure: RunFailed) -> None:
        self.close()
        raise failure
