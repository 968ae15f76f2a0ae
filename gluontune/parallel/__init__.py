"""Several devices and several processes: contexts, batches split over them, the parameter server."""

from __future__ import annotations

import importlib
from typing import Any

_PUBLIC = {
    "Cluster": "gluontune.parallel.kvstore",
    "contexts": "gluontune.parallel.devices",
    "split_batch": "gluontune.parallel.devices",
    "start_cluster": "gluontune.parallel.kvstore",
}

__all__ = ["Cluster", "contexts", "split_batch", "start_cluster"]


def __getattr__(name: str) -> Any:
    if name in _PUBLIC:
        return getattr(importlib.import_module(_PUBLIC[name]), name)
    raise AttributeError(f"module 'gluontune.parallel' has no attribute {name!r}")
