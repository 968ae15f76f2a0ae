"""Five minutes on a slow and noisy machine: what a climb must find there, and what it must not claim."""

from __future__ import annotations

import random

from gluontune import ladder
from gluontune.recipe import Recipe
from gluontune.search.budget import Budget
from gluontune.search.measure import Contender
from gluontune.search.rung import Site
from gluontune.search.rungs import RUNGS
from gluontune.search.sequential import LOOKS, Scatter, futility_bound, ratio_at_look

_START_S = 3.3  # for a process, and less than half of that for warming it up


def rate(r: Recipe) -> float:
    """As a small shared machine had it: threads and graph gain, workers and loaders do not."""
    found = 200.0 * (1.35 if r.runtime == "tuned" else 1.0)
    found *= 0.9 if r.loader == "gluon" and r.num_workers else 1.0
    found *= {"imperative": 1.0, "hybridized": 1.2, "static": 1.35}[r.hybridize]
    found *= 0.9 if r.optimizer == "muon" else 1.0
    return found * (1.3 if r.engine != "local" else 1.0)


class Slow:
    """The pretended machine with a clock, and with the scatter that neighbours cause."""

    def __init__(self, machine, seed, noise=0.12):
        self.now, self.noise, self.rng = 0.0, noise, random.Random(seed)
        self.waits = 0
        machine.group.steps = lambda group, count: self.steps(group, count)
        machine.group.wait = lambda group: self.wait(_START_S)
        machine.train = self.train
        machine.sleep = self.wait

    def wait(self, seconds):
        self.now += seconds

    def steps(self, group, count):
        samples = count * group.recipe.global_batch_size
        seconds = samples / rate(group.recipe) * self.rng.lognormvariate(0, self.noise)
        self.wait(seconds)
        return {"samples": samples, "seconds": seconds, "loss": 1.0, "count": count}

    def train(self, group, result, on_event=None):
        seconds = 10_000 * group.recipe.epochs / rate(group.recipe) * self.rng.lognormvariate(0, 0.05)
        for _ in range(10):
            self.wait(seconds / 10)
            on_event({"event": "progress"})
        self.wait(2.5)
        result.val_accuracy = [0.76 + self.rng.gauss(0, 0.005)]
        result.elapsed_seconds = result.epoch_seconds = [seconds]
        speed = rate(group.recipe)
        result.samples_per_sec = {"median": speed, "ci95": [0.95 * speed, 1.05 * speed], "n": 9}


def climbed(machine, seed):
    machine.facts = {"cpu": {"flags": ["avx2"]}}
    slow = Slow(machine, seed)
    found = ladder.climb(
        Recipe(),
        rungs=[n for n in RUNGS.names() if n not in ("together", "methods")],
        budget_s=300.0,
        clock=lambda: slow.now,
    )
    return found, {row["name"]: row for row in found["rungs"]}, slow.now


def test_five_minutes_suffice_for_what_is_worth_a_third(machine):
    kept = {"environment": 0, "hybridized": 0, "large-batch": 0, "multi-worker": 0, "records": 0}
    proofs = 0
    for seed in range(6):
        found, rows, seconds = climbed(machine, seed)
        assert seconds <= 300
        for name in kept:
            kept[name] += rows[name]["kept"]
        proofs += found["proof"] is not None and found["proof"]["ratio"]["median"] > 2
        assert not any(row["verdict"] == "hurt" for row in rows.values())
    assert kept["environment"] >= 5 and kept["hybridized"] >= 5 and kept["large-batch"] >= 5
    assert kept["multi-worker"] == kept["records"] == 0
    assert proofs >= 5


def test_the_variant_to_go_on_with_is_one_that_is_proven(machine):
    """Of two that tie, the smaller change may be the one whose gain is not certain."""
    usual = machine.rate

    def unsteady(self, count):
        seen = steps(self, count)
        first = self.recipe.rewrites == ("pool-to-mean",)
        self.machine.odd = not getattr(self.machine, "odd", False)
        return {**seen, "seconds": seen["seconds"] * ((1.9 if self.machine.odd else 0.55) if first else 1.0)}

    steps = machine.group.steps
    machine.group.steps = unsteady
    machine.rate = lambda r: usual(r) if r.hybridize == "imperative" else 160.0
    found = ladder.climb(Recipe(), rungs=["hybridized"], budget_s=3600.0)
    row = found["rungs"][-1]
    assert row["kept"] and row["verdict"] == "helped"
    assert "pool-to-mean" not in row["changes"].get("rewrites", [])


