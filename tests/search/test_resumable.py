"""What a ledger takes up again: also what an earlier version began, whose recipes had fewer fields."""

from __future__ import annotations

import pytest

from gluontune.core.errors import UsageError
from gluontune.core.files import write_json
from gluontune.recipe import Recipe
from gluontune.search.resumable import ResumableDocument


def test_a_recipe_that_has_gained_a_field_since_is_taken_up_at_its_default(tmp_path):
    recipe = Recipe(epochs=2.0)
    given = {"recipe": recipe.to_dict(), "recipes": {"ours": {**recipe.to_dict(), "seed": None}}}
    old = ResumableDocument("tta", 1, given, tmp_path, resume=False)
    old.enter({"name": "first"})
    del old.document["given"]["recipe"]["accumulate"], old.document["given"]["recipes"]["ours"]["accumulate"]
    write_json(old.path, old.document)
    assert ResumableDocument("tta", 1, given, tmp_path, resume=True).document["done"] == [{"name": "first"}]
    other = {**given, "recipe": recipe.override(accumulate=2).to_dict()}
    with pytest.raises(UsageError, match="recipe accumulate: then 1, now 2"):
        ResumableDocument("tta", 1, other, tmp_path, resume=True)
