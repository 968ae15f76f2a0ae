"""The platform: making mxnet importable, launch settings, facts of the machine, the doctor.

Nothing here imports mxnet except :func:`mxnet` itself.

>>> import gluontune as gt
>>> gt.runtime.usable_cores() >= 1
True
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from gluontune import lazy
from gluontune.runtime.importing import mxnet

if TYPE_CHECKING:
    from gluontune.runtime.amx import AMX_ENV, amx_support
    from gluontune.runtime.arrays import as_nd_array, as_net_array, uses_np
    from gluontune.runtime.facts import can_run_mxnet_on_gpu, gpu_count, machine_facts
    from gluontune.runtime.kernel import install_kernel
    from gluontune.runtime.launch import (
        LaunchSettings,
        applied,
        bind_to_cpus,
        child_env,
        cpus_for_rank,
        launch_settings,
    )
    from gluontune.runtime.system import System

__all__ = [
    "AMX_ENV",
    "LaunchSettings",
    "System",
    "amx_support",
    "applied",
    "as_nd_array",
    "as_net_array",
    "bind_to_cpus",
    "can_run_mxnet_on_gpu",
    "child_env",
    "cpus_for_rank",
    "gpu_count",
    "install_kernel",
    "launch_settings",
    "machine_facts",
    "memory_limit_mib",
    "mxnet",
    "usable_cores",
    "uses_np",
]

_HOMES = {
    "AMX_ENV": "amx",
    "System": "system",
    "amx_support": "amx",
    "as_nd_array": "arrays",
    "as_net_array": "arrays",
    "can_run_mxnet_on_gpu": "facts",
    "gpu_count": "facts",
    "install_kernel": "kernel",
    "machine_facts": "facts",
    "uses_np": "arrays",
} | dict.fromkeys(
    ("LaunchSettings", "applied", "bind_to_cpus", "child_env", "cpus_for_rank", "launch_settings"), "launch"
)


def usable_cores() -> int:
    """Logical CPUs that this process can keep busy: affinity cut by the cgroup's quota, at least 1."""
    from gluontune.runtime.cpu import Cpu

    return Cpu().usable_cores()


def memory_limit_mib() -> int | None:
    """Memory that this process may use, in MiB: the smallest cgroup limit, at most the machine's memory.

    >>> (memory_limit_mib() or 1) > 0
    True
    """
    from gluontune.runtime.cpu import Cpu

    return Cpu().memory_limit_mib()


def __getattr__(name: str) -> Any:
    if name == "doctor":
        return importlib.import_module("gluontune.runtime.doctor")
    return lazy.find(__name__, _HOMES, name)


def __dir__() -> list[str]:
    return sorted(__all__)
