"""The benchmark of optimizers: which trainings it runs, what it makes of them, and small real ones."""

from __future__ import annotations

import json
import re

import numpy as np
import pytest

from benchmarks import _esgd_contest, _optimizer_findings, _optimizer_steps, optimizers
from benchmarks.__main__ import main
from benchmarks._optimizer_runs import PLANS, fast_recipe
from benchmarks.pages.optimizers import write_optimizers_html
from gluontune import train
from gluontune.errors import GluontuneError
from gluontune.ladder import EsgdPlan
from gluontune.result import RunResult

BASE = fast_recipe("sample")
TINY = {"train_samples": 256, "val_samples": 64, "env": {"OMP_NUM_THREADS": "1"}}


def recipes(part, epochs=None, seeds=(0,)):
    plan = PLANS[part]
    return {p.group: p.recipe for p in plan.pieces(BASE, seeds, epochs or plan.epochs, None)}


def test_nothing_but_the_batch_changes_in_the_table_of_batches():
    found = recipes("batches")
    assert [r.batch_size_per_device for r in found.values()] == [64, 128, 256, 512, 1280]
    assert {r.epochs for r in found.values()} == {3} and len({r.scaled_learning_rate for r in found.values()}) == 1
    first, last = found["batch 64"], found["batch 1280"]
    assert last.differences(first) == {"batch_size_per_device": 1280}


def test_large_batches_have_as_many_epochs_and_images_as_the_small_one():
    found = recipes("large-batch")
    small, by_muon = found.pop("batch 64"), found.pop("batch 64, muon")
    assert by_muon.optimizer == "muon" and by_muon.update_batch_size == 64 and by_muon.epochs == 10
    assert small.update_batch_size == 64 and {r.update_batch_size for r in found.values()} == {1280}
    assert {r.epochs for r in found.values()} == {small.epochs} == {10}
    gathered = found["batch 1280, muon, gathered from 128"]
    assert (gathered.batch_size_per_device, gathered.accumulate, gathered.optimizer) == (128, 10, "muon")
    naive = found["batch 1280, naive"]
    assert naive.scaled_learning_rate == small.scaled_learning_rate and naive.schedule == "constant"
    assert found["batch 1280, linear rate"].scaled_learning_rate == pytest.approx(20 * small.scaled_learning_rate)
    pieces = PLANS["large-batch"].pieces(BASE, [0, 1, 2], [10], ["naive", "batch 64"])
    assert {p.group for p in pieces} == {"batch 64", "batch 1280, naive"} and len(pieces) == 6


def test_eight_optimizers_meet_on_three_nets():
    found = recipes("nets")
    assert len(found) == 24 and len({r.net for r in found.values()}) == 3
    assert found["softmax, sgd"].momentum == 0 and found["softmax, momentum"].momentum == 0.9
    assert {r.epochs for r in recipes("epochs").values()} == {8, 20}


class FakeTraining:
    """Trainings that end at once with given accuracies; counts them."""

    def __init__(self, accuracy, fails=()):
        self.accuracy, self.fails, self.taken, self.stop_after = accuracy, fails, [], None

    def run(self, recipe, on_event=None, time_limit=0.0):
        if self.stop_after is not None and len(self.taken) == self.stop_after:
            return RunResult(recipe=recipe.to_dict(), status="interrupted")
        self.taken.append(recipe)
        on_event({"stage": "training", "detail": "epoch 1"})
        values = self.accuracy(recipe)
        result = RunResult(recipe=recipe.to_dict(), val_accuracy=values, epoch_seconds=[1.0] * len(values))
        if recipe.batch_size_per_device in self.fails:
            result.status, result.error, result.val_accuracy = "failed", {"message": "training diverged"}, []
        return result


@pytest.fixture
def fake(monkeypatch):
    found = FakeTraining(lambda r: [0.3, 0.9 - r.batch_size_per_device / 12_800])
    monkeypatch.setattr(train, "run", found.run)
    return found


def test_an_interrupted_study_goes_on_where_it_was(fake, tmp_path, capfd):
    fake.stop_after = 2
    words = ["optimizers", "--part", "batches", "--out", str(tmp_path)]
    assert main(words) == 130
    assert "--resume goes on" in capfd.readouterr().err
    fake.stop_after = None
    assert main([*words, "--resume", "--json"]) == 0
    found = json.loads(capfd.readouterr().out)
    assert len(fake.taken) == 5 and [r.batch_size_per_device for r in fake.taken] == [64, 128, 256, 512, 1280]
    assert found["complete"] and found["machine"] and found["given"]["recipe"]["dataset"] == "sample"
    assert found["lost_points"] == pytest.approx(9.5)
    assert len(list((tmp_path / "runs").iterdir())) == 5
    page = (tmp_path / "optimizers.html").read_text()
    assert "<svg" in page and "batch 1280" in page and "images in an update" in page


