"""What a user's type checker sees of the public names: read by mypy alone (``make lint``), never run."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from typing_extensions import assert_type

    import gluontune as gt
    from gluontune.optim.trainer import TunedTrainer

    def of_each_room(recipe: gt.Recipe, net: Any) -> None:
        """A name that a room gives as Any would fail here."""
        assert_type(gt.Recipe(), gt.recipe.Recipe)
        assert_type(gt.train.run(recipe), gt.RunResult)
        assert_type(gt.optim.setup("nag", net), TunedTrainer)
        assert_type(gt.datasets.open("sample"), gt.datasets.Dataset)
        assert_type(gt.records.verify("a.rec"), gt.records.VerifyReport)
        assert_type(gt.loading.size("a.rec"), gt.loading.SizeReport)
        assert_type(gt.compute.check_hybridizable(net), gt.compute.HybridizeCheck)
        assert_type(gt.runtime.usable_cores(), int)
        assert_type(gt.ladder.tta(recipe, target=0.9), dict[str, Any])
