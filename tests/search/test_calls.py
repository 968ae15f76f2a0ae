"""The ladder's parts as plain functions."""

from __future__ import annotations

import pytest

import gluontune as gt
from gluontune.core.errors import UsageError

FAST = gt.Recipe(net="mlp", loader="resident", train_samples=512, val_samples=128)


@pytest.mark.parametrize("kind", [list, tuple, set, iter])
def test_climb_keeps_all_rungs_that_any_iterable_names(kind, machine):
    found = gt.ladder.climb(gt.Recipe(), rungs=kind(["environment", "hybridized"]))
    assert {row["name"] for row in found["rungs"]} == {"naive", "environment", "hybridized"}


def test_an_unknown_rung_is_told_at_once():
    with pytest.raises(UsageError, match="hybridized"):
        gt.ladder.climb(FAST, rungs=(name for name in ["hybridised"]))


def test_factors_is_a_function_of_a_recipe():
    found = gt.ladder.factors(FAST, factors=["hybridized"], pairs=False, pace=gt.ladder.Pace("t", 2, 0.05, 1))
    assert found["complete"]
    assert len(found["sets"]) >= 2
    assert all(row["throughput"]["status"] == "ran" for row in found["sets"])


def test_tta_is_a_function_of_a_recipe():
    found = gt.ladder.tta(FAST, target=0.05, repeats=2, stop_at_target=True)
    assert found["complete"]
    assert found["summary"]["this"]["train_seconds"]["reached"] == 2
