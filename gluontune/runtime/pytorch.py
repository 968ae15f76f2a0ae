"""The one place that imports PyTorch, on demand."""

from __future__ import annotations

import importlib
from types import ModuleType

from gluontune.core.errors import GluontuneError
from gluontune.runtime.packages import module_exists

OLDEST = (2, 1)
INSTALL = "pip install torch --extra-index-url https://download.pytorch.org/whl/cpu (or plain: pip install torch)"


def installed() -> bool:
    """Whether PyTorch is installed; it is not imported.

    >>> isinstance(installed(), bool)
    True
    """
    return module_exists("torch")


def torch() -> ModuleType:
    """PyTorch, imported on first use.

    Raises:
        GluontuneError: it is not installed, cannot be imported, or is older than 2.1.
    """
    try:
        found = importlib.import_module("torch")
    except ImportError as error:
        if isinstance(error, ModuleNotFoundError) and error.name == "torch":
            raise GluontuneError(f"PyTorch is not installed: {INSTALL}") from error
        raise GluontuneError(f"PyTorch cannot be imported: {error}") from error
    version = str(getattr(found, "__version__", ""))
    numbers = version.split("+")[0].split(".")[:2]
    if all(n.isdigit() for n in numbers) and tuple(map(int, numbers)) < OLDEST:
        raise GluontuneError(
            f"PyTorch {version} is too old, {'.'.join(map(str, OLDEST))} or newer is wanted: {INSTALL}"
        )
    return found
