"""The space of recipes: drawn, covered in pairs, and each one trained or clearly refused."""

from __future__ import annotations

import json
import random
from itertools import combinations

import pytest

import gluontune as gt
from gluontune.cli.main import main
from gluontune.core.errors import UsageError
from gluontune.search.bench import recipe_space, recipes
from gluontune.search.bench.recipes import Pool

SMALL = {**recipe_space.BASE, "net": "mlp", "loader": "threaded", "learning_rate": 0.01}


def test_axes_hold_every_name_of_the_registries():
    axes = recipe_space.axes()
    assert set(axes["optimizer"]) == set(gt.optim.list_optimizers())
    assert set(axes["schedule"]) == set(gt.optim.SCHEDULES.names())
    assert set(axes["loader"]) == set(gt.loading.LOADERS.names())
    assert {name for value in axes["rewrites"] for name in value} == set(gt.compute.REWRITES.names())
    of_mxnet = {**gt.recipe.rules.CHOICES}  # PyTorch's engine has tests of its own, and an engine of its own
    of_mxnet["engine"] = tuple(set(of_mxnet["engine"]) - {"ddp"})
    for name, values in of_mxnet.items():
        assert set(axes[name]) >= set(values), name


def test_covering_holds_every_pair_that_can_stand_together():
    trains, refused = recipe_space.covering()
    axes, missing = recipe_space.axes(), recipe_space.unavailable()
    of = {name: [v for v in values if v not in missing.get(name, ())] for name, values in axes.items()}
    held = set().union(*(recipe_space.pairs_of(values, of) for values in trains))
    apart = set().union(
        *(recipe_space.pairs_of({n: v for n, v in values.items() if n in of}, of) for values in refused
          if all(v not in missing.get(n, ()) for n, v in values.items()))
    )  # fmt: skip
    for a, b in combinations(of, 2):
        for i in range(len(of[a])):
            for j in range(len(of[b])):
                assert (a, i, b, j) in held | apart, (a, of[a][i], b, of[b][j])
    assert len(trains) < 400
    for values in trains:
        gt.Recipe(**values)


def test_covering_pairs_all_optimizers_with_all_schedules_and_loaders():
    trains, _ = recipe_space.covering()
    for field in ("schedule", "loader", "hybridize", "lr_scaling", "last_batch", "accumulate", "runtime", "net"):
        usual = getattr(gt.Recipe(), field)
        seen = {(v.get("optimizer"), v.get(field, usual)) for v in trains}
        wanted = {(o, x) for o in recipe_space.axes()["optimizer"] for x in recipe_space.axes()[field]}
        assert wanted <= seen


def every_one_is_settled(found):
    failed = [(row["reason"], row["values"]) for row in found["rows"] if row["outcome"] == "failed"]
    assert not failed, failed[:3]
    for row in found["rows"]:
        assert row["outcome"] == "trained" or len(row["fields"]) >= 1


@pytest.mark.slow
def test_every_recipe_of_the_covering_set_trains_or_is_clearly_refused(tmp_path):
    found = recipes.run(out=tmp_path / "recipes.json")
    every_one_is_settled(found)
    assert found["figures"]["trained"] > 100


def test_some_of_the_covering_set_train_or_are_clearly_refused(tmp_path, monkeypatch):
    trains, refused = recipe_space.covering()
    monkeypatch.setattr(recipes, "covering", lambda seed: (trains[::80], refused[::16]))
    found = recipes.run(out=tmp_path / "recipes.json")
    every_one_is_settled(found)
    assert found["figures"]["trained"] == len(trains[::80]) and found["figures"]["refused"] > 5


@pytest.mark.parametrize(
    ("values", "fields"),
    [
        ({"stochastic_depth": 0.2}, {"net", "stochastic_depth"}),
        ({"devices": "gpu", "num_devices": 64, "last_batch": "keep"}, {"devices", "num_devices"}),
        ({"dtype": "float16", "devices": "cpu"}, {"devices", "dtype"}),
        ({"schedule": "cosine", "schedule_params": {"pwr": 2}}, {"schedule", "schedule_params"}),
        ({"engine": "local", "exchange_every": 2}, {"engine", "exchange_every"}),
    ],
)
def test_what_cannot_train_is_refused_with_its_fields(values, fields):
    found = recipes.train_one({**SMALL, **values})
    assert found["outcome"] == "refused", found
    assert fields <= set(found["fields"])


def test_a_fault_is_a_row_that_fails():
    with Pool() as pool:
        good = recipes.train_one(SMALL, pool)
        wild = recipes.train_one({**SMALL, "optimizer": "sgd", "learning_rate": 1e30}, pool)
        again = recipes.train_one(SMALL, pool)
    assert (good["outcome"], wild["outcome"], again["outcome"]) == ("trained", "failed", "trained")
    assert "diverged" in wild["reason"]
    assert wild["fresh"], "what fails has a second try in processes of its own"
    assert not good["fresh"]


def test_an_unclear_refusal_is_a_failure():
    assert recipes._refusal("something is wrong", {})["outcome"] == "failed"
    assert recipes._refusal("net='a' and seed=3", {})["outcome"] == "refused"


def test_runs_of_few_updates_take_every_schedule_and_warm_up():
    with Pool() as pool:
        for more in ({"schedule": "factor"}, {"warmup_epochs": 0.5}, {"schedule": "multifactor"}):
            found = recipes.train_one({**SMALL, "accumulate": 5, **more}, pool)
            assert found["outcome"] == "trained", found


def test_two_contexts_of_one_process_compress():
    found = recipes.train_one({**SMALL, "num_devices": 2, "compression": "2bit"})
    assert found["outcome"] == "trained", found


@pytest.mark.slow
def test_command_is_resumed_recipe_by_recipe(tmp_path, capfd):
    out = tmp_path / "recipes.json"
    command = ["bench", "recipes", "--count", "3", "--seed", "5", "--out", str(out), "--json"]
    assert main(command) == 0
    whole = json.loads(capfd.readouterr().out)
    assert whole == json.loads(out.read_text()) and whole["figures"]["recipes"] == 3
    journal = tmp_path / "recipes.journal.jsonl"
    lines = journal.read_text().splitlines(keepends=True)
    journal.write_text("".join(lines[:2]) + lines[2][:40])  # killed while it wrote the second
    kept = json.loads(lines[1])["piece"]
    assert main([*command, "--resume"]) == 0
    rows = json.loads(capfd.readouterr().out)["rows"]
    assert rows[kept["place"]] == kept
    assert [row["values"] for row in rows] == [row["values"] for row in whole["rows"]]
    assert main([*command, "--resume", "--seed", "6"]) == 2
    assert "seed: then 5, now 6" in " ".join(capfd.readouterr().err.split())


def test_draws_are_legal_and_repeat():
    rng, again = random.Random(1), random.Random(1)
    for _ in range(50):
        values = recipe_space.draw(rng)
        assert values == recipe_space.draw(again)
        gt.Recipe(**values)


def test_wrong_counts():
    with pytest.raises(UsageError, match="at least 1"):
        recipes.run(0)
