"""The ladder: rungs, interleaved measurement, verdicts, and the climb that ties them together."""

from __future__ import annotations

from typing import Any

from gluontune import lazy

_HOMES = {
    "FULL": "climbing",
    "Pace": "climbing",
    "QUICK": "climbing",
    "RUNGS": "rungs",
    "EsgdPlan": "evolving",
    "climb": "climbing",
    "esgd": "evolving",
    "KNOBS": "knobs",
    "scale": "scaling",
    "tune": "tuning",
}

__all__ = ["EsgdPlan", "FULL", "KNOBS", "QUICK", "RUNGS", "Pace", "climb", "esgd", "scale", "tune"]


def __getattr__(name: str) -> Any:
    return lazy.find(__name__, _HOMES, name)


def __dir__() -> list[str]:
    return sorted(__all__)
