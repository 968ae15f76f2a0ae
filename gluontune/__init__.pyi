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

__version__: str
