"""The training processes from the outside: one for each rank, driven in step through pipes.

A :class:`Group` starts fresh processes for one recipe and drives them: so many steps, a validation, a
reset. While one group is measured, others can be paused (SIGSTOP), so that their loaders cannot run
ahead and their threads cannot disturb: that is how the ladder interleaves its contenders.
"""

from __future__ import annotations

import contextlib
import selectors
import signal
import time
from collections.abc import Callable
from typing import Any

from gluontune.parallel.hosts import Hosts
from gluontune.recipe import Recipe
from gluontune.train.faults import FAULTS, RunFailed, difference_between, second_hand
from gluontune.train.starting import Here, start_on_hosts

__all__ = ["FAULTS", "Group", "RunFailed"]

_TICK_S = 0.5
_GRACE_S = 3.0  # for the rank at fault to be heard, after another that lost its connection to it
_SILENT_S = 15.0  # a rank's process shows signs of life every 2 s while it works, even while it waits


class Group:
    """Fresh processes that train one recipe.

    Args:
        recipe: what to train; ``num_devices`` ranks unless ``engine`` is ``local``.
        die_with_parent: have Linux kill the ranks, even paused ones, when the starting thread ends.
        time_limit: seconds that building, or one command, may take before it counts as hung.
        wait: return when the ranks are ready; otherwise call :meth:`wait` before anything else.
        checkpoints: ``{"folder", "keep"}`` for :meth:`checkpoint`.
        on_log: called with rank and line for each line that a rank prints.
        hosts: where the ranks run; None: here.
        site: makes the processes here of recipe, world and first commands; None: fresh ones.

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
        hosts: Hosts | None = None,
        site: Callable[..., Any] | None = None,
    ):
        self.on_log = on_log
        self._heard: dict[int, float] = {}  # when each rank was last heard of
        self._at: dict[int, int] = {}  # the step that each was at
        self.recipe, self.time_limit = recipe, time_limit
        self.world = 1 if recipe.engine == "local" else recipe.num_devices
        self._compares = (
            self.world > 1 and recipe.engine != "async"
        )  # asynchronous learners are one machine's
        self.ready: list[dict[str, Any]] = []
        self.notes: list[str] = []  # what learners that were started again have to say

        def setup(rank: int, local_rank: int) -> dict[str, Any]:
            return {
                "recipe": recipe.to_dict(),
                "rank": rank,
                "local_rank": local_rank,
                "world": self.world,
                "die_with_parent": die_with_parent,
                "checkpoints": checkpoints,
                "compares": self._compares,
            }

        self.site: Any  # Here, Fleet, or another that has what they have
        if hosts is None:
            self.site = (site or Here)(recipe, self.world, setup)
        else:
            folder = checkpoints["folder"] if checkpoints else None
            self.site = start_on_hosts(recipe, self.world, hosts, setup, folder)
        self.ranks: list[Any] = self.site.ranks
        self.applied_env = self.site.applied
        try:
            if wait:
                self.wait()
        except BaseException:
            self.close()
            raise

    def wait(self) -> None:
        """Wait until every rank has built its net and data; they go on from the data only if these are alike."""
        if self._compares:
            if difference := difference_between(self._gather("opened"), self.site.where):
                self._end(RunFailed("RanksDiffer", difference, "starting"))
            for rank in self.ranks:
                rank.say({"do": "go"})
        self.ready = self._gather("ready")

    @property
    def pids(self) -> list[int]:
        """Process ids on this machine of the ranks and of the parameter server, for the monitor."""
        return self.site.pids

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

    def validate(self) -> dict[str, Any]:
        """Rank 0 validates; the others wait."""
        self._agree()
        return self._ask({"do": "validate"}, ranks=1)[0]

    def reset(self, epochs: float | None = None) -> None:
        """All ranks back to the seeded start; ``epochs`` is the length of the training from now on."""
        if epochs is not None:
            self.recipe = self.recipe.override(epochs=epochs)
        self._ask({"do": "reset", "epochs": epochs})

    def checkpoint(self, extra: dict[str, Any], wait: bool) -> dict[str, Any]:
        """Rank 0 copies its state and begins to write it: ``{"written", "error", "skipped"}``.

        Args:
            extra: values for the header. wait: until it is on the disk.
        """
        self._agree()
        return self._ask({"do": "checkpoint", "extra": extra, "wait": wait}, ranks=1)[0]

    def _agree(self) -> None:
        """All ranks on the same parameters, where they exchange them seldom or without waiting."""
        asynchronous = self.recipe.engine == "async"
        if asynchronous or self.recipe.exchange_every > 1:
            for _ in range(2 if asynchronous else 1):  # first everyone gives, then everyone takes
                self._ask({"do": "agree"})

    def restore(self, path: str, epoch: int | None = None) -> None:
        """All ranks go on from a checkpoint; of one of another number of ranks, at the beginning of ``epoch``."""
        more = {} if epoch is None else {"epoch": epoch}
        paths = self.site.deliver(path)
        self._ask_each([{"do": "restore", "path": own, **more} for own in paths])

    def attribution(self, on: bool) -> None:
        """Measure the phases of the steps from now on, or leave the steps alone."""
        self._ask({"do": "attribution", "on": on})

    def loading_alone(self, seconds: float) -> dict[str, Any]:
        """Rank 0's loader without its net; see :func:`gluontune.train.probe.loading_alone`."""
        return self._ask({"do": "loading", "seconds": seconds}, ranks=1)[0]["found"]

    def training_alone(self, sizes: list[int], seconds: float) -> dict[str, Any]:
        """Rank 0's net without its loader; see :func:`gluontune.train.probe.training_alone`."""
        return self._ask({"do": "training", "sizes": sizes, "seconds": seconds}, ranks=1)[0]["found"]

    def gradients(self) -> dict[str, int]:
        """What a step exchanges: ``{"bytes", "tensors"}``."""
        found = self._ask({"do": "gradients"}, ranks=1)[0]
        return {"bytes": found["bytes"], "tensors": found["tensors"]}

    def exchange_alone(self, kinds: list[list[int]], repeats: int) -> list[dict[str, float]]:
        """The ranks' exchange without training; see :func:`gluontune.train.probe.exchange_alone`."""
        return self._ask({"do": "exchange", "kinds": kinds, "repeats": repeats})[0]["found"]

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

    def kill(self) -> None:
        """From another thread: end the ranks at once, so that whoever waits for an answer gets ``RunFailed``."""
        for rank in list(self.ranks):
            rank.signal(signal.SIGKILL)

    def close(self) -> None:
        """End all processes of the group; safe to call twice, but not while another thread waits for an answer."""
        with contextlib.suppress(OSError):
            self._pass_on_logs()
        self.ranks = []
        self.site.close()

    def __enter__(self) -> Group:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _ask(self, command: dict[str, Any], ranks: int | None = None) -> list[dict[str, Any]]:
        return self._ask_each([command] * len(self.ranks[:ranks]))

    def _ask_each(self, commands: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """The first ranks, one for each command."""
        if not commands or not self.ranks:
            raise RunFailed("Closed", "the run has ended", "training")
        asked = self.ranks[: len(commands)]
        for rank, command in zip(asked, commands):
            rank.say(command)
        return self._gather("done", asked)

    def _gather(self, wanted: str, asked: list[Any] | None = None) -> list[dict[str, Any]]:
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
                self._check_site(wanted)
                self._check_silence(sorted(set(waiting) - set(answers)), wanted, deadline)
        return [answers[place] for place in sorted(answers)]

    def _hear(self, place: int, wanted: str, answers: dict[int, dict[str, Any]]) -> None:
        """Take what a rank has said: signs of life, then the answer."""
        while place not in answers and (event := self.ranks[place].poll()) is not None:
            self._heard[place] = time.monotonic()
            if event["event"] == "beat":
                self._at[place] = event["step"]
            elif event["event"] == "note":
                self.notes.append(event["text"])
            elif event["event"] == wanted:
                answers[place] = event
            else:
                self._fail(place, event)

    def _check_site(self, wanted: str = "done") -> None:
        if trouble := self.site.trouble():
            kind, message = trouble
            self._end(RunFailed(kind, message, "training" if wanted == "done" else "starting"))

    def _pass_on_logs(self) -> None:
        if self.on_log is not None:
            for place, rank in enumerate(self.ranks):
                for line in rank.new_lines():
                    self.on_log(place, line)

    def _fail(self, place: int, event: dict[str, Any]) -> None:
        place, event = self._culprit(place, event)
        rank, name = self.ranks[place], f"rank {place}{self.site.where(place)}: " if self.world > 1 else ""
        if event["event"] == "error":
            kind = "ConnectionLost" if second_hand(event) else event["type"]
            told, trace = name + event["message"], event.get("traceback", "")
            self._end(RunFailed(kind, told, event["phase"], rank.tail(), trace))
        message = rank.how_ended("the training process")
        lines = rank.tail().strip().splitlines()
        self._end(RunFailed("ProcessDied", f"{name}{message}", "training", "\n".join(lines[-20:])))

    def _culprit(self, place: int, event: dict[str, Any]) -> tuple[int, dict[str, Any]]:
        """The rank at fault: one that lost its connection to another may be heard before that other's end."""
        until = time.monotonic() + _GRACE_S + self.site.notices_after_s
        while second_hand(event) and time.monotonic() < until:
            time.sleep(0.05)
            self._check_site()
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
                who = f"rank {', '.join(map(str, silent))}{self.site.where(silent[0])}"
                message = (
                    f"{who} has given no sign of life for {_SILENT_S:.0f} s: stopped, swapped out or cut off?"
                )
                self._end(RunFailed("RankSilent", message, "training", self.ranks[silent[0]].tail()))
        if missing and now > deadline:
            behind = min((self._at.get(place, 0) for place in missing), default=0)
            self._hung([place for place in missing if self._at.get(place, 0) == behind], wanted)

    def _hung(self, places: list[int], wanted: str) -> None:
        where = self.site.where(places[0])
        who = (
            f"rank {', '.join(map(str, places))}{where} has" if self.world > 1 else "the training process has"
        )
        phase = "training" if wanted == "done" else "starting"
        job = f"; does {self.recipe.job} ever end?" if self.recipe.job else ""
        message = f"{who} not answered for {self.time_limit:.0f} s{job} (--time-limit sets the limit)"
        self._end(RunFailed("TimeLimit", message, phase, self.ranks[places[0]].tail()))

    def _end(self, failure: RunFailed) -> None:
        self.close()
        raise failure
