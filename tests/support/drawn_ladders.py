"""Ladder documents drawn by chance: real climbs on a pretended machine, with all that may happen to them."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

from gluontune import ladder
from gluontune.core.errors import GluontuneError
from gluontune.recipe import Recipe
from gluontune.train import RunFailed
from tests.support.pretended_machine import Machine, pretend, pretend_script

_PHASES = ("data", "copy", "forward", "backward", "update", "metrics", "rest")


def drawn(seed: int, folder: Path) -> dict[str, Any]:
    """The ``ladder.json`` of a climb, which writes its files into ``folder``; equal seeds draw alike."""
    with pytest.MonkeyPatch.context() as monkeypatch:
        machine, rng = pretend(monkeypatch), random.Random(seed)
        clock = _clocked(machine, rng)
        if seed % 5 == 4:
            return _of_script(monkeypatch, rng, folder)
        machine.facts = {"cpu": {"model": "pretended", "flags": rng.choice((["avx2"], ["avx512_bf16"]))}, "gpus": []}
        machine.others_pct = rng.choice((0.0, 0.0, 0.0, 4.0, 30.0))
        machine.rate = _rates(rng)
        machine.accuracy = _accuracies(rng)
        if rng.random() < 0.3:
            broken = rng.choice(("loader", "hybridize", "dtype", "runtime", "optimizer", "engine"))
            usual = getattr(Recipe(), broken)
            fault = RunFailed("MXNetError", "src/storage/storage.cc:110: out of memory", "building the net")
            machine.breaks = lambda r: fault if getattr(r, broken) != usual or seed % 50 == 7 else None
        if rng.random() < 0.2:
            left = [rng.randrange(1, 9)]

            def interrupt(recipe: Recipe) -> None:
                left[0] -= 1
                if left[0] == 0:
                    raise KeyboardInterrupt

            machine.on_train = interrupt
        names = None if rng.random() < 0.7 else rng.sample(["environment", "records", "hybridized", "large-batch"], 2)
        names = ["naive"] if rng.random() < 0.06 else names
        recipe = Recipe(epochs=rng.choice((1, 1, 2, 3)), seed=seed, train_samples=rng.choice((None, 800)))
        budget_s = rng.choice((40.0, 90.0, 240.0, 300.0, 3600.0))
        pace = rng.choice((ladder.QUICK, ladder.FULL))
        return ladder.climb(recipe, out=folder, pace=pace, budget_s=budget_s, rungs=names, clock=clock)


def _clocked(machine: Machine, rng: random.Random) -> Any:
    """A clock that the machine's steps, starts and trainings move, with a scatter of its own."""
    now, noise, start_s = [0.0], rng.choice((0.003, 0.02, 0.1, 0.25)), rng.choice((0.5, 2.0, 8.0))
    validation_s, without = rng.choice((0.3, 3.0)), rng.random() < 0.15

    def passes(seconds: float) -> None:
        now[0] += seconds

    def steps(group: Any, count: int) -> dict[str, Any]:
        samples = count * group.recipe.global_batch_size
        seconds = samples / machine.rate(group.recipe) * rng.lognormvariate(0, noise)
        passes(seconds)
        return {"samples": samples, "seconds": seconds, "loss": 1.0, "count": count}

    def validate(group: Any) -> dict[str, Any]:
        passes(validation_s)
        return {"samples": 2000, "seconds": validation_s, "accuracy": 0.1, "loss": 2.3}

    def train(group: Any, result: Any, on_event: Any = None) -> None:
        machine.on_train(group.recipe)
        whole = 10_000 * group.recipe.epochs / machine.rate(group.recipe) * rng.lognormvariate(0, 0.05)
        shares = [rng.random() for _ in _PHASES]
        result.phases_pct = {name: 100 * share / sum(shares) for name, share in zip(_PHASES, shares)}
        result.phases = {"step_time_ms": {"sampled": 12.0, "unsampled": rng.choice((12.0, 10.0))}}
        for _ in range(10):
            passes(whole / 10)
            if on_event is not None:
                on_event({"event": "progress", "stage": "training", "done": 0.5})
        count = max(1, round(group.recipe.epochs))
        result.elapsed_seconds = [whole * (n + 1) / count for n in range(count)]
        result.epoch_seconds = [whole / count] * count
        reached = machine.accuracy(group.recipe)
        if without:
            result.val_metric = {"name": "rmse", "mode": "min", "values": [2.0 - reached] * count}
        else:
            result.val_accuracy = [reached * (n + 1) / count for n in range(count)]
        speed = machine.rate(group.recipe)
        result.samples_per_sec = {"median": speed, "ci95": [0.97 * speed, 1.02 * speed], "n": 9}
        times = [0.2 * n for n in range(30)]
        result.utilization = {"t_s": times, "cpu_pct": [rng.uniform(20, 100) for _ in times]}
        result.steadiness = {"mean_pct": rng.uniform(30, 100), "score": rng.random(), "below_50_pct": 10.0}
        result.peak_rss_mib = rng.uniform(300, 3000)

    machine.group.steps, machine.group.validate = steps, validate
    machine.group.wait = lambda group: passes(start_s)
    machine.train = train  # type: ignore[method-assign]
    machine.sleep = passes
    if without:
        ready = machine.start

        def start(recipe: Recipe, **how: Any) -> Any:
            group = ready(recipe, **how)
            group.ready[0]["metric"] = {"name": "rmse"}
            return group

        from gluontune.search import measure

        measure.Group = start  # type: ignore[misc, assignment]
    return lambda: now[0]


