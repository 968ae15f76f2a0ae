"""Evolutionary stochastic gradient descent: a population that is trained, scored, crossed and selected."""

from __future__ import annotations

import contextlib
import dataclasses
import queue
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from typing import Any

import numpy as np

from gluontune import runtime
from gluontune.core.errors import GluontuneError, UsageError
from gluontune.core.events import OnProgress, progress
from gluontune.core.files import Closing
from gluontune.core.journal import resumable
from gluontune.job.batches import read_weights, write_weights
from gluontune.optim import evolution
from gluontune.recipe import Recipe
from gluontune.recipe.registry import Parameter
from gluontune.search.study import Study
from gluontune.training.group import Group, RunFailed


@dataclasses.dataclass(frozen=True)
class IndividualRun:
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
    """Train one individual in ``group``: its final and ``best`` score, and the fitness after each step (``curve``)."""
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


def _fitness(score: Mapping[str, Any]) -> float:
    return evolution.ranked_value(score["fitness"])


class WorkerPool(Closing):
    """``workers`` processes (None: one for each usable core) of one recipe; they share the cores evenly."""

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
        """Run the individuals, one per worker at a time; yields each with its record as soon as it has ended."""
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


ESGD_SCHEMA = 1
# Purposes of random numbers; each has its own stream.
_SETUP, _OFFSPRING, _CHOICE = 1, 2, 3


@dataclasses.dataclass(frozen=True)
class EsgdPlan:
    """The numbers of Algorithm 1, with the paper's names.

    Args:
        population: mu, individuals of a generation. generations: K.
        sgd_steps: K_s, SGD steps of an individual in a generation; after each it is scored.
        updates: of the weights in one SGD step; None: one epoch. evolution_steps: K_v; 0 leaves evolution out.
        offspring: lambda; None: twice the population. parents: rho, of one offspring.
        elite: m, share of the population that survives by its fitness.
        sigma: of the mutation in the first generation, as a share of the root mean square of each parameter array;
            divided by the generation's number later. final_rate: rates of the last generation as a share of the
            first's.
        back_off: undo an SGD step in which the individual's fitness falls.
        start: ``same``: all begin with the recipe's seeded parameters, so that they can be averaged from the
            beginning; ``own``: each with parameters of its own seed.

    Source: Cui et al., *Evolutionary Stochastic Gradient Descent*, NeurIPS 2018.
    """

    population: int = 8
    generations: int = 6
    sgd_steps: int = 1
    updates: int | None = None
    evolution_steps: int = 1
    offspring: int | None = None
    elite: float = 0.6
    parents: int = 2
    sigma: float = 0.01
    final_rate: float = 0.05
    back_off: bool = True
    start: str = "same"

    def __post_init__(self) -> None:
        whole, unless_none = Parameter(int, 1), Parameter(int, 1, optional=True)
        bounds = {
            **dict.fromkeys(("population", "generations", "sgd_steps"), whole), "evolution_steps": Parameter(int, 0),
            "parents": whole, "updates": unless_none, "offspring": unless_none, "elite": Parameter(low=0, high=1),
            "sigma": Parameter(low=0, high=10), "final_rate": Parameter(low=1e-9, high=1),
        }  # fmt: skip
        for name, bound in bounds.items():
            if fault := bound.fault(getattr(self, name)):
                raise UsageError(f"{name}={getattr(self, name)!r}: give {fault}")
        if self.parents > self.population:
            raise UsageError(f"parents={self.parents} of a population of {self.population}: give at most that many")
        if self.start not in ("same", "own"):
            raise UsageError(f"start={self.start!r}: choose same or own")

    @property
    def children(self) -> int:
        """lambda."""
        return 2 * self.population if self.offspring is None else self.offspring

    @property
    def kept(self) -> int:
        """m."""
        return round(self.elite * self.population)


