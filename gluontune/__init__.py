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
    from gluontune import bench as bench
    from gluontune import bridge as bridge
    from gluontune import compute as compute
    from gluontune import course as course
    from gluontune import datasets as datasets
    from gluontune import errors as errors
    from gluontune import export as export
    from gluontune import graph as graph
    from gluontune import ladder as ladder
    from gluontune import loading as loading
    from gluontune import methods as methods
    from gluontune import monitor as monitor
    from gluontune import optim as optim
    from gluontune import parallel as parallel
    from gluontune import recipe as recipe
    from gluontune import records as records
    from gluontune import report as report
    from gluontune import result as result
    from gluontune import runtime as runtime
    from gluontune import stats as stats
    from gluontune import train as train
    from gluontune.recipe import Recipe as Recipe
    from gluontune.recipe.result import RunResult as RunResult
    from gluontune.training.existing_loop import applied as applied
    from gluontune.training.existing_loop import tuned as tuned
else:
    __getattr__, __dir__, __all__ = lazy.attach(__name__, __file__)
    __all__ = ["__version__", *__all__]
