"""The platform: making mxnet importable, launch settings, facts of the machine, the doctor."""

from __future__ import annotations

import importlib
from types import ModuleType

__all__ = ["mxnet"]


def mxnet() -> ModuleType:
    """Import mxnet rightly and return it."""
    return importlib.import_module("mxnet")