@resumable
def esgd(
    recipe: Recipe,
    plan: EsgdPlan | None = None,
    *,
    pool: Sequence[evolution.Entry] = evolution.POOL,
    workers: int | None = None,
    out: str | Path | None = None,
    resume: bool = False,
    on_event: OnProgress | None = None,
    time_limit: float = 600.0,
) -> dict[str, Any]:
    """Train a population by ESGD and return its best individual, in the document of ``esgd.json``.

    In each generation every individual draws an optimizer and its hyper-parameters and is trained; steps that worsen
    its fitness are undone. Then offspring are made (the mean of some parents, with Gaussian noise); the best of parents
    and offspring survive, with some others by chance. Fitness is the loss over the validation images at even places;
    the reported loss and accuracy are those over the odd places, which take no part in the selection.

    Equal seeds, plans and threads of each worker give equal results, whatever the number of workers.

    Args:
        recipe: data, net, batch and seed; its optimizer, rate, schedule and epochs are not used.
        plan: the numbers of the algorithm. pool: optimizers with their ranges.
        workers: processes that train at a time; None: one for each usable core.
        out: folder for ``esgd.json``, saved after each individual, and the population's parameters; None: a
            temporary one, without a document. resume: go on with the search in ``out``.
        on_event: called with each :class:`gluontune.core.events.Progress`.
        time_limit: seconds of silence after which a training process counts as hung.

    Raises:
        UsageError: numbers out of range or contradictory. GluontuneError: a training process failed (finished
            pieces are kept), or the folder cannot be used.

    >>> import gluontune as gt
    >>> fast = gt.Recipe(net="mlp", loader="resident", train_samples=512, val_samples=128)
    >>> found = gt.ladder.esgd(fast, gt.ladder.EsgdPlan(population=2, generations=2), workers=1)
    >>> found["complete"], [len(g["population"]) for g in found["generations"]]
    (True, [2, 2])
    """
    plan = plan or EsgdPlan()
    recipe = recipe.override(schedule="constant", warmup_epochs=0.0, lr_scaling="none")
    pool_dicts = [dataclasses.asdict(entry) for entry in pool]
    given = {"recipe": recipe.to_dict(), "plan": dataclasses.asdict(plan), "pool": pool_dicts}
    store = Study("esgd", ESGD_SCHEMA, given, out, resume)
    place: Any = tempfile.TemporaryDirectory(prefix="gluontune-esgd-") if out is None else contextlib.nullcontext(out)
    with place as folder, store.under_way(), WorkerPool(recipe, workers, time_limit) as worker_pool:
        _Search(plan, pool, worker_pool, store, Path(folder) / "population", on_event).run()
    store.document["cost"] = cost(store.document["done"])
    store.save()
    return store.document


def cost(done: Sequence[Mapping[str, Any]]) -> dict[str, int]:
    """Numbers of trained and of scored images; a trained image costs about three times a scored one.

    >>> cost([{"trained_images": 10, "scored_images": 5}, {"survivors": []}])
    {'trained_images': 10, 'scored_images': 5, 'image_passes': 35}
    """
    trained = sum(piece.get("trained_images", 0) for piece in done)
    scored = sum(piece.get("scored_images", 0) for piece in done)
    return {"trained_images": trained, "scored_images": scored, "image_passes": 3 * trained + scored}


