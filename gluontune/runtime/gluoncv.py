"""gluoncv beside PyTorch 2: without this its import fails wherever torch 2 is installed.

gluoncv 0.10 asks for ``torch<2`` and raises RuntimeError for a newer one, though its MXNet half needs none. Its
check is answered here with "no torch", which gluoncv knows how to do without; torch is then not even imported.
"""

from __future__ import annotations

import importlib.machinery
import importlib.util
import sys
from collections.abc import Sequence
from types import ModuleType
from typing import Any

__all__ = ["spare_from_torch"]

_NAME = "gluoncv.check"


def spare_from_torch() -> None:
    """Let ``import gluoncv`` pass over torch, from now on in this process. It is idempotent.

    >>> spare_from_torch()
    >>> sum(isinstance(finder, _Finder) for finder in sys.meta_path)
    1
    """
    if _NAME not in sys.modules and not any(isinstance(finder, _Finder) for finder in sys.meta_path):
        sys.meta_path.insert(0, _Finder())


class _Finder:
    """Finds ``gluoncv.check`` where the others find it, and changes one function after it is loaded."""

    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> Any:
        if name != _NAME:
            return None
        spec = importlib.machinery.PathFinder.find_spec(name, path, target)
        if spec is not None and spec.loader is not None:
            spec.loader = _Loader(spec.loader)  # type: ignore[assignment]
        return spec


class _Loader:
    def __init__(self, loader: Any):
        self._loader = loader

    def create_module(self, spec: Any) -> ModuleType | None:
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        self._loader.exec_module(module)
        module._require_pytorch_version = _no_torch  # type: ignore[attr-defined]

    def __getattr__(self, name: str) -> Any:  # get_source and the like, for tracebacks
        return getattr(self._loader, name)


def _no_torch(*_versions: str) -> None:
    raise ImportError("gluontune runs gluoncv on MXNet alone")
