"""What is trained: a data set and a net by name, or the user's own ``job.py``.

A ``job.py`` may define any of

* ``net()``: an uninitialized Gluon block;
* ``data()``: the name of a data set (``"folder:/data/birds"``: then every rung applies), or a pair
  ``(train, val)`` of Gluon datasets whose items are ``(image, label)`` with the image as float32 CHW;
* ``loss()``: a Gluon loss of ``(output, label)`` with one value per sample;

and what it leaves out comes from the recipe.
"""

from __future__ import annotations

import importlib.util
import sys
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any, Callable

from gluontune import compute, datasets
from gluontune.errors import GluontuneError
from gluontune.recipe import Recipe
from gluontune.train.models import build_net

__all__ = ["Job", "load_job", "load_module"]


@dataclass
class Job:
    """What one training process works on.

    Args:
        net: makes a new net. loss: makes the loss block.
        dataset: an opened ``gt.datasets.Dataset``, or None where the job brings Gluon datasets.
        train, val: Gluon datasets of the job, or None.
        classes: number of classes, or None where only the job knows it.
    """

    net: Callable[[], Any]
    loss: Callable[[], Any]
    dataset: Any = None
    train: Any = None
    val: Any = None
    classes: int | None = None


def load_module(path: str | Path) -> ModuleType:
    """Run a ``job.py`` and return it as a module; its own folder can be imported from.

    Raises:
        GluontuneError: the file is missing or raises; the message has its line.
    """
    file = Path(path).resolve()
    if not file.is_file():
        raise GluontuneError(f"{path}: no such job file; give the path of a Python file that defines net()")
    spec = importlib.util.spec_from_file_location("gluontune_user_job", file)
    if spec is None or spec.loader is None:
        raise GluontuneError(f"{path}: not a Python file; a job ends in .py")
    module = importlib.util.module_from_spec(spec)
    sys.modules["gluontune_user_job"] = module
    sys.path.insert(0, str(file.parent))
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        raise GluontuneError(
            f"{_place(file, error)}: the job raised {type(error).__name__}: {error}"
        ) from error
    known = [n for n in ("net", "data", "loss") if callable(getattr(module, n, None))]
    if not known:
        raise GluontuneError(f"{path}: the job defines none of net(), data(), loss(); define at least one")
    return module


def load_job(recipe: Recipe) -> Job:
    """The job that a recipe names.

    Raises:
        GluontuneError: the job file, its data or its functions do not fit; names the file and function.
    """
    from gluontune.runtime import mxnet

    def softmax() -> Any:
        return mxnet().gluon.loss.SoftmaxCrossEntropyLoss()

    module = load_module(recipe.job) if recipe.job else None

    def call(name: str) -> Any:
        try:
            return getattr(module, name)()
        except Exception as error:
            place = _place(Path(str(recipe.job)), error)
            kind = type(error).__name__
            raise GluontuneError(f"{place}: {name}() of the job raised {kind}: {error}") from error

    def has(name: str) -> bool:
        return callable(getattr(module, name, None))

    data = call("data") if has("data") else recipe.dataset
    loss = (lambda: call("loss")) if has("loss") else softmax
    if isinstance(data, str):
        opened = datasets.open(data)
        classes = len(opened.classes)
        net = (lambda: call("net")) if has("net") else (lambda: build_net(recipe.net, classes))
        return Job(net=_deepened(net, recipe), loss=loss, dataset=opened, classes=classes)
    train, val = _pair(data, recipe.job)
    if not has("net"):
        raise GluontuneError(f"{recipe.job}: data() returns Gluon datasets, so the job must define net() too")
    return Job(net=_deepened(lambda: call("net"), recipe), loss=loss, train=train, val=val)


def _deepened(net: Callable[[], Any], recipe: Recipe) -> Callable[[], Any]:
    """``net`` with the recipe's stochastic depth, where it asks for some."""
    if not recipe.stochastic_depth:
        return net

    def build() -> Any:
        found = net()
        compute.add_stochastic_depth(found, recipe.stochastic_depth)
        return found

    return build


def _pair(data: Any, path: str | None) -> tuple[Any, Any]:
    fits = isinstance(data, (tuple, list)) and len(data) == 2
    if not fits or not all(hasattr(d, "__len__") and hasattr(d, "__getitem__") for d in data):
        raise GluontuneError(
            f"{path}: data() returned {type(data).__name__}; return the name of a data set, such as "
            "'folder:/data/birds', or a pair (train, val) of Gluon datasets"
        )
    for name, part in zip(("training", "validation"), data):
        if len(part) == 0:
            raise GluontuneError(f"{path}: the {name} data set that data() returns is empty")
        item = part[0]
        if not isinstance(item, (tuple, list)) or len(item) != 2:
            raise GluontuneError(f"{path}: an item of the {name} data set is not a pair (image, label)")
    return data[0], data[1]


def _place(file: Path, error: BaseException) -> str:
    """``file:line`` of the innermost frame of the user's file in a traceback."""
    line, trace = None, error.__traceback__
    if isinstance(error, SyntaxError):
        line = error.lineno
    while trace is not None:
        if Path(trace.tb_frame.f_code.co_filename).resolve() == file.resolve():
            line = trace.tb_lineno
        trace = trace.tb_next
    return f"{file}:{line}" if line else str(file)
