"""Work of a contender of ``python -m benchmarks devices``: whole training steps of one recipe."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gluontune.recipe import Recipe
from gluontune.training.group import Group

__all__ = ["make"]


class _Training:
    """A group of ranks, stopped between the contender's turns."""

    def __init__(self, recipe: Recipe, steps: int):
        self._group, self._steps = Group(recipe), steps
        self._group.reset()
        self.info = {
            "ranks": self._group.world,
            "env": dict(self._group.applied_env),
            "global_batch_size": recipe.global_batch_size,
        }
        self._group.pause()

    def step(self) -> int:
        """Some training steps on every rank; returns their images."""
        self._group.resume()
        seen = self._group.steps(self._steps)
        self._group.pause()
        return int(seen["samples"])

    def close(self) -> None:
        self._group.close()


def make(recipe: Mapping[str, Any], steps: int) -> _Training:
    """Start a recipe's ranks.

    Args:
        recipe: as plain values. steps: of training in one ``step()``.
    """
    return _Training(Recipe.from_dict(recipe), steps)
