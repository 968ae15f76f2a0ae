"""A pretended machine for the tests of time to accuracy: no process is started, every figure is given."""

from __future__ import annotations

from gluontune.recipe import Recipe
from gluontune.recipe.result import RunResult

FACTS = {"cpu": {"model": "Test CPU", "usable_cores": 2}, "memory_mib": 4096, "gpus": [], "packages": {}}


class Machine:
    """Pretends runs: each reaches ``curve`` by epochs of ``epoch_s`` seconds; some crash or are stopped."""

    def __init__(self):
        self.ran: list[Recipe] = []
        self.curve = lambda recipe: [0.5, 0.8, 0.9]
        self.epoch_s = lambda recipe: 10.0 + recipe.seed
        self.crash = lambda recipe: False
        self.stop_before = lambda recipe: False

    def train_once(self, recipe, *, on_event=None, time_limit=0, machine=None):
        clocks = FakeClocks()
        length = recipe.epochs if recipe.epochs > 1 else float(len(self.curve(recipe)))
        result = RunResult(recipe={**recipe.to_dict(), "epochs": length}, machine=machine)
        if self.stop_before(recipe):
            result.status = "interrupted"
            return result, clocks
        self.ran.append(recipe)
        if self.crash(recipe):
            result.status = "failed"
            result.error = {"type": "Diverged", "message": "the loss is nan", "phase": "training"}
            return result, clocks
        at = clocks.run_at
        for accuracy in self.curve(recipe):
            at += self.epoch_s(recipe)
            clocks.evaluations.append((at, at + 1.0, None))
            at += 1.0
            result.val_accuracy.append(accuracy)
            result.epoch_seconds.append(self.epoch_s(recipe))
            result.elapsed_seconds.append(sum(result.epoch_seconds))
            if recipe.target_accuracy is not None and accuracy >= recipe.target_accuracy:
                break
        clocks.end = at
        return result, clocks


def pretend(monkeypatch) -> Machine:
    """The machine on which ``gluontune.search.tta`` trains from now on."""
    machine = Machine()
    monkeypatch.setattr("gluontune.search.tta.train_once", machine.train_once)
    monkeypatch.setattr("gluontune.runtime.machine_facts", lambda: FACTS)
    return machine


class FakeClocks:
    def __init__(self):
        self.started_at, self.start_seconds, self.warmup_seconds, self.run_at = 1000.0, 3.0, 2.0, 5.0
        self.evaluations, self.end = [], 5.0

    def now(self):
        return self.end
