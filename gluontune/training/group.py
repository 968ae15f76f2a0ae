"""Control of the training processes, one for each rank, in step through pipes.

While one group is measured, the others can be paused (SIGSTOP), so that their loaders do not run ahead and their
threads do not disturb: the ladder interleaves its contenders in this way.
"""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Callable
from typing import Any

from gluontune.core.files import Closing
from gluontune.recipe import Recipe
from gluontune.training.rank_messages import RankMessages, RunFailed, difference_between
from gluontune.training.starting import Here


class Group(Closing):
    """Fresh processes that train one recipe. Linux kills them, even paused ones, when the thread that starts them ends.

    Args:
        recipe: to train; with ``num_devices`` ranks unless ``engine`` is ``local``.
        time_limit: seconds that building, or one command, may take before it counts as hung.
        wait: return when the ranks are ready; else call :meth:`wait` first.
        checkpoints: ``{"folder", "keep"}`` for :meth:`checkpoint`.
        on_log: called with rank and line for each line that a rank prints.
        site: makes the processes from recipe, world and first commands; None: fresh ones on this machine.

    Raises (all methods):
        RunFailed: a rank raised, died or hung. The other ranks are ended.
    """

    def __init__(
        self, recipe: Recipe, *, time_limit: float = 600.0, wait: bool = True,
        checkpoints: dict[str, Any] | None = None, on_log: Callable[[int, str], None] | None = None,
        site: Callable[..., Any] | None = None,
    ):  # fmt: skip
        self.recipe, self.time_limit = recipe, time_limit
        self.world = 1 if recipe.engine == "local" else recipe.num_devices
        self._compares = self.world > 1 and recipe.engine != "async"  # asynchronous learners share one machine
        self.ready: list[dict[str, Any]] = []

        def setup(rank: int, local_rank: int) -> dict[str, Any]:
            return {
                "recipe": recipe.to_dict(), "rank": rank, "local_rank": local_rank, "world": self.world,
                "checkpoints": checkpoints, "compares": self._compares,
            }  # fmt: skip

        self.site: Any = (site or Here)(recipe, self.world, setup)
        self.ranks: list[Any] = self.site.ranks
        self._messages = RankMessages(self.site, self.ranks, self.world, time_limit, recipe.job, on_log)
        self.applied_env = self.site.applied
        try:
            if wait:
                self.wait()
        except BaseException:
            self.close()
            raise

    def wait(self) -> None:
        """Wait until every rank has built its data and, if the data of all ranks are equal, its net."""
        if self._compares:
            if difference := difference_between(self._gather("opened"), self.site.where):
                self.close()
                raise RunFailed("RanksDiffer", difference, "starting")
            for rank in self.ranks:
                rank.say({"do": "go"})
        self.ready = self._gather("ready")

    @property
    def pids(self) -> list[int]:
        """Process ids on this machine of the ranks and of the parameter server, for the monitor."""
        return self.site.pids

    @property
    def notes(self) -> list[str]:
        return self._messages.notes

    @property
    def batches_per_epoch(self) -> int:
        return int(self.ready[0]["batches_per_epoch"])

    @property
    def samples_per_step(self) -> int:
        """Images of all ranks in one step."""
        return sum(int(r["samples_per_step"]) for r in self.ready)

    def steps(self, count: int) -> dict[str, Any]:
        """``count`` steps on every rank: ``{"samples", "seconds", "losses", "loss", "count", "at"}``.

        ``samples``: of all ranks. ``losses``: a job's, each the ranks' mean. ``at``: a script's last step, 0 for a job.
        """
        done = self._ask({"do": "steps", "count": count})
        return {
            "samples": sum(d["samples"] for d in done), "seconds": max(d["seconds"] for d in done),
            "losses": [sum(step) / len(done) for step in zip(*(d.get("losses", ()) for d in done))],
            "loss": sum(d["loss"] for d in done) / len(done), "count": count, "at": done[0].get("at", 0),
        }  # fmt: skip

    def validate(self) -> dict[str, Any]:
        """Rank 0 validates; the others wait."""
        self._agree()
        return self._ask({"do": "validate"}, ranks=1)[0]

    def reset(self, epochs: float | None = None) -> None:
        """Reset all ranks to the seeded start; ``epochs`` is the new length of the training."""
        if epochs is not None:
            self.recipe = self.recipe.override(epochs=epochs)
        self._ask({"do": "reset", "epochs": epochs})

    def checkpoint(self, extra: dict[str, Any], wait: bool) -> dict[str, Any]:
        """Rank 0 writes its state and ``extra`` (``wait``: to the end): ``{"written", "error", "skipped"}``."""
        self._agree()
        return self._ask({"do": "checkpoint", "extra": extra, "wait": wait}, ranks=1)[0]

    def _agree(self) -> None:
        """Synchronize the parameters of ranks that exchange them seldom or asynchronously."""
        asynchronous = self.recipe.engine == "async"
        if asynchronous or self.recipe.exchange_every > 1:
            for _ in range(2 if asynchronous else 1):  # all ranks give, then all take
                self._ask({"do": "agree"})

    def restore(self, path: str, epoch: int | None = None) -> None:
        """Restore all ranks from a checkpoint; from one of another number of ranks, at the begin of ``epoch``."""
        more = {} if epoch is None else {"epoch": epoch}
        self._ask({"do": "restore", "path": path, **more})

    def attribution(self, on: bool) -> None:
        self._ask({"do": "attribution", "on": on})

    def loading_alone(self, seconds: float) -> dict[str, Any]:
        """Rank 0's loader without its net; see :func:`gluontune.engines.progress.Progress.loading_alone`."""
        return self._ask({"do": "loading", "seconds": seconds}, ranks=1)[0]["found"]

    def training_alone(self, sizes: list[int], seconds: float) -> dict[str, Any]:
        """Rank 0's net without its loader; see :func:`gluontune.engines.mxnet.commands.training_alone`."""
        return self._ask({"do": "training", "sizes": sizes, "seconds": seconds}, ranks=1)[0]["found"]

    def gradients(self) -> dict[str, int]:
        """Size of a step's gradients: ``{"bytes", "tensors"}``."""
        found = self._ask({"do": "gradients"}, ranks=1)[0]
        return {"bytes": found["bytes"], "tensors": found["tensors"]}

    def exchange_alone(self, kinds: list[list[int]], repeats: int) -> list[dict[str, float]]:
        """The ranks' exchange without training; see :func:`gluontune.engines.mxnet.commands.exchange_alone`."""
        return self._ask({"do": "exchange", "kinds": kinds, "repeats": repeats})[0]["found"]

    def individual(self, what: str, **given: Any) -> dict[str, Any]:
        """Other weights, another optimizer, a score: one command of :mod:`gluontune.engines.mxnet.commands`."""
        return self._ask({"do": "individual", "what": what, "given": given})[0]["found"]

    def phases(self) -> dict[str, Any]:
        return self._ask({"do": "phases"}, ranks=1)[0]["report"]

    def remarks(self) -> list[str]:
        return list(self._ask({"do": "remarks"}, ranks=1)[0]["notes"])

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
        """Kill the ranks, from another thread than the waiting one, which then gets ``RunFailed``."""
        for rank in list(self.ranks):
            rank.signal(signal.SIGKILL)

    def close(self) -> None:
        """End all processes of the group; safe to call twice, but not while another thread waits for an answer."""
        with contextlib.suppress(OSError):
            self._messages.pass_on_logs()
        self.ranks = self._messages.ranks = []
        self.site.close()

    def _ask(self, command: dict[str, Any], ranks: int | None = None) -> list[dict[str, Any]]:
        """Send a command to the first ranks (None: all), and return their answers."""
        asked = self.ranks[:ranks]
        if not asked:
            raise RunFailed("Closed", "the run has ended", "training")
        for rank in asked:
            rank.say(command)
        return self._gather("done", asked)

    def _gather(self, wanted: str, asked: list[Any] | None = None) -> list[dict[str, Any]]:
        """One ``wanted`` event from each rank; a failure ends the group."""
        try:
            return self._messages.gather(wanted, asked)
        except RunFailed:
            self.close()
            raise
