"""Several devices and several processes: contexts, batches split over them, the parameter server."""

from __future__ import annotations

from typing import Any

from gluontune import lazy

_HOMES = {
    "Link": "scaling",
    "Parts": "scaling",
    "SharedSum": "summing",
    "SharedWeights": "shared",
    "expected": "scaling",
    "minimum_bandwidth": "scaling",
    "Cluster": "kvstore",
    "Ranks": "ranks",
    "start_ranks": "ranks",
    "Hosts": "hosts",
    "choose_kvstore": "devices",
    "contexts": "devices",
    "split_batch": "devices",
    "start_cluster": "kvstore",
}

__all__ = sorted(_HOMES)


def __getattr__(name: str) -> Any:
    return lazy.find(__name__, _HOMES, name)


def __dir__() -> list[str]:
    return sorted(__all__)
