"""Recipe: checks, overrides, YAML."""

from __future__ import annotations

import subprocess
import sys

import pytest
import typer
import yaml
from hypothesis import given, settings, strategies as st
from typer.testing import CliRunner

from gluontune.cli._recipe import takes_recipe
from gluontune.core.errors import GluontuneError, UsageError
from gluontune.optim import OPTIMIZERS, list_optimizers
from gluontune.recipe import Recipe


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"dtype": "float31"}, ["dtype", "float31", "bfloat16"]),
        ({"batch_size_per_device": 0}, ["batch_size_per_device=0", "at least 1"]),
        ({"batch_size_per_device": 2.5}, ["2.5", "whole number"]),
        ({"batch_size_per_device": True}, ["True", "whole number"]),
        ({"learning_rate": float("nan")}, ["learning_rate", "above 0"]),
        ({"learning_rate": -0.1}, ["-0.1"]),
        ({"epochs": 0}, ["epochs=0"]),
        ({"epochs": "three"}, ["three"]),
        ({"target_accuracy": 80}, ["target_accuracy", "between 0 and 1"]),
        ({"warmup_epochs": 3, "epochs": 2}, ["warmup_epochs", "longer than the run"]),
        ({"dtype": "float16", "devices": "cpu"}, ["float16", "bfloat16"]),
        ({"dtype": "bfloat16", "devices": "gpu"}, ["bfloat16", "float16"]),
        ({"devices": "cpu", "num_devices": 2}, ["contradict", "engine='shared-memory'"]),
        ({"accumulate": 0}, ["accumulate=0", "at least 1"]),
        ({"accumulate": 4, "dtype": "float16"}, ["accumulate=4", "float16", "larger batch_size_per_device"]),
        ({"accumulate": 4, "engine": "async", "num_devices": 2}, ["accumulate=4", "async"]),
        ({"train_samples": 10}, ["train_samples=10", "last_batch"]),
        ({"dataset": ""}, ["dataset", "name"]),
        ({"optimizer": 3}, ["optimizer=3", "name"]),
        ({"warmup_epochs": 2, "epochs": 2}, ["warmup_epochs=2", "as long as the run"]),
        ({"momentum": 1.0}, ["momentum=1.0", "below 1"]),
        ({"clip_global_norm": 0}, ["clip_global_norm=0", "above 0"]),
        ({"optimizer": "adm"}, ["optimizer", "'adm'", "'adam'"]),
        ({"schedule": "cosin"}, ["schedule", "'cosin'", "'cosine'"]),
        ({"loader": "thread"}, ["loader", "'thread'", "'threaded'"]),
        ({"rewrites": ["pool-to-men"]}, ["rewrites", "'pool-to-men'", "'pool-to-mean'"]),
        ({"rewrites": "pool-to-mean"}, ["rewrites='pool-to-mean'", "list"]),
        ({"augment": "pad-crop"}, ["augment", "'pad-crop'", "'pad-crop-flip'"]),
        ({"optimizer_params": ["beta1"]}, ["optimizer_params", "mapping"]),
        ({"optimizer_params": {"trust_coefficient": 0.1}}, ["optimizer_params", "'nag'", "clip_gradient"]),
        (
            {"optimizer": "lars", "optimizer_params": {"trust_coeficient": 0.1}},
            ["optimizer_params", "'trust_coeficient'", "did you mean 'trust_coefficient'"],
        ),
        ({"optimizer": "adam", "optimizer_params": {"beta1": 1.5}}, ["beta1=1.5", "below 1"]),
        ({"optimizer": "adam", "optimizer_params": {"beta1": "0.9"}}, ["beta1='0.9'", "number"]),
        ({"optimizer": "adam", "optimizer_params": {"epsilon": None}}, ["epsilon=None", "number"]),
        ({"optimizer": "nag", "optimizer_params": {"clip_gradient": -1}}, ["clip_gradient=-1", "or none"]),
        ({"optimizer": "rmsprop", "optimizer_params": {"centered": 1}}, ["centered=1", "true or false"]),
        (
            {"optimizer": "lbsgd", "optimizer_params": {"warmup_strategy": "cubic"}},
            ["warmup_strategy='cubic'", "power2"],
        ),
        ({"optimizer": "lbsgd", "optimizer_params": {"batch_scale": 4}}, ["batch_scale", "accumulate=4 alone"]),
        ({"schedule_params": {"power": 2}}, ["schedule_params", "'power'", "pct_start"]),
        ({"schedule_params": {"pct_start": 2}}, ["schedule_params", "pct_start=2"]),
        ({"schedule": "multifactor", "schedule_params": {"steps": 30}}, ["steps=30", "rise"]),
        ({"schedule": "multifactor", "schedule_params": {"unit": "weeks"}}, ["unit='weeks'", "epochs"]),
        (
            {"schedule": "multifactor", "schedule_params": {"steps": [1, 2], "unit": "epochs"}, "epochs": 2},
            ["schedule_params", "epochs=2", "after the run"],
        ),
    ],
)
def test_contradictions_and_bad_values_are_named(fields, words):
    with pytest.raises(UsageError) as caught:
        Recipe(**fields)
    message = str(caught.value)
    assert all(word in message for word in words), message
    assert "\n" not in message


