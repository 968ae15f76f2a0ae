"""Recipes trained in turn, slice by slice: what ratios of throughput are made of in a lesson."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from typing import Any

from gluontune import stats
from gluontune.errors import GluontuneError
from gluontune.ladder.measure import Contender, interleave
from gluontune.recipe import Recipe

__all__ = ["in_turn"]


def in_turn(recipes: Mapping[str, Recipe], *, rounds: int = 5, slice_s: float = 0.4) -> dict[str, dict[str, Any]]:
    """Train all recipes in turn, each in processes of its own, so that a disturbance falls on all alike.

    Args:
        recipes: labels to recipes; the first is what the others are compared with.
        rounds: slices of each. slice_s: about how long one takes, in seconds.

    Returns:
        For each label ``samples_per_sec`` and ``ratio`` (to the first), as ``{"median", "ci95"}``.

    Raises:
        GluontuneError: one of them cannot be trained here.
    """
    field = {name: Contender(recipe, name) for name, recipe in recipes.items()}
    with contextlib.ExitStack() as closing:
        for contender in field.values():
            closing.callback(contender.close)
        interleave(field.values(), rounds=rounds, slice_s=slice_s)
    for name, contender in field.items():
        if contender.failure is not None:
            raise GluontuneError(f"{name}: {contender.failure}")
    first = next(iter(field.values()))
    return {
        name: {
            "samples_per_sec": stats.interval(contender.rates),
            "ratio": stats.ratio_interval(contender.rates, first.rates),
        }
        for name, contender in field.items()
    }
