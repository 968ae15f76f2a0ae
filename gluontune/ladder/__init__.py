"""The ladder: rungs, interleaved measurement, verdicts, and the climb that ties them together."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gluontune import lazy

if TYPE_CHECKING:
    from gluontune.ladder.analysing import analyse
    from gluontune.ladder.budget import parse_budget as parse_budget
    from gluontune.ladder.climbing import climb as climb
    from gluontune.ladder.evolving import EsgdPlan as EsgdPlan
    from gluontune.ladder.evolving import esgd as esgd
    from gluontune.ladder.knobs import KNOBS as KNOBS
    from gluontune.ladder.method_study import compare_methods
    from gluontune.ladder.pace import FEW_VALIDATE as FEW_VALIDATE
    from gluontune.ladder.pace import FULL as FULL
    from gluontune.ladder.pace import QUICK as QUICK
    from gluontune.ladder.pace import Pace as Pace
    from gluontune.ladder.rungs import RUNGS as RUNGS
    from gluontune.ladder.scaling import scale as scale
    from gluontune.ladder.timing import time_to_accuracy
    from gluontune.ladder.tuning import tune as tune

    factors = analyse
    methods = compare_methods
    tta = time_to_accuracy
else:
    __getattr__, __dir__, __all__ = lazy.attach(__name__, __file__)
