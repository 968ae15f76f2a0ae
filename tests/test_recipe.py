"""Recipe: checks, overrides, YAML."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gluontune.errors import GluontuneError, UsageError
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


@given(
    batch=st.integers(1, 4096),
    rate=st.floats(1e-5, 10),
    rewrites=st.lists(st.sampled_from(["pool-to-mean", "pad-channels"]), unique=True),
    seconds=st.none() | st.floats(0.1, 1e4),
    env=st.dictionaries(st.text("ABC_", min_size=1), st.text("01a", min_size=1)),
)
def test_yaml_round_trip(tmp_path_factory, batch, rate, rewrites, seconds, env):
    recipe = Recipe(
        batch_size_per_device=batch, learning_rate=rate, rewrites=rewrites, seconds=seconds, env=env
    )
    path = tmp_path_factory.mktemp("recipe") / "r.yaml"
    path.write_text(recipe.to_yaml())
    assert Recipe.from_yaml(path) == recipe


def test_override_checks_again_and_keeps_the_rest():
    recipe = Recipe(seed=7).override(batch_size_per_device=128)
    assert (recipe.seed, recipe.scaled_learning_rate) == (7, 2 * recipe.learning_rate)
    with pytest.raises(UsageError):
        recipe.override(batch_size_per_device=-1)
