"""The Recipe, which describes one training run, and its readers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gluontune.core import lazy

if TYPE_CHECKING:
    from gluontune.recipe.recipe import Recipe as Recipe, own_recipes as own_recipes
else:
    __getattr__, __dir__, __all__ = lazy.attach(__name__, __file__)
