"""The ladder: rungs, interleaved measurement, verdicts, and the climb that ties them together."""

from __future__ import annotations

from typing import Any

from gluontune import lazy

_HOMES = {
    "FEW_VALIDATE": "pace",
    "FULL": "pace",
    "Pace": "pace",
    "QUICK": "pace",
    "RUNGS": "rungs",
    "EsgdPlan": "evolving",
    "climb": "climbing",
    "esgd": "evolving",
    "parse_budget": "budget",
    "KNOBS": "knobs",
    "scale": "scaling",
    "tune": "tuning",
    "tta": "timing:time_to_accuracy",
    "factors": "analysing:analyse",
    "methods": "method_study:compare_methods",
}

__all__ = sorted(_HOMES)


def __getattr__(name: str) -> Any:
    return lazy.find(__name__, _HOMES, name)


def __dir__() -> list[str]:
    return sorted(__all__)
