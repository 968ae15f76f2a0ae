"""gluontune: take an MXNet Gluon training job up the ladder, and measure every rung.

The rooms are imported when they are first used, and none of them imports mxnet until it must:

>>> import gluontune as gt
>>> gt.recipe.Recipe().batch_size_per_device
64
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from gluontune.core import lazy

__version__ = "0.1.0"

if TYPE_CHECKING:
    from gluontune import (
        bench as bench,
        bridge as bridge,
        capture as capture,
        compute as compute,
        course as course,
        datasets as datasets,
        errors as errors,
        export as export,
        graph as graph,
        ladder as ladder,
        loading as loading,
        methods as methods,
        monitor as monitor,
        optim as optim,
        parallel as parallel,
        recipe as recipe,
        records as records,
        report as report,
        result as result,
        runtime as runtime,
        stats as stats,
        train as train,
    )
    from gluontune.recipe import Recipe as Recipe
    from gluontune.recipe.result import RunResult as RunResult
    from gluontune.training.existing_loop import applied as applied, tuned as tuned
else:
    __getattr__, __dir__, __all__ = lazy.attach(__name__, __file__)
    __all__ = ["__version__", *__all__]
