"""ESGD: its rules on given numbers, one run on a scripted trainer, and whole searches in real processes."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest

import gluontune as gt
from gluontune.cli.main import main
from gluontune.core.errors import GluontuneError, UsageError
from gluontune.job.batches import read_weights
from gluontune.optim import evolution
from gluontune.search.esgd import IndividualRun, run_individual

SMALL = gt.Recipe(net="softmax", loader="resident", train_samples=256, val_samples=65, env={"OMP_NUM_THREADS": "1"})
PLAN = gt.ladder.EsgdPlan(population=3, generations=2, sgd_steps=2, updates=3, offspring=4)


def rng(seed=0):
    return np.random.default_rng(seed)


def test_the_elite_is_kept_and_the_rest_comes_by_chance():
    fitness = [0.5, 0.1, math.nan, 0.3, 0.2, 0.9]
    drawn = [evolution.select(fitness, 4, 2, rng(seed)) for seed in range(200)]
    assert all(found[:2] == [1, 4] for found in drawn)
    rest = {place for found in drawn for place in found[2:]}
    assert rest == {0, 3, 5}  # every finite one sometimes, the diverged one never
    assert all(found[2:] == sorted(found[2:], key=lambda k: fitness[k]) for found in drawn)
    assert set(evolution.select([math.nan, 0.1], 2, 1, rng())) == {0, 1}  # where there is no other


def test_parents_are_drawn_by_rank_and_never_diverged_ones():
    fitness = [3.0, 1.0, 2.0, math.inf]
    drawn = [place for seed in range(3000) for place in evolution.parents(fitness, 1, rng(seed))]
    shares = [drawn.count(place) / len(drawn) for place in range(4)]
    assert shares == pytest.approx([1 / 6, 3 / 6, 2 / 6, 0], abs=0.03)
    assert sorted(evolution.parents(fitness, 3, rng())) == [0, 1, 2]
    with pytest.raises(UsageError, match="3 individuals have a finite fitness"):
        evolution.parents(fitness, 4, rng())


def test_offspring_are_the_mean_with_noise_by_array_and_fixed_ones_stay():
    one = {"w": np.full(40_000, 2.0, "float32"), "b": np.zeros(5, "float32"), "mean": np.ones(3, "float32")}
    other = {"w": np.full(40_000, 4.0, "float32"), "b": np.zeros(5, "float32"), "mean": np.full(3, 3.0, "float32")}
    child = evolution.mutate(evolution.recombine([one, other]), 0.1, rng(), fixed=["mean"])
    assert child["w"].mean() == pytest.approx(3.0, abs=0.01) and child["w"].dtype == np.float32
    assert child["w"].std() == pytest.approx(0.3, rel=0.05)
    assert child["mean"].tolist() == [2.0] * 3 and child["b"].tolist() == [0.0] * 5
    again = evolution.mutate(evolution.recombine([one, other]), 0.1, rng(), fixed=["mean"])
    assert np.array_equal(child["w"], again["w"])


def test_hyper_parameters_are_drawn_anew_and_anneal():
    pool = [evolution.Entry("sgd", (0.01, 0.1), (0.0, 0.9)), evolution.Entry("adam", (1e-4, 1e-3))]
    drawn = [evolution.draw(pool, rng(seed), factor=0.5) for seed in range(300)]
    assert {d["optimizer"] for d in drawn} == {"sgd", "adam"}
    rates = [d["learning_rate"] for d in drawn if d["optimizer"] == "sgd"]
    assert 0.005 <= min(rates) < 0.006 and 0.045 < max(rates) <= 0.05
    assert np.median(rates) == pytest.approx(0.5 * math.sqrt(0.01 * 0.1), rel=0.25)  # logarithmic
    assert all(d["momentum"] == 0 for d in drawn if d["optimizer"] == "adam")


BAD = {
    "population": (lambda: gt.ladder.EsgdPlan(population=0), "population=0"),
    "not whole": (lambda: gt.ladder.EsgdPlan(generations=1.5), "generations=1.5"),
    "parents": (lambda: gt.ladder.EsgdPlan(population=2, parents=3), "parents=3"),
    "elite": (lambda: gt.ladder.EsgdPlan(elite=1.5), "elite=1.5"),
    "sigma": (lambda: gt.ladder.EsgdPlan(sigma=math.nan), "sigma=nan"),
    "start": (lambda: gt.ladder.EsgdPlan(start="elsewhere"), "choose same or own"),
    "optimizer": (lambda: evolution.Entry("nga", (0.1, 0.2)), "did you mean 'nag'"),
    "rates": (lambda: evolution.Entry("nag", (0.2, 0.1)), "0 < lowest <= highest"),
    "momentum": (lambda: evolution.Entry("nag", (0.1, 0.2), (0.5, 1.0)), "highest < 1"),
    "no momentum": (lambda: evolution.Entry("adam", (0.1, 0.2), (0.5, 0.6)), "takes no momentum"),
    "pool": (lambda: evolution.draw([], rng()), "at least one optimizer"),
    "ranks": (lambda: gt.ladder.esgd(gt.Recipe(engine="kvstore", num_devices=2)), "one device each"),
    "workers": (lambda: gt.ladder.esgd(SMALL, workers=0), "workers=0"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_input_is_refused_with_its_name(case):
    make, message = BAD[case]
    with pytest.raises((UsageError, GluontuneError), match=message):
        make()


class Scripted:
    """A training process whose fitness after each step is given."""

    def __init__(self, *fitness):
        self.fitness, self.at, self.marked, self.taken = list(fitness), 0, None, []

    def individual(self, what, **given):
        self.taken.append(what)
        if what == "mark":
            self.marked = self.at
        elif what == "back_off":
            self.fitness[self.at] = self.fitness[self.marked]  # the step is undone
        elif what == "score":
            value = self.fitness[self.at]
            return {"fitness": value, "loss": value, "accuracy": 0.5, "fitness_accuracy": 0.5, "samples": 10}
        return {}

    def steps(self, count):
        self.at += 1
        return {"samples": 7 * count}


def test_a_step_that_made_it_worse_is_undone():
    group = Scripted(1.0, 0.8, 0.9, None, 0.7)
    record = run_individual(group, IndividualRun("a", 0, None, {}, steps=4, updates=2, back_off=True))
    assert record["curve"] == [0.8, 0.8, 0.8, 0.7] and record["backed_off"] == 2
    assert (record["trained_images"], record["scored_images"]) == (56, 50)
    free = run_individual(Scripted(1.0, 0.8, 0.9, None, 0.85), IndividualRun("a", 0, None, {}, steps=4, back_off=False))
    assert free["curve"] == [0.8, 0.9, None, 0.85] and free["best"]["fitness"] == 0.8
    assert free["score"]["fitness"] == 0.85 and free["backed_off"] == 0


def figures(document):
    return [
        [(one["name"], one["score"], one["setup"]) for one in generation["population"]]
        for generation in document["generations"]
    ]


@pytest.mark.slow
@pytest.mark.process
def test_a_search_is_the_same_with_more_workers_and_after_an_interruption(tmp_path):
    whole = gt.ladder.esgd(SMALL, PLAN, workers=2, out=tmp_path / "whole")
    assert whole["complete"] and len(figures(whole)) == 2
    best = whole["best"]
    first = min(one["score"]["fitness"] for one in whole["generations"][0]["population"])
    assert best["score"]["fitness"] == min(one["score"]["fitness"] for one in whole["generations"][1]["population"])
    assert best["score"]["fitness"] <= first  # elitism and back-off: never worse
    assert {p.stem for p in (tmp_path / "whole" / "population").iterdir()} == {f[0] for f in figures(whole)[-1]}
    assert all(np.isfinite(value).all() for value in read_weights(best["file"]).values())
    trained = [piece for piece in whole["done"] if piece.get("curve")]
    assert len(trained) == 6 and len({json.dumps(piece["setup"]) for piece in trained}) == 6

    count = 0

    def interrupt(event):
        nonlocal count
        count += 1
        if count == 13:  # in the second generation
            raise KeyboardInterrupt

    half = gt.ladder.esgd(SMALL, PLAN, workers=1, out=tmp_path / "half", on_event=interrupt)
    assert not half["complete"] and len(half["generations"]) == 1
    resumed = gt.ladder.esgd(SMALL, PLAN, workers=1, out=tmp_path / "half", resume=True)
    assert resumed["complete"] and figures(resumed) == figures(whole)
    assert len([p for p in resumed["done"] if p.get("curve")]) == 6  # nothing was trained twice


@pytest.mark.process
def test_the_command_shows_the_best_and_refuses_another_plan_on_resume(tmp_path, capfd):
    words = ["esgd", "--net", "softmax", "--loader", "resident", "--train-samples", "256", "--val-samples", "64",
             "--population", "2", "--updates", "2", "--workers", "1", "--out", str(tmp_path)]  # fmt: skip
    assert main([*words, "--generations", "1"]) == 0
    shown = capfd.readouterr().out
    assert "generation" in shown and "esgd.json" in shown
    saved = json.loads((tmp_path / "esgd.json").read_text())
    assert saved["kind"] == "esgd" and saved["machine"] and saved["cost"]["trained_images"] == 2 * 2 * 64
    assert main([*words, "--generations", "2", "--resume"]) == 2
    assert "plan generations: then 1, now 2" in capfd.readouterr().err
