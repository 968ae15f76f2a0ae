"""A pretended machine for climbs: no process is started, and every figure is given."""

from __future__ import annotations

import pytest

from gluontune.recipe import Recipe
from gluontune.train import RunFailed


class Machine:
    """A pretended machine: how fast and how accurate each recipe is, and which break."""

    def __init__(self):
        self.group = type("Group", (FakeGroup,), {})  # a test sets other methods on it
        self.facts = {"cpu": {"flags": ["avx512_bf16"]}}
        self.others_pct = 0.0
        self.started: list[Recipe] = []
        self.trained: list[Recipe] = []
        self.breaks = lambda recipe: None
        self.accuracy = lambda recipe: 0.80
        self.on_train = lambda recipe: None
        self.noise = lambda tick: 1 + 0.01 * (tick % 3 - 1)
        self.sleep = lambda seconds: None

    def rate(self, r: Recipe) -> float:
        rate = 100.0
        rate *= 2.0 if r.runtime == "tuned" else 1.0
        rate *= {0: 1.0, 1: 0.9}.get(r.num_workers, 1.0)
        rate *= {"gluon": 1.0, "resident": 1.5, "threaded": 1.3}[r.loader]
        rate *= {"imperative": 1.0, "hybridized": 0.7, "static": 1.2 if r.rewrites else 0.7}[r.hybridize]
        rate *= 1.6 if r.dtype != "float32" else 1.0
        rate *= 1.1 if r.batch_size_per_device > 64 else 1.0
        return rate * (0.8 if r.engine != "local" else 1.0)

    def start(self, recipe, **_):
        self.started.append(recipe)
        failure = self.breaks(recipe)
        if failure:
            raise failure
        return self.group(recipe, self)

    def train(self, group, result, on_event=None):
        self.on_train(group.recipe)
        self.trained.append(group.recipe)
        result.val_accuracy = [self.accuracy(group.recipe)]
        seconds = 10_000 * group.recipe.epochs / self.rate(group.recipe)
        result.epoch_seconds = result.elapsed_seconds = [seconds]
        result.phases_pct = {"data": 70.0, "forward": 30.0}


class FakeGroup:
    def __init__(self, recipe, machine):
        self.recipe, self.machine = recipe, machine
        self.world = 1 if recipe.engine == "local" else recipe.num_devices
        self.ready = [
            {
                "num_train": 10_000,
                "image_bytes": 784,
                "splits": recipe.job is None,
                "gpus": 0,
                "device": "cpu",
                "rewrites": ["pool-to-mean"],
                "batches_per_epoch": 10_000 // recipe.global_batch_size,
                "samples_per_step": recipe.global_batch_size,
            }
        ]

    def wait(self):
        pass

    def steps(self, count):
        self.machine.tick = getattr(self.machine, "tick", 0) + 1
        samples = count * self.recipe.global_batch_size
        seconds = samples / self.machine.rate(self.recipe) * self.machine.noise(self.machine.tick)
        return {"samples": samples, "seconds": seconds, "loss": 1.0, "count": count}

    def pause(self):
        pass

    resume = close = pause

    def reset(self, epochs=None):
        self.recipe = self.recipe.override(epochs=epochs or self.recipe.epochs)

    @property
    def batches_per_epoch(self):
        return 10_000 // self.recipe.global_batch_size

    def validate(self):
        return {"samples": 2000, "seconds": 0.5, "accuracy": 0.1, "loss": 2.3}

    def loading_alone(self, seconds):
        workers = max(1, self.recipe.num_workers)
        return {"samples_per_sec": {"gluon": 300.0, "threaded": 900.0, "resident": 9e4}[self.recipe.loader] * workers}

    @property
    def samples_per_step(self):
        return self.recipe.global_batch_size

    def gradients(self):
        return {"bytes": 4_000_000, "tensors": 10}

    def exchange_alone(self, kinds, repeats):
        assert kinds == [[10, 100_000]]
        step_ms = 1e3 * self.samples_per_step / self.machine.rate(self.recipe)
        return [{"bytes": 4e6, "tensors": 10, "ms": 0.3 * step_ms}]

    def training_alone(self, sizes, seconds):
        return {str(size): {"step_time_ms": 10.0 + 2.0 * size} for size in sizes}


