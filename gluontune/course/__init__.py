"""What the notebooks share: predictions, figures, exercises with hints, and their pairing with scripts."""

from __future__ import annotations

from typing import Any

from gluontune import lazy

_HOMES = {
    "EXERCISES": "exercises",
    "accuracy_bands": "studies",
    "as_files": "recordfile",
    "assess": "assessment.assessing",
    "bars": "plots",
    "check": "exercises",
    "compare": "predictions",
    "composition": "studies",
    "deck_graph_memory": "memory",
    "feed": "feeding",
    "flip_bit": "recordfile",
    "folded": "memory",
    "in_turn": "interleaving",
    "kept_folder": "resuming",
    "kept_run": "resuming",
    "kept_study": "resuming",
    "lines": "plots",
    "loading_rate": "feeding",
    "net_memory": "memory",
    "paths": "plots",
    "picture": "pictures",
    "predict": "predictions",
    "race_table": "studies",
    "record_fields": "recordfile",
    "show": "figures",
    "table": "figures",
    "task": "assessment.task",
}

__all__ = sorted(_HOMES)


def __getattr__(name: str) -> Any:
    return lazy.find(__name__, _HOMES, name)


def __dir__() -> list[str]:
    return sorted(__all__)