def test_a_failed_training_is_a_row_and_a_lost_bar_is_exit_code_1(fake, tmp_path, capfd):
    fake.fails = (1280,)
    assert main(["optimizers", "--part", "batches", "--out", str(tmp_path)]) == 1
    shown = capfd.readouterr().out
    assert "DOES NOT HOLD" in shown and "diverged" in shown
    rows = json.loads((tmp_path / "optimizers.json").read_text())["done"]
    assert [r["status"] for r in rows] == ["ok"] * 4 + ["failed"]


def groups(**accuracy):
    rows = [
        {"group": name, "seed": seed, "status": "ok", "reason": "", "final_accuracy": value, "epoch_seconds": [1.0],
         "val_accuracy": [0.5, value]}
        for name, values in accuracy.items()
        for seed, value in enumerate(values)
    ]  # fmt: skip
    return _optimizer_findings.summarize(rows)


def test_the_best_large_batch_is_compared_seed_by_seed():
    found = _optimizer_findings.conclude_large(
        groups(
            **{
                "batch 64": [0.86, 0.87, 0.88],
                "batch 1280, naive": [0.6, 0.6, 0.6],
                "batch 1280, lars": [0.855, 0.860, 0.870],
            }
        )
    )
    assert found["holds"] and found["best"] == "batch 1280, lars"
    assert found["points_behind"]["batch 1280, lars"]["by_seed"] == pytest.approx([0.5, 1.0, 1.0])
    assert "; batch 1280, naive: 27.00 points behind it (3 seeds)" in found["sentence"]
    fairer = _optimizer_findings.conclude_large(
        groups(**{"batch 64": [0.84, 0.85], "batch 64, muon": [0.86, 0.87], "batch 1280, muon": [0.855, 0.857]})
    )
    assert fairer["reference"] == "batch 64, muon" and fairer["best"] == "batch 1280, muon"
    assert "0.90 points behind batch 64, muon at equal epochs (2 seeds); batch 64: 2.00" in fairer["sentence"]
    far = _optimizer_findings.conclude_large(groups(**{"batch 64": [0.86], "batch 1280, lars": [0.84]}))
    assert "2.00 points behind batch 64 at equal epochs (1 seed)" in far["sentence"]
    ahead = _optimizer_findings.conclude_large(groups(**{"batch 64": [0.84], "batch 1280, muon": [0.857]}))
    assert ahead["holds"] and "1.70 points ahead of batch 64" in ahead["sentence"]
    assert not far["holds"] and far["points_behind"]["batch 1280, lars"]["mean"] == pytest.approx(2.0)
    assert not _optimizer_findings.conclude_large(groups(**{"batch 64": [0.86]}))["holds"]


def test_an_optimizer_holds_where_one_of_its_lengths_reaches_the_target_in_time():
    found = _optimizer_findings.conclude_logs(groups(**{"sgd, 8 epochs": [0.83], "nag, 8 epochs": [0.82]}))
    assert found["holds"] and found["epochs_to_target"]["sgd, 8 epochs"] == [2]
    assert found["deck_epochs_to_target"] == {"sgd": 20, "nag": 18}
    missed = _optimizer_findings.conclude_logs(groups(**{"sgd, 8 epochs": [0.83, 0.80], "sgd, 20 epochs": [0.7]}))
    assert not missed["holds"] and "2/never" in missed["sentence"]