def test_unknown_field_offers_the_nearest(tmp_path):
    path = tmp_path / "recipe.yaml"
    path.write_text("batch_size: 64\n")
    with pytest.raises(UsageError, match=r"recipe\.yaml.*batch_size.*base_batch_size"):
        Recipe.from_yaml(path)


@pytest.mark.parametrize("text", ["- a\n- b\n", "{a: [", "3"])
def test_yaml_that_is_no_recipe(tmp_path, text):
    path = tmp_path / "recipe.yaml"
    path.write_text(text)
    with pytest.raises(UsageError, match=r"recipe\.yaml"):
        Recipe.from_yaml(path)


def test_missing_file_is_named(tmp_path):
    with pytest.raises(GluontuneError, match=r"nowhere\.yaml"):
        Recipe.from_yaml(tmp_path / "nowhere.yaml")


@settings(deadline=None)
@given(
    batch=st.integers(1, 4096),
    rate=st.floats(1e-5, 10),
    rewrites=st.lists(st.sampled_from(["pool-to-mean", "pad-channels"]), unique=True),
    seconds=st.none() | st.floats(0.1, 1e4),
    env=st.dictionaries(st.text("ABC_", min_size=1), st.text("01a", min_size=1)),
)
def test_yaml_round_trip(tmp_path_factory, batch, rate, rewrites, seconds, env):
    recipe = Recipe(batch_size_per_device=batch, learning_rate=rate, rewrites=rewrites, seconds=seconds, env=env)
    path = tmp_path_factory.mktemp("recipe") / "r.yaml"
    path.write_text(recipe.to_yaml())
    assert Recipe.from_yaml(path) == recipe


def test_override_checks_again_and_keeps_the_rest():
    recipe = Recipe(seed=7).override(batch_size_per_device=128)
    assert (recipe.seed, recipe.scaled_learning_rate) == (7, 2 * Recipe().scaled_learning_rate)
    with pytest.raises(UsageError):
        recipe.override(batch_size_per_device=-1)


def test_what_a_recipe_leaves_open_is_the_card_s():
    usual = Recipe().resolved()
    assert (usual.learning_rate, usual.base_batch_size, usual.lr_scaling, usual.wd) == (0.2, 64, "linear", 5e-4)
    assert Recipe(batch_size_per_device=128).scaled_learning_rate == 0.4
    adam = Recipe(optimizer="adam", batch_size_per_device=256)
    assert adam.scaled_learning_rate == 0.001 * 2 and adam.learning_rate is None
    assert Recipe().override(optimizer="adam", batch_size_per_device=256) == adam
    assert Recipe(optimizer="adam", learning_rate=0.01, lr_scaling="none").scaled_learning_rate == 0.01
    assert Recipe(optimizer="lars", batch_size_per_device=1024).scaled_learning_rate == 10.0


