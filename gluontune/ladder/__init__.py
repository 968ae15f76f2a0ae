"""The ladder: rungs, interleaved measurement, verdicts, and the climb that ties them together."""

from __future__ import annotations

import importlib
from typing import Any

_PUBLIC = {
    "FULL": "gluontune.ladder.climbing",
    "Pace": "gluontune.ladder.climbing",
    "QUICK": "gluontune.ladder.climbing",
    "RUNGS": "gluontune.ladder.rungs",
    "climb": "gluontune.ladder.climbing",
}

__all__ = ["FULL", "QUICK", "RUNGS", "Pace", "climb"]


def __getattr__(name: str) -> Any:
    if name in _PUBLIC:
        return getattr(importlib.import_module(_PUBLIC[name]), name)
    raise AttributeError(f"module 'gluontune.ladder' has no attribute {name!r}")
