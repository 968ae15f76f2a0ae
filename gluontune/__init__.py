"""gluontune: take an MXNet Gluon training job up the ladder, and measure every rung.

The rooms are imported when they are first used, and none of them imports mxnet until it must:

>>> import gluontune as gt
>>> gt.recipe.Recipe().batch_size_per_device
64
"""

from __future__ import annotations

import importlib
from typing import Any

__version__ = "0.1.0"

_ROOMS = (
    "bench",
    "bridge",
    "codec",
    "compute",
    "course",
    "datasets",
    "errors",
    "export",
    "files",
    "graph",
    "ladder",
    "loading",
    "methods",
    "monitor",
    "optim",
    "parallel",
    "recipe",
    "records",
    "registry",
    "report",
    "result",
    "runtime",
    "stats",
    "train",
)

__all__ = ["Recipe", "RunResult", "__version__", "applied", "tuned", *_ROOMS]


def __getattr__(name: str) -> Any:
    if name in _ROOMS:
        return importlib.import_module(f"gluontune.{name}")
    if name == "Recipe":
        return importlib.import_module("gluontune.recipe").Recipe
    if name in ("applied", "tuned"):
        return getattr(importlib.import_module("gluontune.existing_loop"), name)
    if name == "RunResult":
        return importlib.import_module("gluontune.result").RunResult
    raise AttributeError(f"module 'gluontune' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
