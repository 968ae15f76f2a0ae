"""Facts of the machine for results and reports, and whether MXNet can use its GPUs."""

from __future__ import annotations

import platform
import re
from typing import Any

from gluontune import __version__
from gluontune.runtime import cuda
from gluontune.runtime.elf import GpuCode
from gluontune.runtime.nvml import Gpu
from gluontune.runtime.system import System

PACKAGES = (
    "gluoncv", "gluontune", "horovod", "matplotlib", "numpy", "nvidia-cublas-cu11", "nvidia-cudnn-cu11",
    "nvidia-ml-py", "nvidia-nccl-cu11", "onnx", "onnxruntime", "opencv-python", "opencv-python-headless",
    "pillow", "protobuf", "scipy", "simplejpeg",
)  # fmt: skip

# NVIDIA's last MXNet container: MXNet 1.9.1 on CUDA 12.4, with machine code for Hopper.
CONTAINER = "nvcr.io/nvidia/mxnet:24.06-py3"


def machine_facts(system: System | None = None) -> dict[str, Any]:
    """The facts that decide the speed of a run here, ready for JSON. mxnet is not imported.

    They are part of published results and hold no host name, user name or path. An unknown fact is None.

    Args:
        system: for tests; None: this machine.

    Returns:
        ``os``, ``distribution``, ``architecture``, ``libc``, ``python``; ``cpu``: ``model``, ``flags``,
        ``physical_cores``, ``logical_cores``, ``usable_cores``, ``quota_cores``; ``memory_mib``,
        ``memory_limit_mib``; ``container``; ``gpus``: ``index``, ``name``, ``memory_mib``,
        ``compute_capability`` each; ``gpu_driver``, ``gpu_status``; ``packages``: name to version.

    >>> facts = machine_facts()
    >>> facts["cpu"]["usable_cores"] <= facts["cpu"]["logical_cores"]
    True
    """
    system = system or System()
    report = system.gpu_report
    versions = {"gluontune": __version__, **system.packages}
    names = [*system.mxnet_wheels, *(name for name in PACKAGES if name in versions)]
    kernel = re.match(r"\d+\.\d+", platform.release())  # 6.1 of 6.1.0-13-amd64: the rest may name a builder
    distribution = re.search(r'^PRETTY_NAME="?([^"\n]+)', system.read("/etc/os-release") or "", re.M)
    return {
        "os": f"{system.os_name} {kernel[0]}" if kernel else system.os_name,
        "distribution": distribution[1] if distribution else None,
        "architecture": system.architecture,
        "libc": " ".join(part for part in system.libc if part) or None,
        "python": ".".join(map(str, system.python)),
        "cpu": {
            "model": system.model(),
            "flags": list(system.flags()),
            "physical_cores": system.physical_cores(),
            "logical_cores": system.logical_cores(),
            "usable_cores": system.usable_cores(),
            "quota_cores": system.quota_cores(),
        },
        "memory_mib": system.memory_mib(),
        "memory_limit_mib": system.memory_limit_mib(),
        "container": system.container(),
        "gpus": [
            {"index": gpu.index, "name": gpu.name, "memory_mib": gpu.memory_mib, "compute_capability": capability(gpu)}
            for gpu in report.gpus
        ],
        "gpu_driver": report.driver,
        "gpu_status": report.status,
        "packages": {name: versions[name] for name in names},
    }


def capability(gpu: Gpu) -> str | None:
    """``"8.6"``, or None if unknown."""
    return None if gpu.compute_capability is None else "{}.{}".format(*gpu.compute_capability)


def gpu_count(system: System | None = None) -> int:
    """GPUs that a process with this environment would see: NVML's, limited by ``CUDA_VISIBLE_DEVICES``.

    Args:
        system: for tests; None: this machine.

    >>> gpu_count() >= 0
    True
    """
    return len((system or System()).visible_gpus)


def code_runs_on(code: GpuCode, compute_capability: tuple[int, int]) -> bool:
    """Whether a GPU runs this code: machine code of its major version and at most its minor, or older PTX.

    >>> wheel = GpuCode(sm=(50, 60, 70, 80, 86), ptx=())
    >>> code_runs_on(wheel, (8, 9)), code_runs_on(wheel, (9, 0))
    (True, False)
    """
    major, minor = compute_capability
    native = any(sm // 10 == major and sm % 10 <= minor for sm in code.sm)
    return native or any(ptx <= 10 * major + minor for ptx in code.ptx)


def can_run_mxnet_on_gpu(system: System | None = None) -> tuple[bool, str]:
    """Whether the installed mxnet can compute on the GPUs of this machine, and why (not).

    The GPUs come from NVML, the machine code from ``libmxnet.so``; nothing runs on a GPU and mxnet is not imported.

    Args:
        system: for tests; None: this machine.

    Returns:
        (yes or no, one sentence for the user).

    >>> yes, why = can_run_mxnet_on_gpu()
    >>> isinstance(yes, bool) and bool(why)
    True
    """
    system = system or System()
    gpus, library = system.visible_gpus, system.mxnet_library
    if not gpus:
        hidden = len(system.gpu_report.gpus)
        reason = f"CUDA_VISIBLE_DEVICES hides all {hidden} GPUs" if hidden else "NVML shows no GPU here"
        return False, f"{reason} ({system.gpu_report.reason})" if system.gpu_report.reason else reason
    if library is None:
        return False, "mxnet is not installed"
    if not any(cuda.is_cuda(name) for name in system.mxnet_needs):
        return False, "the installed mxnet is built for the CPU only: replace it by mxnet-cu112"
    missing = system.unloadable(tuple(name for name in system.mxnet_needs if cuda.is_cuda(name)))
    if missing:
        return False, f"libmxnet.so cannot load {', '.join(missing)}"
    unfit = unfit_gpus(system)
    if unfit:
        return False, f"{', '.join(gpu.label for gpu in unfit)}: {describe_code(system.gpu_code)}"
    return True, f"{len(gpus)} GPU{'s' if len(gpus) > 1 else ''} that this mxnet holds machine code for"


def unfit_gpus(system: System) -> list[Gpu]:
    """The visible GPUs for which ``libmxnet.so`` holds no code."""
    code = system.gpu_code
    if code is None or not (code.sm or code.ptx):  # not a CUDA build, or its code is in another file
        return []
    return [gpu for gpu in system.visible_gpus if (own := gpu.compute_capability) and not code_runs_on(code, own)]


def describe_code(code: GpuCode | None) -> str:
    """``this mxnet holds machine code for sm_50, sm_60 and no PTX``."""
    if code is None:
        return "mxnet is not installed"
    machine = ", ".join(f"sm_{sm}" for sm in code.sm) or "no GPU"
    ptx = "PTX for " + ", ".join(map(str, code.ptx)) if code.ptx else "no PTX"
    return f"this mxnet holds machine code for {machine} and {ptx}"