@pytest.mark.parametrize("name", list_optimizers())
def test_each_card_gives_whole_numbers_to_train_with(name):
    recipe = Recipe(optimizer=name).resolved()
    assert recipe.learning_rate > 0 and recipe.base_batch_size >= 1 and recipe.wd >= 0
    assert recipe.lr_scaling in ("none", "linear", "sqrt") and recipe.scaled_learning_rate > 0
    defaults = {k: v for k, v in OPTIMIZERS[name].defaults.items() if k != "batch_scale"}
    assert Recipe(optimizer=name, optimizer_params=defaults).optimizer_params == defaults


def test_recipes_are_keys_and_equal_ones_are_one():
    one = Recipe(epochs=1, env={"A": "1", "B": "2"}, optimizer_params={"clip_gradient": 1})
    two = Recipe(epochs=1.0, env={"B": "2", "A": "1"}, optimizer_params={"clip_gradient": 1.0})
    steps = Recipe(schedule="multifactor", schedule_params={"steps": [10, 20]})
    assert one == two and hash(one) == hash(two) and len({one, two, steps, Recipe()}) == 3
    assert Recipe.from_dict(steps.to_dict()) == steps
    assert yaml.safe_load(steps.to_yaml())["schedule_params"] == {"steps": [10, 20]}


def test_another_optimizer_drops_the_parameters_of_the_one_before():
    lars = Recipe(optimizer="lars", optimizer_params={"eps": 1e-9}, schedule_params={"pct_start": 0.2})
    assert lars.override(epochs=3).optimizer_params == {"eps": 1e-9}
    muon = lars.override(optimizer="muon")
    assert (muon.optimizer_params, muon.schedule_params) == ({}, {"pct_start": 0.2})
    assert lars.override(schedule="cosine").schedule_params == {}
    assert lars.override(optimizer="adam", optimizer_params={"beta1": 0.8}).optimizer_params == {"beta1": 0.8}


def test_recipes_of_earlier_versions_are_read(tmp_path):
    path = tmp_path / "old.yaml"
    path.write_text("optimizer: adam\nlearning_rate: 2e-1\nbase_batch_size: 64\nlr_scaling: linear\nwd: 0.0005\n")
    old = Recipe.from_yaml(path)
    assert old.resolved() == old and old.scaled_learning_rate == 0.2


def test_a_recipe_needs_no_mxnet():
    code = (
        "import sys, gluontune as gt; gt.Recipe(optimizer='lars', loader='resident').resolved();"
        "print(sorted(set(sys.modules) & {'mxnet', 'torch', 'matplotlib', 'cv2'}))"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ran.stdout.strip() == "[]"


def test_parameters_are_flags(monkeypatch):
    seen = {}

    @takes_recipe
    def command(recipe, given):
        seen.update(recipe=recipe, given=given)

    app = typer.Typer()
    app.command()(command)
    flags = ["--optimizer", "lars", "--optimizer-params", "trust_coefficient=0.002", "--optimizer-params", "eps=1e-6"]
    flags += ["--schedule", "multifactor", "--schedule-params", "steps=[10, 20]", "--clip-global-norm", "2"]
    result = CliRunner().invoke(app, flags, catch_exceptions=False)
    assert result.exit_code == 0, result.output
    recipe = seen["recipe"]
    assert recipe.schedule_params == {"steps": (10, 20)} and recipe.clip_global_norm == 2.0
    assert recipe.optimizer_params["trust_coefficient"] == 0.002
    assert set(seen["given"]) == {
        "optimizer", "optimizer_params", "schedule", "schedule_params", "clip_global_norm"
    }  # fmt: skip
    with pytest.raises(
        UsageError, match="--optimizer-params 'eps': write FIELD=VALUE, such as --optimizer-params beta1"
    ):
        CliRunner().invoke(app, ["--optimizer-params", "eps"], catch_exceptions=False)


def test_forked_workers_of_a_thread_that_computes_are_refused():
    naive = {"env": {"MXNET_ENGINE_TYPE": "NaiveEngine"}}
    with pytest.raises(UsageError, match="num_workers=2 contradict each other"):
        Recipe(num_workers=2, **naive)
    assert Recipe(num_workers=0, **naive).env == naive["env"]
    assert Recipe(num_workers=2, loader="threaded", **naive).num_workers == 2
