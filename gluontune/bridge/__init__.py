"""A Gluon net as a PyTorch module, and back: to_torch, from_torch, check, and operators of one's own."""

from __future__ import annotations

from typing import Any

from gluontune import lazy

_HOMES = {
    "Agreement": "agreement",
    "OPERATORS": "registry",
    "check": "agreement",
    "from_torch": "weights",
    "Migrated": "migrating.project",
    "migrate": "migrating.project",
    "operator": "registry",
    "to_torch": "convert",
}

__all__ = sorted(_HOMES)


def __getattr__(name: str) -> Any:
    return lazy.find(__name__, _HOMES, name)


def __dir__() -> list[str]:
    return sorted(__all__)
