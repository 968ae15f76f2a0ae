"""The ladder: rungs, interleaved measurement, verdicts, and the climb that ties them together."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gluontune.core import lazy

if TYPE_CHECKING:
    from gluontune.search.budget import (
        FEW_VALIDATE as FEW_VALIDATE,
        FULL as FULL,
        QUICK as QUICK,
        Pace as Pace,
        parse_budget as parse_budget,
    )
    from gluontune.search.climb import climb as climb
    from gluontune.search.esgd import EsgdPlan as EsgdPlan, esgd as esgd
    from gluontune.search.factors import analyse
    from gluontune.search.methods import compare_methods
    from gluontune.search.parts_alone import scale as scale
    from gluontune.search.rungs import RUNGS as RUNGS
    from gluontune.search.script_climb import climb_script as climb_script
    from gluontune.search.tta import time_to_accuracy
    from gluontune.search.tune import KNOBS as KNOBS, tune as tune

    factors = analyse
    methods = compare_methods
    tta = time_to_accuracy
else:
    __getattr__, __dir__, __all__ = lazy.attach(__name__, __file__)