class _Search:
    """One run of Algorithm 1. An individual is ``{"name", "score", "setup", "offspring"}``; its file has its name."""

    def __init__(
        self, plan: EsgdPlan, pool: Sequence[evolution.Entry], worker_pool: WorkerPool, store: Study, folder: Path,
        on_event: OnProgress | None,
    ):  # fmt: skip
        self.plan, self.pool, self.worker_pool, self.store, self.folder = plan, pool, worker_pool, store, folder
        self.seed, self.on_event = worker_pool.recipe.seed, on_event
        self.updates = plan.updates or worker_pool.batches_per_epoch
        self.done = {piece["name"]: piece for piece in store.document["done"]}
        folder.mkdir(parents=True, exist_ok=True)

    def run(self) -> None:
        plan, document = self.plan, self.store.document
        population: list[dict[str, Any]] = [{"name": None, "score": None} for _ in range(plan.population)]
        document["generations"] = []
        for k in range(1, plan.generations + 1):
            ended = self.done.get(f"generation {k}")
            if ended is None:
                population = self._sgd(k, population)
                for v in range(1, plan.evolution_steps + 1):
                    population = self._evolve(k, v, population)
                ended = {"name": f"generation {k}", "population": population}
                self.done[ended["name"]] = ended
                self.store.enter(ended)
                kept = {self._file(one["name"]) for one in population}
                for path in set(self.folder.glob("*.npz")) - kept:
                    path.unlink()
            population = ended["population"]
            best = min(population, key=lambda one: _fitness(one["score"]))
            born = sum(one["offspring"] for one in population[: plan.kept]) / max(plan.kept, 1)
            entry = {"generation": k, "best": best, "population": population, "offspring_share_of_elite": born}
            document["generations"].append(entry)
            document["best"] = {**best, "file": str(self._file(best["name"])) if self.store.path else None}
            self.store.save()
            self._tell(k, 1.0, f"best fitness {best['score']['fitness']:.4g}")

    def _sgd(self, k: int, population: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
        plan = self.plan
        runs: list[IndividualRun] = []
        factor = evolution.annealed(k, plan.generations, plan.final_rate)
        for j, parent in enumerate(population):
            name, first = f"g{k:03d}-p{j:03d}", parent["name"] is None
            setup = evolution.draw(self.pool, self._rng(_SETUP, k, j), factor)
            runs.append(IndividualRun(
                name, 1 + (k - 1) * plan.population + j, None if first else self._file(parent["name"]), setup,
                steps=plan.sgd_steps, updates=self.updates, back_off=plan.back_off, score=parent["score"],
                start=self.seed * 10_000 + j if first and plan.start == "own" else None, path=self._file(name),
            ))  # fmt: skip
        return self._run_all(k, runs, offspring=False)

    def _evolve(self, k: int, v: int, population: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """Offspring by recombination and mutation, then the elite of all, with others by chance."""
        plan = self.plan
        runs: list[IndividualRun] = []
        fitness = [_fitness(one["score"]) for one in population]
        fixed = self.done[population[0]["name"]]["fixed"] or ()
        for o in range(plan.children):
            name = f"g{k:03d}-v{v}-o{o:03d}"
            file = self._file(name)
            if name not in self.done or not file.is_file():
                rng = self._rng(_OFFSPRING, k, v, o)
                chosen = evolution.parents(fitness, plan.parents, rng)
                child = evolution.recombine([read_weights(self._file(population[p]["name"])) for p in chosen])
                write_weights(file, evolution.mutate(child, plan.sigma / k, rng, fixed))
            runs.append(IndividualRun(name, 0, file, {}, steps=0, path=file))
        everyone = [*population, *self._run_all(k, runs, offspring=True)]
        fitness = [_fitness(one["score"]) for one in everyone]
        places = evolution.select(fitness, plan.population, plan.kept, self._rng(_CHOICE, k, v))
        return [everyone[place] for place in places]

    def _run_all(self, k: int, runs: Sequence[IndividualRun], offspring: bool) -> list[dict[str, Any]]:
        """Run those of ``runs`` that are not done with their files written; return the individuals, in order."""
        left = [one for one in runs if one.name not in self.done or not (one.path is None or one.path.is_file())]
        for count, (_, record) in enumerate(self.worker_pool.run(left), 1):
            self.done[record["name"]] = record
            self.store.enter(record)
            self._tell(k, count / len(runs), record["name"])
        names = ("name", "score", "setup")
        return [{**{n: self.done[run.name][n] for n in names}, "offspring": offspring} for run in runs]

    def _file(self, name: str) -> Path:
        return self.folder / f"{name}.npz"

    def _rng(self, *key: int) -> np.random.Generator:
        return np.random.default_rng([self.seed, *key])

    def _tell(self, k: int, share: float, detail: str) -> None:
        if self.on_event is not None:
            done = (k - 1 + min(share, 1.0)) / self.plan.generations
            stage = f"generation {k} of {self.plan.generations}"
            self.on_event(progress(stage, done, detail))