def _rates(rng: random.Random) -> Any:
    """Samples a second of a recipe: each choice has a factor of its own."""
    factors: dict[str, float] = {}
    base, spread = 10 ** rng.uniform(1.3, 3.7), rng.choice((0.02, 0.2, 0.6))

    def rate(recipe: Recipe) -> float:
        found = base
        for field in ("runtime", "num_workers", "loader", "hybridize", "rewrites", "dtype", "optimizer", "engine"):
            key = f"{field} {getattr(recipe, field)}"
            if getattr(recipe, field) != getattr(Recipe(), field):
                found *= factors.setdefault(key, rng.lognormvariate(0.3 * spread, spread))
        return found * (recipe.global_batch_size / 64) ** 0.1

    return rate


def _accuracies(rng: random.Random) -> Any:
    best, spread = rng.uniform(0.3, 0.95), rng.choice((0.0, 0.004, 0.03))
    muon, shorter, half = rng.choice((1.0, 1.0, 0.8)), rng.choice((0.0, 0.1, 0.4)), rng.choice((1.0, 1.0, 0.8))

    def accuracy(recipe: Recipe) -> float:
        found = best * (muon if recipe.optimizer == "muon" else 1.0) * (half if recipe.dtype != "float32" else 1.0)
        found *= 1 - shorter * max(0.0, 1 - recipe.epochs) ** 2
        found *= 1.0 if recipe.batch_size_per_device <= 128 or recipe.optimizer != "nag" else 0.7
        return min(0.999, max(0.0, found + rng.gauss(0, spread)))

    return accuracy


def _of_script(monkeypatch: pytest.MonkeyPatch, rng: random.Random, folder: Path) -> dict[str, Any]:
    group = pretend_script(monkeypatch)
    folder.mkdir(parents=True, exist_ok=True)
    monkeypatch.chdir(folder)
    Path("train.py").write_text("")
    group.speeds = {way: rng.lognormvariate(0.1, 0.4) for way in group.speeds}
    group.apart = {way: rng.choice((0.0, 0.0, 0.2)) for way in group.speeds}
    if rng.random() < 0.3:
        group.failing[rng.choice(list(group.speeds))] = RunFailed("NothingToChange", "nothing to change", "running")
    names = None if rng.random() < 0.7 else ["environment", "hybridized"]
    try:
        return ladder.climb_script(["train.py"], out=folder, budget_s=rng.choice((8.0, 300.0)), rungs=names)
    except GluontuneError as error:  # a naive way that fails has no ladder
        raise AssertionError(f"the drawn script's naive way fails: {error}") from error
