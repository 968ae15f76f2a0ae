"""Training: one loop, in fresh processes of its own, driven from outside."""

from __future__ import annotations

from typing import Any

from gluontune import lazy

_HOMES = {
    "Callback": "callbacks",
    "Moment": "callbacks",
    "load": "loaded",
    "Checkpoints": "resume",
    "Group": "group",
    "Job": "job",
    "Outcome": "outcome",
    "RunFailed": "group",
    "build_net": "models",
    "drive": "running",
    "load_job": "job",
    "make_score": "metrics",
    "net_names": "models",
    "run": "running",
}

__all__ = sorted(_HOMES)


def __getattr__(name: str) -> Any:
    return lazy.find(__name__, _HOMES, name)


def __dir__() -> list[str]:
    return sorted(__all__)
