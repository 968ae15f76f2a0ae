"""Which methods pay: verdicts from known times and accuracies, the choice of the best, resumed and interrupted."""

from __future__ import annotations

import json

import pytest

import gluontune as gt
from gluontune.cli.main import main
from gluontune.core.errors import GluontuneError
from gluontune.recipe import Recipe
from gluontune.recipe.result import RunResult
from gluontune.search.study import Clocks

BASE = Recipe(loader="resident", epochs=3)


@pytest.fixture
def trained(monkeypatch):
    """Pretends runs: accuracies after each of three epochs, and seconds of an epoch, by what the recipe has."""
    curves = {"": ([0.5, 0.7, 0.8], 10.0)}
    ran = []

    def train_once(recipe, *, on_event=None, time_limit=0, machine=None):
        names = sorted(recipe.methods) + (["muon"] if recipe.optimizer == "muon" else [])
        ran.append((tuple(names), recipe.seed))
        accuracy, epoch_s = curves.get("+".join(names), curves[""])
        noise = 0.001 * (recipe.seed % 3)
        result = RunResult(recipe=recipe.to_dict(), val_accuracy=[a + noise for a in accuracy])
        result.epoch_seconds = [epoch_s + 0.1 * (recipe.seed % 3)] * 3
        result.elapsed_seconds = [result.epoch_seconds[0] * n for n in (1, 2, 3)]
        if epoch_s == 0:
            result.status, result.error = "failed", {"message": "diverged", "phase": "training", "type": "X"}
        return result, Clocks()

    monkeypatch.setattr("gluontune.search.factors.train_once", train_once)
    curves["ran"] = ran
    return curves


def study(**options):
    given = {"target": 0.75, "names": ["ema", "mixup", "cutout", "label-smoothing"], "repeats": 3, **options}
    return gt.ladder.methods(BASE, **given)


def test_time_decides_and_accuracy_where_all_take_equally_many_epochs(trained):
    trained["ema"] = ([0.6, 0.76, 0.8], 10.0)  # an epoch sooner
    trained["mixup"] = ([0.5, 0.7, 0.82], 11.0)  # more accurate, by slower steps
    trained["cutout"] = ([0.5, 0.7, 0.78], 10.0)
    trained["label-smoothing"] = ([0.5, 0.6, 0.7], 10.0)
    trained["ema+mixup"] = ([0.77, 0.8, 0.85], 10.0)
    found = study(best=2)
    rows = {row["name"]: row for row in found["methods"]}
    assert {name: row["verdict"] for name, row in rows.items()} == {
        "ema": "pays",
        "mixup": "more accurate",
        "cutout": "less accurate",
        "label-smoothing": "did not converge",
    }
    assert rows["ema"]["ratio"]["median"] == pytest.approx(1.5)
    assert rows["mixup"]["points"]["mean"] == pytest.approx(0.02)
    assert rows["label-smoothing"]["points"]["mean"] == pytest.approx(-0.1)
    assert found["winners"] == ["ema", "mixup"] and found["together"]["verdict"] == "pays"
    assert found["together"]["ratio"]["median"] == pytest.approx(3)
    assert next(row["name"] for row in found["methods"]) == "mixup", "the most accurate first"
    shown = gt.report.factors_tables(found)[0]
    assert "+2.0 points" in next(str(cell) for cell in shown.columns[2].cells)


def test_a_slower_step_costs_and_a_failed_run_is_a_row(trained):
    trained["ema"] = ([0.5, 0.7, 0.8], 13.0)
    trained["mixup"] = ([], 0.0)
    found = study()
    verdicts = {row["name"]: row["verdict"] for row in found["methods"]}
    assert verdicts == {"ema": "costs", "mixup": "failed", "cutout": "not certain", "label-smoothing": "not certain"}
    reasons = {row["name"]: row["reason"] for row in found["methods"]}
    assert "diverged" in reasons["mixup"] and reasons["ema"] is None


def test_a_base_that_is_never_there_still_has_accuracies_to_compare(trained):
    trained["ema"] = ([0.5, 0.7, 0.9], 10.0)
    found = study(target=0.85)
    row = found["methods"][0]
    assert (row["name"], row["verdict"], row["ratio"]) == ("ema", "the base did not converge", None)
    assert row["points"]["mean"] == pytest.approx(0.1)


def test_all_run_in_turn_by_the_same_seeds(trained):
    study(names=["mixup", "ema"], repeats=2, best=0)
    assert trained["ran"] == [
        ((), 0), (("mixup",), 0), (("ema",), 0), (("mixup",), 1), (("ema",), 1), ((), 1)
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"target": 80}, "--target 80"),
        ({"repeats": 0}, "--repeats 0"),
        ({"best": -1}, "--best -1"),
        ({"names": ["emma"]}, "ema"),
        ({"names": ["flip-validation"]}, "nothing to compare"),
    ],
)
def test_bad_options_are_told_before_anything_is_trained(trained, options, said):
    with pytest.raises(GluontuneError) as told:
        study(**options)
    assert said in str(told.value) and not trained["ran"]


def test_a_recipe_brings_its_target_and_no_run_ends_at_it(trained, tmp_path, capfd):
    recipe = tmp_path / "mine.yaml"
    recipe.write_text("net: mlp\nepochs: 3\ntarget_accuracy: 0.7\n")
    out = tmp_path / "out"
    assert main(["factors", "--recipe", str(recipe), "--methods", "ema", "--out", str(out), "--json"]) == 0
    found = json.loads(capfd.readouterr().out)
    assert found["given"]["targets"] == [0.7] and found["given"]["recipe"]["target_accuracy"] is None
    assert main(["factors", "--methods", "ema", "--out", str(tmp_path / "none")]) == 2
    assert "--target" in capfd.readouterr().err
