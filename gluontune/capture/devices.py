"""GPUs that a script names and MXNet cannot use: with ``GLUONTUNE_DEVICE=cpu`` the CPU computes in their place.

Retired scripts say ``mx.gpu()``, and MXNet's CUDA wheels have no code for newer cards. Of its own accord gluontune puts
nothing in a GPU's place: scripts ask in a loop how many there are, until MXNet raises.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from typing import Any

from gluontune.core.errors import UsageError

DEVICE = "GLUONTUNE_DEVICE"
HINT = f"MXNet computes on no GPU here; {DEVICE}=cpu before the command has the CPU compute what a script puts on GPUs"
_NO_GPU = re.compile(
    r"GPU is not enabled|not implemented for GPU|no CUDA-capable device|no kernel image|invalid device ordinal"
)


def wants_cpu(environ: Mapping[str, str] = os.environ) -> bool:
    """Whether the user wants the CPU in place of GPUs.

    Raises:
        UsageError: ``GLUONTUNE_DEVICE`` is neither empty nor ``cpu``.

    >>> wants_cpu({}), wants_cpu({"GLUONTUNE_DEVICE": "cpu"})
    (False, True)
    """
    wanted = environ.get(DEVICE, "")
    if wanted not in ("", "cpu"):
        raise UsageError(f"{DEVICE}={wanted}: cpu is the only value; without it a script's devices are its own")
    return bool(wanted)


def put_on_cpu(mx: Any) -> None:
    """Have each context ``gpu(i)`` be ``cpu(i)`` from now on, if the user wants it. ``mx``: the mxnet module."""
    if wants_cpu():
        kinds = mx.Context.devstr2type
        mx.Context.devstr2type = {**kinds, "gpu": kinds["cpu"]}


def with_hint(text: str) -> str:
    """A script's error, with what helps if it failed for want of a GPU.

    >>> with_hint("train.py: GPU is not enabled")[:51], with_hint("train.py: shapes differ")
    ('train.py: GPU is not enabled\\nMXNet computes on no G', 'train.py: shapes differ')
    """
    return f"{text}\n{HINT}" if _NO_GPU.search(text) else text
