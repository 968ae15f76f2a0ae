"""Benchmarks: gluontune's parts and their peers side by side, each in a process of its own.

``contest`` says how a benchmark is written: the work, the entrants, the rounds. ``outcome`` makes the
JSON and the table. Nothing here is imported by the rooms below, and no peer by this process.
"""

from __future__ import annotations

from typing import Any

from gluontune import lazy

_HOMES = {
    "LIMIT": "contest",
    "OURS": "contest",
    "Contender": "contest",
    "Entrant": "contest",
    "document": "outcome",
    "hold": "contest",
    "peer_python": "places",
    "show": "outcome",
}

__all__ = sorted(_HOMES)


def __getattr__(name: str) -> Any:
    return lazy.find(__name__, _HOMES, name)


def __dir__() -> list[str]:
    return sorted(__all__)
