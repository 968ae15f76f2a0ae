"""The one place that imports PyTorch, when something asks for it."""

from __future__ import annotations

import importlib
from types import ModuleType

from gluontune.errors import GluontuneError

__all__ = ["torch"]


def torch() -> ModuleType:
    """PyTorch, imported when it is first needed.

    Raises:
        GluontuneError: it is not installed, or cannot be imported.
    """
    try:
        return importlib.import_module("torch")
    except ImportError as error:
        if isinstance(error, ModuleNotFoundError) and error.name == "torch":
            raise GluontuneError("PyTorch is not installed: pip install torch") from error
        raise GluontuneError(f"PyTorch cannot be imported: {error}") from error
