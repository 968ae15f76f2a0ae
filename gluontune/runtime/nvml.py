"""The GPUs by NVML: names, memory, compute capability; None (N/A), never 0 or an error, without an answer."""

from __future__ import annotations

import contextlib
import importlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Gpu:
    """One GPU. None: unknown to NVML."""

    index: int
    name: str | None = None
    memory_mib: int | None = None
    compute_capability: tuple[int, int] | None = None
    uuid: str | None = None
    utilization_readable: bool | None = None

    @property
    def label(self) -> str:
        """``GPU 0 (NVIDIA H200, compute capability 9.0)``."""
        capability = self.compute_capability
        text = f"compute capability {capability[0]}.{capability[1]}" if capability else "capability N/A"
        return f"GPU {self.index} ({self.name or 'name N/A'}, {text})"


@dataclass(frozen=True)
class GpuReport:
    """The GPUs in NVML's order, or the ``reason`` why they are unknown.

    ``status`` is ``ok``, ``no-driver`` (NVML's library or the kernel module is not there), ``no-binding`` (the package
    nvidia-ml-py is not installed), ``denied`` or ``error``.
    """

    status: str
    gpus: tuple[Gpu, ...] = ()
    driver: str | None = None
    reason: str = ""


def query(pynvml: Any = None) -> GpuReport:
    """The report of NVML on every GPU."""
    if pynvml is None:
        try:
            pynvml = importlib.import_module("pynvml")
        except ImportError as error:
            return GpuReport("no-binding", reason=str(error))
    try:
        pynvml.nvmlInit()
    except Exception as error:
        return GpuReport(_status(pynvml, error), reason=str(error))
    try:
        gpus = tuple(gpu_of(pynvml, index) for index in range(pynvml.nvmlDeviceGetCount()))
        return GpuReport("ok", gpus, ask(pynvml, "nvmlSystemGetDriverVersion"))
    except Exception as error:
        return GpuReport(_status(pynvml, error), reason=str(error))
    finally:
        with contextlib.suppress(Exception):
            pynvml.nvmlShutdown()


def _status(pynvml: Any, error: Exception) -> str:
    code = getattr(error, "value", None)
    absent = ("NVML_ERROR_LIBRARY_NOT_FOUND", "NVML_ERROR_DRIVER_NOT_LOADED")
    if code is not None and code in [getattr(pynvml, name, None) for name in absent]:
        return "no-driver"
    return "denied" if code == getattr(pynvml, "NVML_ERROR_NO_PERMISSION", -1) else "error"


def ask(pynvml: Any, question: str, *arguments: Any) -> Any:
    """The answer as text or value, or None (unsupported, denied, a lost GPU, an old library)."""
    try:
        answer = getattr(pynvml, question)(*arguments)
    except Exception:
        return None
    return answer.decode("utf-8", "replace") if isinstance(answer, bytes) else answer


def gpu_of(pynvml: Any, index: int) -> Gpu:
    """The GPU with this index."""
    handle = ask(pynvml, "nvmlDeviceGetHandleByIndex", index)
    if handle is None:
        return Gpu(index)
    memory = ask(pynvml, "nvmlDeviceGetMemoryInfo", handle)
    capability = ask(pynvml, "nvmlDeviceGetCudaComputeCapability", handle)
    return Gpu(
        index=index,
        name=ask(pynvml, "nvmlDeviceGetName", handle),
        memory_mib=None if memory is None else int(memory.total) >> 20,
        compute_capability=None if capability is None else (int(capability[0]), int(capability[1])),
        uuid=ask(pynvml, "nvmlDeviceGetUUID", handle),
        utilization_readable=ask(pynvml, "nvmlDeviceGetUtilizationRates", handle) is not None,
    )


def visible(gpus: tuple[Gpu, ...], environ: Mapping[str, str]) -> tuple[Gpu, ...]:
    """The GPUs that CUDA shows to a process with this environment (``CUDA_VISIBLE_DEVICES``).

    As in CUDA, the list ends at the first entry that names no GPU. Indices follow NVML's order, which is CUDA's with
    ``CUDA_DEVICE_ORDER=PCI_BUS_ID``.
    """
    chosen = environ.get("CUDA_VISIBLE_DEVICES")
    if chosen is None:
        return gpus
    shown: list[Gpu] = []
    for entry in (part.strip() for part in chosen.split(",")):
        gpu = _named(gpus, entry)
        if gpu is None or gpu in shown:
            break
        shown.append(gpu)
    return tuple(shown)


def _named(gpus: tuple[Gpu, ...], entry: str) -> Gpu | None:
    if entry.isdigit():
        return next((gpu for gpu in gpus if gpu.index == int(entry)), None)
    if entry.startswith("GPU-"):
        matches = [gpu for gpu in gpus if gpu.uuid and gpu.uuid.startswith(entry)]
        return matches[0] if len(matches) == 1 else None
    return gpus[0] if entry.startswith("MIG-") and gpus else None