def pretend(monkeypatch: pytest.MonkeyPatch) -> Machine:
    """Climbs run on a pretended machine from now on."""
    from gluontune import runtime
    from gluontune.runtime import doctor, pytorch
    from gluontune.search import measure, rung_contest

    monkeypatch.setattr(doctor, "must_work", lambda: None)  # a process, whose wait would count as this machine's

    pretended = Machine()
    monkeypatch.setattr(measure, "Group", pretended.start)
    monkeypatch.setattr(measure, "drive", lambda *args: pretended.train(*args))
    monkeypatch.setattr(runtime, "machine_facts", lambda: pretended.facts)
    monkeypatch.setattr(runtime, "usable_cores", lambda: 2)
    monkeypatch.setattr(pytorch, "installed", lambda: False)  # a test that needs it sets it
    monkeypatch.setattr(measure.OtherLoad, "read", lambda self: pretended.others_pct)
    monkeypatch.setattr(rung_contest.time, "sleep", lambda seconds: pretended.sleep(seconds))
    return pretended


SCRIPT_LOSSES = [2.0, 1.5, 1.2, 1.1]


class PretendedScript:
    """A process whose speed and losses follow from how the script is run."""

    speeds = {
        "tuned": 2.0,
        "samples": 1.5,
        "compiled": 1.3,
        "compiled and rewritten": 1.0,
        "bfloat16": 3.0,
        "torch": 4.0,
    }
    apart: dict[str, float] = {}
    failing: dict[str, RunFailed] = {}
    started: list[str] = []
    seen = {"loaders": 1, "workers": 0, "samples_per_step": 16, "steps": 12, "why_not": "", "draws": False}

    def __init__(self, run, **how):
        self.run, self.notes, self.paused = run, [], False
        self.ways = [run.runtime, *run.changes, run.state, run.dtype, run.backend]
        type(self).started.append(run.command())
        losses = [loss * (1 + max(self.apart.get(way, 0.0) for way in self.ways)) for loss in SCRIPT_LOSSES]
        self.ready = [{**self.seen, "losses": losses, "step_s": self.steps(1)["seconds"]}]

    def wait(self):
        for way in self.ways:
            if way in self.failing:
                raise self.failing[way]

    def steps(self, count):
        rate = 100.0
        for way in self.ways:
            rate *= self.speeds.get(way, 1.0)
        wobble = 1 + 0.001 * (len(self.started) % 3)
        return {"samples": 16 * count, "seconds": 16 * count / rate * wobble, "loss": 0.0, "count": count, "at": 12}

    def individual(self, what, **given):
        return {**self.ready[0], "phases_pct": {"data": 60.0, "rest": 40.0}, "notes": []}

    def peak_rss_mib(self):
        return 300.0

    def pause(self):
        pass

    resume = close = pause


def pretend_script(monkeypatch: pytest.MonkeyPatch) -> type[PretendedScript]:
    """Climbs of scripts run on a pretended machine, too; returns the class of their processes."""
    from gluontune.runtime import pytorch
    from gluontune.search import measure, script_climb

    class Group(PretendedScript):
        speeds, apart, failing, started = dict(PretendedScript.speeds), {}, {}, []
        seen = dict(PretendedScript.seen)

    monkeypatch.setattr(measure, "Group", Group)
    monkeypatch.setattr(pytorch, "installed", lambda: True)
    monkeypatch.setattr(script_climb, "bfloat16_support", lambda: type("Support", (), {"level": "native"}))
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    return Group
