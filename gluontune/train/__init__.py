"""Training: one loop, in fresh processes of its own, driven from outside."""

from __future__ import annotations

import importlib
from typing import Any

_PUBLIC = {
    "Group": "gluontune.train.group",
    "Job": "gluontune.train.job",
    "RunFailed": "gluontune.train.group",
    "build_net": "gluontune.train.models",
    "drive": "gluontune.train.running",
    "load_job": "gluontune.train.job",
    "net_names": "gluontune.train.models",
    "run": "gluontune.train.running",
}

__all__ = ["Group", "Job", "RunFailed", "build_net", "drive", "load_job", "net_names", "run"]


def __getattr__(name: str) -> Any:
    if name in __all__:
        return getattr(importlib.import_module(_PUBLIC[name]), name)
    raise AttributeError(f"module 'gluontune.train' has no attribute {name!r}")
