"""MXNet's files read without mxnet: symbols, typed attributes, parameter files. It needs numpy alone."""

from __future__ import annotations

from typing import Any

from gluontune import lazy

_HOMES = {
    "Graph": "symbol",
    "Node": "symbol",
    "OperatorSchema": "schemas",
    "read_params": "params",
    "read_symbol": "symbol",
    "schema": "schemas",
    "write_params": "params",
}

__all__ = sorted(_HOMES)


def __getattr__(name: str) -> Any:
    return lazy.find(__name__, _HOMES, name)


def __dir__() -> list[str]:
    return sorted(__all__)