def wrong(contests, prior_noise, noise):
    """The share of contests between equals that claim a difference."""
    rng, claimed = random.Random(11), 0
    for _ in range(contests):
        scatter, mine, theirs = Scatter(), [], []
        for _ in range(4):
            scatter.add(*([rng.lognormvariate(0, prior_noise) for _ in range(5)] for _ in range(2)))
        for n in range(1, LOOKS[-1] + 1):
            mine.append(rng.lognormvariate(0, noise))
            theirs.append(rng.lognormvariate(0, noise) * (0.6 if rng.random() < 0.03 else 1.0))
            if n in LOOKS:
                low, high = ratio_at_look(mine, theirs, scatter=scatter)["ci95"]
                if low > 1 or high < 1:
                    claimed += 1
                    break
    return claimed / contests


def test_what_earlier_contests_told_of_the_scatter_keeps_the_error():
    assert wrong(150, 0.1, 0.1) <= 0.08
    assert wrong(150, 0.04, 0.12) <= 0.2  # a machine that becomes three times as noisy is noticed


def test_known_scatter_makes_four_slices_tell_more():
    mine, theirs = [130.0, 121.0, 138.0, 126.0], [100.0, 104.0, 97.0, 101.0]
    scatter = Scatter()
    alone = ratio_at_look(mine, theirs, 2, scatter)["ci95"]
    scatter.add_single([100.0, 106.0, 95.0, 101.0, 108.0, 99.0, 103.0, 97.0])
    known = ratio_at_look(mine, theirs, 2, scatter)["ci95"]
    assert known[1] - known[0] < 0.7 * (alone[1] - alone[0]) and known[0] > 0.96
    assert futility_bound(mine, theirs, scatter) > 1.3
    assert futility_bound(theirs, mine, scatter) < 0.9


def test_an_optimizer_that_makes_more_of_a_step_is_tried_at_the_same_batch_for_half_as_long():
    site = Site(cores=2, gpus=0, bf16=False, splits=True, fits_memory=True, rewrites=(), num_train=10_000)
    variants = {v.label: v for v in RUNGS["large-batch"].variants(Recipe(epochs=1), site)}
    assert variants["batch 64, Muon, 0.5 epochs"].changes["epochs"] == 0.5
    assert "batch 128, Muon, 0.75 epochs" in variants
    gathered = variants["batch 128 of 2 steps, Muon, 0.75 epochs"]
    assert Recipe(epochs=1).override(**gathered.changes).update_batch_size == 128
    assert gathered.rank == max(v.rank for v in variants.values()), "a short budget leaves it out first"
    # With fewer updates than 40 the seed decides the accuracy.
    short = RUNGS["large-batch"].variants(Recipe(epochs=0.5), site)
    assert [v.label for v in short if "Muon" in v.label] == ["batch 64, Muon, 0.259 epochs"]
    assert 0.259 * 10_000 / 64 >= 40


def test_a_contender_of_another_length_takes_the_processes_over(machine):
    first = Contender(Recipe(epochs=1), "whole")
    first.launch()
    first.warm_up(0.1)
    first.rates = [10.0]
    group = first.group
    second = first.of_length(0.5, "half")
    assert (second.group, first.group, second.rates) == (group, None, [10.0])
    assert second.recipe.epochs == 0.5 and second.warm_up(0.1) == 0.0  # it is warm
    second.hand_to(first)
    assert first.group is group and second.group is None


def test_a_short_budget_starts_fewer_variants_and_names_the_others(machine, monkeypatch):
    still = ["large-batch", "multi-device"]
    assert Budget(300.0).variants("large-batch", still, 5.0) < Budget(3600.0).variants("large-batch", still, 5.0)
    assert Budget(60.0).variants("environment", still, 60.0) == 2
    monkeypatch.setattr(Budget, "variants", lambda self, rung, still, starts_s: 2)
    row = ladder.climb(Recipe(), rungs=["large-batch"])["rungs"][-1]
    assert len(row["variants"]) >= 2 and all("LA" not in v["label"] for v in row["variants"])
    assert any(note.startswith("no time for ") and "LARS" in note for note in row["notes"])
