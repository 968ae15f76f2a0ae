"""A pool of training processes: each takes the next individual of a population as soon as it is free."""

from __future__ import annotations

import queue
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gluontune import runtime
from gluontune.core.errors import GluontuneError, UsageError
from gluontune.core.files import Closing
from gluontune.optim.evolution import ranked_value
from gluontune.recipe import Recipe
from gluontune.training.group import Group, RunFailed


@dataclass(frozen=True)
class IndividualRun:
    """The training of one individual."""

    name: str
    number: int  # unique in the search; it seeds batches and random numbers
    weights: Path | None  # file to begin from; None: the recipe's start, or that of the seed ``start``
    setup: dict[str, Any]  # fields of the recipe: its optimizer, hyper-parameters and schedule
    steps: int  # SGD steps; 0 scores it only
    updates: int = 1  # of the weights in each step
    back_off: bool = False  # undo a step that made the fitness worse
    score: dict[str, Any] | None = None  # of ``weights``, if known; else it is measured first
    start: int | None = None
    path: Path | None = None  # of the file for its weights; None saves none


def run_individual(group: Any, run: IndividualRun) -> dict[str, Any]:
    """Train one individual in ``group`` and return its record.

    ``score`` is that at the end, ``best`` the best by fitness of all steps, ``curve`` the fitness after each step.
    """
    group.individual(
        "adopt", weights=None if run.weights is None else str(run.weights), changes=run.setup, number=run.number,
        total_updates=max(1, run.steps * run.updates), start=run.start,
    )  # fmt: skip
    scored = trained = backed_off = 0

    def take_score() -> dict[str, Any]:
        nonlocal scored
        found = group.individual("score")
        scored += found["samples"]
        return found

    now = run.score or take_score()
    best = now
    curve: list[float | None] = []
    for _ in range(run.steps):
        if run.back_off:
            group.individual("mark")
        trained += int(group.steps(run.updates)["samples"])
        after = take_score()
        if run.back_off and _fitness(after) > _fitness(now):
            group.individual("back_off")
            backed_off += 1
        else:
            now = after
        curve.append(now["fitness"])
        best = min(best, now, key=_fitness)
    fixed = group.individual("write", path=str(run.path))["fixed"] if run.path is not None else None
    return {
        "name": run.name, "setup": run.setup, "score": now, "best": best, "curve": curve, "backed_off": backed_off,
        "trained_images": trained, "scored_images": scored, "fixed": fixed,
    }  # fmt: skip


def _fitness(score: dict[str, Any]) -> float:
    return ranked_value(score["fitness"])


class WorkerPool(Closing):
    """``workers`` processes (None: one for each usable core) of one recipe; they share the cores evenly.

    Raises:
        UsageError: fewer than one worker, or a recipe of several ranks.
        RunFailed: a process could not be built.
    """

    def __init__(self, recipe: Recipe, workers: int | None = None, time_limit: float = 600.0):
        cores = runtime.usable_cores()
        self.workers = cores if workers is None else workers
        if self.workers < 1:
            raise UsageError(f"workers={workers}: give a whole number of at least 1")
        if recipe.engine != "local" or recipe.num_devices > 1:
            raise UsageError("a population is trained by processes of one device each: engine='local', num_devices=1")
        if self.workers > 1 and "OMP_NUM_THREADS" not in recipe.env:
            threads = str(max(1, cores // self.workers))
            recipe = recipe.override(env={**recipe.env, "OMP_NUM_THREADS": threads})
        self.recipe = recipe
        self._groups: list[Group] = []
        try:
            for _ in range(self.workers):
                self._groups.append(Group(recipe, wait=False, time_limit=time_limit))
            for group in self._groups:
                group.wait()
        except BaseException:
            self.close()
            raise

    @property
    def batches_per_epoch(self) -> int:
        return self._groups[0].batches_per_epoch

    def run(self, runs: Sequence[IndividualRun]) -> Iterator[tuple[IndividualRun, dict[str, Any]]]:
        """Run the individuals, one per worker at a time; yields each with its record as soon as it has ended.

        Raises:
            GluontuneError: a training process died, hung or raised; it names the individual.
        """
        idle: queue.SimpleQueue[Group] = queue.SimpleQueue()
        for group in self._groups:
            idle.put(group)

        def serve(run: IndividualRun) -> tuple[IndividualRun, dict[str, Any]]:
            group = idle.get()
            try:
                return run, run_individual(group, run)
            except RunFailed as failure:
                raise GluontuneError(f"{run.name}: its training process failed: {failure}") from failure
            finally:
                idle.put(group)

        with ThreadPoolExecutor(self.workers) as pool:
            futures = [pool.submit(serve, run) for run in runs]
            try:
                for future in as_completed(futures):
                    yield future.result()
            except BaseException:
                for future in futures:
                    future.cancel()
                for group in self._groups:
                    group.kill()  # ends the waiting threads; close only once no thread waits
                raise

    def close(self) -> None:
        for group in self._groups:
            group.close()