BAD = {
    "part": (["--part", "btaches"], "did you mean 'batches'"),
    "seeds": (["--part", "nets", "--seeds", "0,0"], "different seeds"),
    "text": (["--part", "nets", "--seeds", "a"], "whole numbers"),
    "lengths": (["--part", "nets", "--epochs", "1,2"], "takes one length"),
    "nothing": (["--part", "nets", "--only", "xyz"], "no name holds this"),
    "field": (["--part", "nets", "--set", "ephocs=1"], "unknown field"),
    "plan": (["--part", "esgd", "--esgd", "popluation=3"], "choose from population"),
    "layers": (["--part", "step-time", "--layers", "9"], "6 n \\+ 2"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_input_is_refused_with_its_name(case, tmp_path, capfd):
    words, message = BAD[case]
    assert main(["optimizers", *words, "--out", str(tmp_path / "x")]) == 2
    assert re.search(message, capfd.readouterr().err)


@pytest.mark.process
def test_small_nets_are_really_trained(tmp_path, capfd):
    words = ["optimizers", "--part", "nets", "--only", "softmax, adam", "--epochs", "2", "--json",
             "--set", "train_samples=256", "--set", "val_samples=64", "--out", str(tmp_path)]  # fmt: skip
    assert main(words) == 1  # two of the three nets were left out
    found = json.loads(capfd.readouterr().out)
    (row,) = found["done"]
    assert row["status"] == "ok" and len(row["val_accuracy"]) == 2 and row["steps"] == 4
    assert found["groups"][0]["final_accuracy"]["median"] > 0.3
    assert "sigmoid" in (tmp_path / "optimizers.html").read_text()


def test_step_time_takes_a_net_of_the_zoo():
    work = _optimizer_steps.make("mobilenet0.25", 2, 32, True, "gluontune", "nag")
    assert work.info["parameter_arrays"] == 83 and work.step() == 1


@pytest.mark.process
def test_step_time_names_the_net_that_is_none():
    with pytest.raises(GluontuneError, match=r"unknown net 'resnet50_v9' .* did you mean resnet50_v"):
        _optimizer_steps.measure(net="resnet50_v9", only=["sgd"], rounds=1)


@pytest.mark.parametrize("name", ["sgd", "lbsgd, lars", "MXNet's lbsgd, lars"])
def test_an_update_alone_really_updates(name):
    peer, options = _optimizer_steps.CONTENDERS[name]
    work = _optimizer_steps.make("8", 2, 8, False, peer, **options)
    assert work.info["weight_layers"] == 8 + 2  # two more where a block changes its width
    before = work._weights[0].asnumpy()
    assert work.step() == 1
    after = work._weights[0].asnumpy()
    assert np.isfinite(after).all() and not np.array_equal(before, after)


def test_step_times_are_compared_within_rounds(monkeypatch):
    class Measured:
        def __init__(self, entrant):
            self.entrant, self.info = entrant, {}
            self.failure = ValueError("no such optimizer") if entrant.peer == "mxnet" else None
            slower = 1.25 if entrant.settings["name"] == "lars" else 1.0
            self.rates = [] if self.failure else [speed / slower for speed in (100.0, 50.0, 80.0)]

    monkeypatch.setattr(_optimizer_steps, "hold", lambda entrants, **_: [Measured(e) for e in entrants])
    found = optimizers.run("step-time", net="mlp")
    assert found["given"]["net"] == "mlp"
    rows = {(r["part"], r["name"]): r for r in found["done"]}
    assert rows["whole step", "lars"]["ratio_to_sgd"]["median"] == pytest.approx(1.25)
    assert rows["update alone", "sgd"]["step_time_ms"]["median"] == pytest.approx(12.5)
    assert rows["whole step", "MXNet's lars"]["reason"] == "no such optimizer"
    assert found["holds"] and "lars: 1.25 (1.25-1.25)" in found["sentence"]


@pytest.mark.slow
@pytest.mark.process
def test_esgd_meets_its_baselines_at_equal_compute(tmp_path):
    plan = EsgdPlan(population=2, generations=2, updates=2, offspring=2)
    found = optimizers.run("esgd", seeds=[0], plan=plan, workers=1, out=tmp_path, changes={**TINY, "net": "softmax"})
    rows = {r["contender"]: r for r in found["done"]}
    assert list(rows) == list(_esgd_contest.CONTENDERS) and {r["status"] for r in rows.values()} == {"ok"}
    most = rows["ESGD"]["cost"]["image_passes"]
    step = 3 * 2 * 64 + 64
    for row in rows.values():
        assert most - (plan.population + 1) * step <= row["cost"]["image_passes"] <= most + step
        assert np.isfinite(row["best"]["loss"])
    assert "Mean loss at equal compute" in found["sentence"]
    write_optimizers_html(found, tmp_path / "page.html")
    assert "<svg" in (tmp_path / "page.html").read_text()
    again = optimizers.run(
        "esgd", seeds=[0], plan=plan, workers=1, out=tmp_path, resume=True, changes={**TINY, "net": "softmax"}
    )
    assert again["done"] == found["done"]


def test_esgd_holds_only_if_it_is_better_with_every_seed():
    given = {"ESGD": (0.5, 0.6), "single baseline": (0.55, 0.65), "population baseline": (0.7, 0.59)}
    rows = [
        {"contender": name, "seed": seed, "status": "ok", "best": {"loss": loss}}
        for name, losses in given.items()
        for seed, loss in enumerate(losses)
    ]
    found = _esgd_contest.conclude(rows)
    assert not found["holds"] and found["won"]["population baseline"] == {"seeds": 2, "won": 1}
    rows[-1]["best"] = {"loss": 0.61}
    assert _esgd_contest.conclude(rows)["holds"]
