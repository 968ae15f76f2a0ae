"""The one place that imports PyTorch, on demand."""

from __future__ import annotations

import atexit
import importlib
import os
import shutil
import tempfile
from pathlib import Path
from types import ModuleType
from typing import Any

from gluontune.codec.native import is_private, user_folder
from gluontune.core.errors import GluontuneError, UsageError, first_line
from gluontune.runtime.packages import module_exists

OLDEST = (2, 1)
INSTALL = "pip install torch --extra-index-url https://download.pytorch.org/whl/cpu (or plain: pip install torch)"


def installed() -> bool:
    """Whether PyTorch is installed; it is not imported."""
    return module_exists("torch")


def torch() -> ModuleType:
    """PyTorch, imported on first use; a GluontuneError if it is missing, cannot be imported or is older than 2.1."""
    _keep_code_at_home()
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


def device(name: str = "auto") -> Any:
    """The ``torch.device`` of a name; ``auto`` is the first GPU that PyTorch sees, else the CPU.

    Raises a UsageError if PyTorch has no such device here.

    >>> device("cpu")
    device(type='cpu')
    """
    library = torch()
    if name == "auto":
        name = "cuda" if library.cuda.is_available() else "cpu"
    try:
        return library.zeros(1, device=name).device
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        raise UsageError(f"device {name!r}: {first_line(error)}; choose auto, cpu, cuda or cuda:1") from error


def synchronize(place: Any) -> None:
    """Wait for all that a device has been given to compute."""
    wait = getattr(getattr(torch(), place.type, None), "synchronize", None)
    if wait is not None and place.type != "cpu":
        wait()


def random_states(place: Any) -> list[Any]:
    """The states of the random numbers of the CPU and of a device."""
    own: Any = getattr(torch(), place.type, None)
    others = [own.get_rng_state(place)] if place.type != "cpu" and hasattr(own, "get_rng_state") else []
    return [torch().get_rng_state(), *others]


def set_random_states(states: list[Any], place: Any) -> None:
    """Set what :func:`random_states` gave."""
    torch().set_rng_state(states[0])
    for state in states[1:]:
        getattr(torch(), place.type).set_rng_state(state, place)


def _keep_code_at_home() -> None:
    """Let ``torch.compile`` keep its code in the user's cache, or in a folder of this process: its default, of a known
    name in /tmp, may be made by another user first, and what lies there runs."""
    if "TORCHINDUCTOR_CACHE_DIR" in os.environ:
        return
    place = user_folder() / "torch"
    if not is_private(place):
        place = Path(tempfile.mkdtemp(prefix="gluontune-torch-"))
        atexit.register(shutil.rmtree, place, ignore_errors=True)
    os.environ["TORCHINDUCTOR_CACHE_DIR"] = str(place)
